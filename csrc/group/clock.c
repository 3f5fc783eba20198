/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of a rank; see clock.h. */
#include "group/group.h"

#include "base/check.h"

/* Of the timeout: how late a rank may be and all the time counts. */
enum { LATE_PARTS = 16 };

/* A rank that comes late (its process stood still, or worked) has not read what the
 * others have sent meanwhile: that time does not count, or it would blame them. Some of
 * it counts, so that one that is always late gives up too. */
void group_wire_update_clock(struct group *g)
{
    struct group_clock *c = &g->clock;
    int64_t time = communicator_now(g->communicator) - c->behind;
    int64_t margin = group_agent_timeout_ns(g) / LATE_PARTS;
    int64_t lost = time - c->time - margin;
    if (time - margin > c->due && lost > 0) {
        c->behind += lost;
        time -= lost;
    }
    CHECK(time >= c->time && c->behind >= 0);
    c->time = time;
}

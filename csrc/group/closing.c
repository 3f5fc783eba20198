/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing: nobody begins anything any more, but messages may be under way. The ranks add
 * up what they have sent and received, until two sums in a row are equal in both
 * (Mattern's four counters). Then the window is left for later.
 */
#include "group/group.h"
#include "runtime/closing.h"

#include "base/check.h"

static const int64_t again_after = 1000000; /* ns */

static int add_up(struct group *g)
{
    struct drain *d = &g->drain;
    d->counts[0] = g->wire.sent;
    d->counts[1] = g->wire.received;
    d->agreeing = true;
    d->again_at = INT64_MAX;
    d->agreement = (struct agreement){
        .values = d->counts, .count = 2, .op = AGREE_SUM, .object = &g->base};
    return communicator_agree(g->communicator, &d->agreement);
}

int group_begin_close(struct object *p)
{
    struct group *g = group_of(p);
    CHECK(g->queued && g->phase == PHASE_AWAY);
    g->drain.before[0] = UINT64_MAX;
    return add_up(g);
}

static bool is_drained(const struct drain *d)
{
    return d->counts[0] == d->counts[1] && d->before[0] == d->counts[0] &&
           d->before[1] == d->counts[1];
}

static int finish(struct group *g)
{
    CHECK(g->window);
    if (g->spent) /* else it had closed before somebody died */
        window_spend(g->communicator, g->window, &g->spent);
    g->drain.agreeing = false;
    return communicator_closed(g->communicator, &g->base);
}

int group_drain(struct group *g)
{
    struct drain *d = &g->drain;
    CHECK(g->queued);
    int rc = group_flush_match(g);
    if (rc != PCOLL_OK || atomic_load(&g->base.closed))
        return rc;
    if ((rc = group_refuse(g)) != PCOLL_OK) /* lists that cross with its leaving */
        return rc;
    if (d->agreeing && atomic_load(&d->agreement.done)) {
        if (is_drained(d))
            return finish(g);
        d->agreeing = false;
        d->before[0] = d->counts[0];
        d->before[1] = d->counts[1];
        d->again_at = communicator_now(g->communicator) + again_after;
    }
    if (d->again_at == INT64_MAX)
        return PCOLL_OK;
    if (communicator_now(g->communicator) >= d->again_at)
        return add_up(g);
    communicator_alarm(g->communicator, &g->base, d->again_at);
    return PCOLL_OK;
}

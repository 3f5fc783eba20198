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

static int group_agent_sum_counts(struct group *g)
{
    struct group_drain *d = &g->drain;
    d->counts[0] = g->wire.sent;
    d->counts[1] = g->wire.received;
    d->agreeing = true;
    d->again_at = INT64_MAX;
    d->agreement = (struct agreement){
        .values = d->counts, .count = 2, .op = AGREE_SUM, .object = &g->base};
    return communicator_agree(g->communicator, &d->agreement);
}

int group_agent_begin_close(struct object *p)
{
    struct group *g = group_agent_of(p);
    CHECK(g->queued && g->phase == PHASE_AWAY);
    g->drain.before[0] = UINT64_MAX;
    return group_agent_sum_counts(g);
}

static bool group_agent_is_drained(const struct group_drain *d)
{
    return d->counts[0] == d->counts[1] && d->before[0] == d->counts[0] &&
           d->before[1] == d->counts[1];
}

static int group_agent_finish_close(struct group *g)
{
    CHECK(g->window);
    if (g->spent) /* else it had closed before somebody died */
        window_spend(g->communicator, g->window, &g->spent);
    g->drain.agreeing = false;
    return communicator_closed(g->communicator, &g->base);
}

int group_agent_drain(struct group *g)
{
    struct group_drain *d = &g->drain;
    CHECK(g->queued);
    int rc = group_matching_flush(g);
    if (rc != PCOLL_OK || atomic_load(&g->base.closed))
        return rc;
    if ((rc = group_round_refuse(g)) !=
        PCOLL_OK) /* lists that cross with its leaving */
        return rc;
    if (d->agreeing && atomic_load(&d->agreement.done)) {
        if (group_agent_is_drained(d))
            return group_agent_finish_close(g);
        d->agreeing = false;
        d->before[0] = d->counts[0];
        d->before[1] = d->counts[1];
        d->again_at = communicator_now(g->communicator) + again_after;
    }
    if (d->again_at == INT64_MAX)
        return PCOLL_OK;
    if (communicator_now(g->communicator) >= d->again_at)
        return group_agent_sum_counts(g);
    communicator_alarm(g->communicator, &g->base, d->again_at);
    return PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing: nobody begins anything any more, but words may be under way. The ranks add
 * up what they have sent and taken, until two sums in a row are equal in both
 * (Mattern's four counters). Then the window is left for later.
 */
#include "group.h"

static const int64_t again_after = 1000000; /* ns */

static int add_up(struct pcoll_group *g)
{
    struct drain *d = &g->drain;
    d->counts[0] = g->sent;
    d->counts[1] = g->taken;
    d->agreeing = true;
    d->again_at = INT64_MAX;
    d->agreement = (struct agreement){
        .values = d->counts, .count = 2, .op = AGREE_SUM, .participant = &g->base};
    return context_agree(g->context, &d->agreement);
}

int group_begin_close(struct participant *p)
{
    struct pcoll_group *g = group_of(p);
    g->drain.before[0] = UINT64_MAX;
    return add_up(g);
}

static bool is_drained(const struct drain *d)
{
    return d->counts[0] == d->counts[1] && d->before[0] == d->counts[0] &&
           d->before[1] == d->counts[1];
}

static int finish(struct pcoll_group *g)
{
    window_spend(g->context, g->window, &g->spent);
    g->drain.agreeing = false;
    atomic_store(&g->closed, true);
    return context_closed(g->context, &g->base);
}

int group_drain(struct pcoll_group *g)
{
    struct drain *d = &g->drain;
    int rc = group_flush_match(g);
    if (rc != PCOLL_OK || atomic_load(&g->closed))
        return rc;
    if ((rc = group_refuse(g)) != PCOLL_OK) /* lists that cross with its leaving */
        return rc;
    if (d->agreeing && atomic_load(&d->agreement.done)) {
        if (is_drained(d))
            return finish(g);
        d->agreeing = false;
        d->before[0] = d->counts[0];
        d->before[1] = d->counts[1];
        d->again_at = context_now(g->context) + again_after;
    }
    if (d->again_at == INT64_MAX)
        return PCOLL_OK;
    if (context_now(g->context) >= d->again_at)
        return add_up(g);
    context_alarm(g->context, &g->base, d->again_at);
    return PCOLL_OK;
}

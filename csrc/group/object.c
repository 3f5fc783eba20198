/* SPDX-License-Identifier: Apache-2.0 */
/* Using a grouped allreduce. */
#include <math.h>
#include <string.h>

#include "group/object.h"

#include "base/check.h"

static int group_object_enter_open(pcoll_group *p)
{
    int rc = fail_if_null_as("group", p) ?: user_object_enter_open(&p->base);
    if (rc == PCOLL_OK && p->base.orphan)
        return group_object_leave(p, outage_error(p->base.communicator->outage));
    return rc;
}

int pcoll_group_start(pcoll_group *p, const void *send)
{
    struct group *g = &p->group;
    int rc = fail_if_null(send) ?: group_object_enter_open(p);
    if (rc != PCOLL_OK)
        return rc;
    if (p->waiting)
        return group_object_leave(
            p, fail(PCOLL_ESTATE, "started already: wait for the round first"));
    if (atomic_load(&g->shared.wants_away))
        return group_object_leave(
            p, fail(PCOLL_ESTATE, "this rank has left the groups: rejoin first"));
    char *input = g->window->memory + g->place.input_at;
    if (send != input)
        memcpy(input, send, g->place.count * g->place.element);
    p->waiting = true;
    atomic_fetch_add(&g->shared.started, 1);
    communicator_notify(p->base.communicator, &g->base);
    return group_object_leave(p, PCOLL_OK);
}

static bool group_object_round_complete(void *arg)
{
    pcoll_group *p = arg;
    struct group *g = &p->group;
    return atomic_load(&g->shared.finished) >= atomic_load(&g->shared.started) ||
           atomic_load(&p->base.communicator->failure) || p->base.orphan;
}

int pcoll_group_wait(pcoll_group *p, int64_t timeout_us, void *receive,
                     pcoll_group_round *round)
{
    struct group *g = &p->group;
    int rc = fail_if_null(receive, round) ?: group_object_enter_open(p);
    if (rc != PCOLL_OK)
        return rc;
    if (!p->waiting)
        return group_object_leave(
            p, fail(PCOLL_ESTATE, "not started: there is nothing to wait for"));
    rc = progress_wait(p->base.communicator->progress, group_object_round_complete, p,
                       timeout_us);
    if (rc == PCOLL_OK)
        rc = communicator_check(p->base.communicator);
    if (rc == PCOLL_OK && p->base.orphan)
        rc = outage_error(p->base.communicator->outage);
    if (rc != PCOLL_OK)
        return group_object_leave(p, rc);
    CHECK(atomic_load(&g->shared.finished) == atomic_load(&g->shared.started));
    lock_take(&g->shared.mutex);
    *round = g->shared.outcome;
    lock_release(&g->shared.mutex);
    const char *from =
        round->is_void ? g->window->memory + g->place.input_at : g->now.data.landing;
    if (receive != from)
        memcpy(receive, from, g->place.count * g->place.element);
    p->waiting = false;
    return group_object_leave(p, PCOLL_OK);
}

/* The end of a wait, whose round is over for this caller: another thread that looks at
 * something must not make it fail. */
int pcoll_group_members(pcoll_group *p, uint32_t *ranks, double *shares)
{
    struct group *g = &p->group;
    int rc = fail_if_null_as("group, ranks, shares", p, ranks, shares);
    if (rc != PCOLL_OK)
        return rc;
    if (p->base.ended)
        return fail(PCOLL_ESTATE, "the grouped allreduce has been freed");
    lock_take(&g->shared.mutex);
    memcpy(ranks, g->shared.outcome_ranks, g->shared.outcome.members * sizeof *ranks);
    memcpy(shares, g->shared.outcome_shares,
           g->shared.outcome.members * sizeof *shares);
    lock_release(&g->shared.mutex);
    return PCOLL_OK;
}

/* The driver sees to it; of several wishes in a row it need not see all. */
static int group_object_set_away(pcoll_group *p, bool away)
{
    struct group *g = &p->group;
    int rc = group_object_enter_open(p);
    if (rc != PCOLL_OK)
        return rc;
    if (atomic_exchange(&g->shared.wants_away, away) != away)
        communicator_notify(p->base.communicator, &g->base);
    return group_object_leave(p, PCOLL_OK);
}

int pcoll_group_leave(pcoll_group *p)
{
    return group_object_set_away(p, true);
}

int pcoll_group_rejoin(pcoll_group *p)
{
    return group_object_set_away(p, false);
}

int pcoll_group_look(pcoll_group *p, uint64_t *round, int32_t *away, uint8_t *statuses)
{
    struct group *g = &p->group;
    int rc = fail_if_null(round, away, statuses) ?: group_object_enter(p);
    if (rc != PCOLL_OK)
        return rc;
    *round = atomic_load(&g->shared.shown_round);
    *away = atomic_load(&g->shared.wants_away);
    progress_lock(p->base.communicator->progress);
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        statuses[r] = (uint8_t)g->membership.entries[r].status;
    if (atomic_load(&g->shared.wants_away)) /* the driver may not have come to it yet */
        statuses[g->window->rank] = MEMBER_AWAY;
    progress_unlock(p->base.communicator->progress);
    return group_object_leave(p, rc);
}

int pcoll_group_set_bandwidth(pcoll_group *p, double bandwidth)
{
    struct group *g = &p->group;
    int rc = group_object_enter_open(p);
    if (rc != PCOLL_OK)
        return rc;
    if (!(bandwidth > 0) || !isfinite(bandwidth))
        return group_object_leave(
            p, fail(PCOLL_EINVAL, "bandwidth: expected a number above 0, got %g",
                    bandwidth));
    progress_lock(p->base.communicator->progress);
    group_round_set_bandwidth(g, bandwidth);
    progress_unlock(p->base.communicator->progress);
    return group_object_leave(p, PCOLL_OK);
}

int pcoll_group_get_stats(pcoll_group *p, pcoll_group_stats *stats)
{
    struct group *g = &p->group;
    int rc = fail_if_null(stats) ?: group_object_enter(p);
    if (rc != PCOLL_OK)
        return rc;
    lock_take(&g->shared.mutex);
    *stats = g->shared.stats;
    lock_release(&g->shared.mutex);
    return group_object_leave(p, rc);
}

int pcoll_group_get_shape(pcoll_group *p, pcoll_group_shape *shape)
{
    struct group *g = &p->group;
    int rc = fail_if_null(shape) ?: group_object_enter(p);
    if (rc != PCOLL_OK)
        return rc;
    *shape = (pcoll_group_shape){
        .axes = g->grid.axes,
        .keys = g->dynamic ? PCOLL_KEYS_DYNAMIC : PCOLL_KEYS_STATIC,
        .timeout_us = g->options.timeout_us,
        .window_us = g->options.window_us,
        .bytes = g->place.bytes + group_data_bytes(&g->now.data),
    };
    memcpy(shape->side, g->grid.side, g->grid.axes * sizeof *shape->side);
    return group_object_leave(p, rc);
}

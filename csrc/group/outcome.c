/* SPDX-License-Identifier: Apache-2.0 */
/* What comes of a group's round that is decided: for the application, and for the next
 * rounds. */
#include <string.h>

#include "group/group.h"

#include "base/check.h"

/* As many in a row as there are axes need a full grid: each multiplies the ranks behind
 * a value by a side, and nobody is behind it twice. */
static bool group_round_was_complete(const struct group *g)
{
    const struct group_data *r = &g->now.data;
    return r->group.members == g->grid.side[grid_axis(&g->grid, g->round)] &&
           r->active == r->group.members;
}

static void group_round_publish_outcome(struct group *g, bool counts)
{
    const struct group_data *r = &g->now.data;
    size_t members = counts ? r->group.members : 0;
    CHECK(atomic_load(&g->shared.finished) < atomic_load(&g->shared.started));
    CHECK(g->shared.last_index <= g->round && r->active <= r->group.members);
    lock_take(&g->shared.mutex);
    g->shared.outcome = (struct pcoll_group_round){
        .index = g->round,
        .missed = g->round - g->shared.last_index,
        .axis = grid_axis(&g->grid, g->round),
        .members = (uint32_t)members,
        .position = r->group.position,
        .active = counts ? r->active : 0,
        .exact = counts && g->chain >= g->grid.axes,
        .is_void = !counts,
    };
    memcpy(g->shared.outcome_ranks, r->group.rank, members * sizeof *r->group.rank);
    memcpy(g->shared.outcome_shares, r->group.share, members * sizeof *r->group.share);
    lock_release(&g->shared.mutex);
    g->shared.last_index = g->round + 1;
    atomic_store(&g->shared.shown_round, g->round + 1);
    atomic_fetch_add(&g->shared.finished, 1);
    if (g->communicator->progress)
        progress_wake_waiters(g->communicator->progress);
}

static void group_round_count(struct group *g, bool counts)
{
    bool own = g->now.contribution == CONTRIBUTION_OWN;
    lock_take(&g->shared.mutex);
    g->shared.stats.rounds += own && counts;
    g->shared.stats.void_rounds += own && !counts;
    g->shared.stats.null_rounds += g->now.contribution == CONTRIBUTION_NULL;
    g->shared.stats.matched_ahead += own && g->now.early;
    g->shared.stats.bytes_fetched = g->now.data.bytes_fetched;
    lock_release(&g->shared.mutex);
}

static void group_round_move_cell(struct group *g)
{
    const struct group_members *group = &g->now.data.group;
    uint32_t axis = grid_axis(&g->grid, g->round);
    uint32_t chunk =
        grid_chunk(&g->grid, g->membership.ranks, g->round,
                   grid_line(&g->grid, g->cell, axis), group->position, group->members);
    g->cell = grid_move(&g->grid, g->cell, axis, chunk);
}

int group_round_finish(struct group *g)
{
    bool counts = g->now.decision == DECISION_COMMIT;
    CHECK(g->now.decision != DECISION_PENDING);
    CHECK(!counts || g->now.marked);
    group_round_measure_bandwidth(g);
    g->chain = counts && group_round_was_complete(g) ? g->now.chain + 1 : 0;
    group_round_count(g, counts);
    if (g->now.contribution == CONTRIBUTION_OWN)
        group_round_publish_outcome(g, counts);
    if (counts && g->dynamic)
        group_round_move_cell(g);
    match_end(&g->match);
    g->round++;
    return group_data_end(&g->now.data);
}

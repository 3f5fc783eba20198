/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes part changes; see members.h. */
#include "group/group.h"

#include "base/check.h"

void group_wire_membership_changed(struct group *g, uint32_t rank)
{
    CHECK(rank < g->membership.ranks && rank != g->window->rank);
    if (membership_takes_part(&g->membership, rank, g->round))
        match_back(&g->match, g->clock.time, rank);
    else
        match_lost(&g->match, g->clock.time, rank);
    g->matching.members_changed = true;
}

int group_wire_suspect(struct group *g, uint32_t rank)
{
    CHECK(rank != g->window->rank);
    uint32_t returns = g->membership.entries[rank].returns;
    if (!membership_set(&g->membership, rank, MEMBER_SUSPECT, returns))
        return PCOLL_OK;
    group_wire_membership_changed(g, rank);
    lock_take(&g->shared.mutex);
    g->shared.stats.suspected++;
    lock_release(&g->shared.mutex);
    return group_wire_announce(g, rank, MEMBER_SUSPECT, returns);
}

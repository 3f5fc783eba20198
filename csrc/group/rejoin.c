/* SPDX-License-Identifier: Apache-2.0 */
/* Leaving and coming back; see rejoin.h. */
#include "group/group.h"

#include "base/check.h"

int group_agent_leave(struct group *g)
{
    uint32_t rank = g->window->rank, returns = g->membership.entries[rank].returns;
    CHECK(g->phase == PHASE_AWAY && !match_bound(&g->match));
    g->rejoin.suspected = false;
    membership_set(&g->membership, rank, MEMBER_AWAY, returns);
    return group_wire_announce(g, rank, MEMBER_AWAY, returns);
}

/* Not in a round that it has left: nobody needs to wait for it there. */
int group_agent_begin_rejoin(struct group *g)
{
    uint32_t rank = g->window->rank, returns = g->membership.entries[rank].returns + 1;
    if (g->round < match_first(&g->match))
        g->round = match_first(&g->match);
    membership_set(&g->membership, rank, MEMBER_LIVE, returns);
    CHECK(g->phase == PHASE_ASKING && membership_is_live(&g->membership, rank));
    g->chain = 0;
    g->rejoin = (struct group_rejoin){.highest = g->round,
                                      .wait_until = g->clock.time +
                                                    group_agent_timeout_ns(g) / 10};
    return group_wire_announce(g, rank, MEMBER_LIVE, returns);
}

static bool group_agent_has_answers(const struct group *g)
{
    return g->rejoin.answers >= membership_others(&g->membership, g->window->rank) ||
           g->clock.time >= g->rejoin.wait_until;
}

int group_agent_continue_rejoin(struct group *g, enum group_phase *next)
{
    if (!group_agent_has_answers(g) && !group_agent_leaves(g))
        return PCOLL_OK;
    CHECK(g->phase == PHASE_ASKING && g->rejoin.highest >= g->round);
    g->round = group_agent_round_to_join(g);
    *next = PHASE_IDLE;
    return group_agent_leaves(g) ? PCOLL_OK : group_wire_announce_join(g);
}

/* An answer to an earlier return does not know how far the rounds have got since. */
void group_agent_on_round(struct group *g, const struct group_message *m)
{
    struct group_rejoin *r = &g->rejoin;
    CHECK(m->source < g->membership.ranks && m->source != g->window->rank);
    if (m->returns != g->membership.entries[g->window->rank].returns)
        return;
    r->answers += g->membership.entries[m->source].status != MEMBER_SUSPECT;
    if (m->round > r->highest)
        r->highest = m->round;
}

uint64_t group_agent_round_to_join(const struct group *g)
{
    CHECK(g->phase != PHASE_ASKING || g->rejoin.highest >= g->round);
    return g->phase == PHASE_ASKING ? g->rejoin.highest
                                    : g->round + (g->phase == PHASE_ROUND);
}

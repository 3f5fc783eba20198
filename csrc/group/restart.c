/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks have died: a grouped allreduce begins anew among those who live, who all stand
 * still. Messages under way are lost, windows are as they were.
 *
 *   the round     is decided by the word of its group, which cannot change any more once a
 *                 member has read it here: it counts if all had all they needed, the dead
 *                 among them. Else it is void at once if one of its members has died, and if
 *                 not it has never been: the contribution goes into the next one.
 *   matchmaking   begins anew, in a round that nobody has begun yet, so that nothing that
 *                 lies in windows is taken for a part of it.
 *   membership    is what each says of itself now. The dead are DEAD, which no word of
 *                 anybody changes; nobody else is suspected.
 */
#include "group/group.h"
#include "group/vote.h"

#include "base/check.h"

enum { WORD_LIVES = 1, WORD_AWAY = 2, WORD_RETURNS = 4 };

uint64_t group_agent_state_word(const struct group *g)
{
    const struct membership_entry *own = &g->membership.entries[g->window->rank];
    CHECK(own->status != MEMBER_SUSPECT);
    return WORD_LIVES | (own->status == MEMBER_AWAY ? WORD_AWAY : 0) |
           (uint64_t)own->returns * WORD_RETURNS;
}

static bool group_agent_lost_member(const struct group *g, const uint64_t *words)
{
    const struct group_members *group = &g->now.data.group;
    for (uint32_t i = 0; i < group->members; i++)
        if (!words[group->rank[i]])
            return true;
    return false;
}

/* A word that has been opened again says nothing: then the round is void, since it lasted for
 * as many rounds of its leader as there are words (it takes a process that stood still). */
static int group_agent_decide(struct group *g)
{
    struct group_round *now = &g->now;
    enum decision decision = now->decision;
    int rc = PCOLL_OK;
    if (decision == DECISION_PENDING)
        rc = group_window_vote(g->window, now->name.leader, g->place.decisions_at,
                               now->name.seq, now->data.group.members, VOTE_ABORT,
                               &decision);
    now->decision = decision == DECISION_COMMIT ? decision : DECISION_ABORT;
    return rc;
}

static int group_agent_end_round(struct group *g, const uint64_t *words)
{
    struct group_round *now = &g->now;
    int rc = group_agent_decide(g);
    bool again = now->decision == DECISION_ABORT && !group_agent_lost_member(g, words);
    if (again && now->contribution == CONTRIBUTION_OWN) {
        g->shared.consumed--;
        now->contribution = CONTRIBUTION_OPEN;
    }
    return rc == PCOLL_OK ? group_round_finish(g) : rc;
}

static void group_agent_take_membership(struct group *g, const uint64_t *words,
                                        uint64_t round)
{
    for (uint32_t r = 0; r < g->membership.ranks; r++) {
        enum member_status status = words[r] & WORD_AWAY ? MEMBER_AWAY : MEMBER_LIVE;
        membership_agreed(&g->membership, r, words[r] ? status : MEMBER_DEAD,
                          (uint32_t)(words[r] / WORD_RETURNS), round);
        g->wire.received_at[r] = g->clock.time;
    }
}

int group_agent_check_words(const struct group *g, const uint64_t *words,
                            uint64_t round)
{
    bool sound = round >= g->round && round <= ROUND_LAST + 2 &&
                 words[g->window->rank] == group_agent_state_word(g);
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        sound &= !words[r] ||
                 (words[r] & WORD_LIVES && words[r] / WORD_RETURNS <= UINT32_MAX &&
                  g->membership.entries[r].status != MEMBER_DEAD);
    return sound
               ? PCOLL_OK
               : fail(PCOLL_EPROTOCOL, "the ranks of a grouped allreduce that are left "
                                       "agreed on a state that cannot be");
}

int group_agent_restart(struct group *g, const uint64_t *words, uint64_t round)
{
    int rc = group_agent_check_words(g, words, round);
    if (rc != PCOLL_OK)
        return rc;
    rc = g->phase == PHASE_ROUND ? group_agent_end_round(g, words) : PCOLL_OK;
    group_wire_update_clock(g);
    match_restart(&g->match, round);
    group_agent_take_membership(g, words, round);
    bool away = words[g->window->rank] & WORD_AWAY;
    g->phase = away ? PHASE_AWAY : PHASE_IDLE;
    g->round = round;
    g->chain = 0;
    g->matching.members_changed = false;
    g->rejoin.suspected = false;
    g->wire.sent = g->wire.received = 0;
    g->drain.agreeing = g->queued = false;
    g->drain.again_at = g->base.alarm = INT64_MAX;
    return rc;
}

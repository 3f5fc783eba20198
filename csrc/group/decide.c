/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decision on a group's round (protocol/group/decision.h), as this rank takes part
 * in it: it votes, learns, tells the other members; and where it leads, far members
 * vote by messages.
 */
#include "group/group.h"
#include "group/vote.h"

#include "base/check.h"
#include "base/moment.h"

/* All members have to vote before a round counts. */
int group_round_check_decision(const struct group *g, enum decision decision)
{
    return decision == DECISION_COMMIT && !g->now.marked
               ? fail(PCOLL_EPROTOCOL,
                      "round %llu of a grouped allreduce is said to count, and this "
                      "rank has not voted in it",
                      (unsigned long long)g->round)
               : PCOLL_OK;
}

static int group_round_learn(struct group *g, enum decision decision)
{
    struct group_round *now = &g->now;
    const struct group_members *group = &now->data.group;
    CHECK(decision != DECISION_PENDING);
    if (now->decision != DECISION_PENDING)
        return PCOLL_OK;
    int rc = group_round_check_decision(g, decision);
    if (rc != PCOLL_OK)
        return rc;
    now->decision = decision;
    MOMENT("decided");
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (i != group->position)
            rc = group_wire_send_decision(g, group->rank[i], now->name, decision);
    return rc;
}

int group_round_on_abort(struct group *g, struct group_name name)
{
    CHECK(name.leader == g->window->rank);
    if (g->phase != PHASE_ROUND || !group_wire_same_name(g->now.name, name))
        return PCOLL_OK;
    return group_round_learn(g, DECISION_ABORT);
}

int group_round_vote(struct group *g, enum decision_vote vote)
{
    struct group_round *now = &g->now;
    enum decision decision;
    CHECK(g->phase == PHASE_ROUND && (vote != VOTE_DONE || now->marked));
    now->voted = g->clock.time;
    int rc = group_window_request_vote(g, now->name, vote, now->data.group.members,
                                       &decision);
    MOMENT("voted");
    if (rc != PCOLL_OK || decision == DECISION_PENDING)
        return rc;
    if (decision == DECISION_EXPIRED && now->marked)
        return PCOLL_OK; /* it may have counted; the word of it is on its way */
    return group_round_learn(g,
                             decision == DECISION_COMMIT ? decision : DECISION_ABORT);
}

int group_round_abort(struct group *g)
{
    CHECK(g->now.decision == DECISION_PENDING);
    int rc = group_round_vote(g, VOTE_ABORT);
    return rc == PCOLL_OK && !g->now.marked ? group_round_learn(g, DECISION_ABORT) : rc;
}

int group_round_on_vote(struct group *g, uint32_t source, struct group_name name,
                        enum decision_vote vote, uint32_t members)
{
    CHECK(name.leader == g->window->rank && vote != VOTE_OPEN);
    enum decision decision;
    int rc = group_window_vote(g->window, g->window->rank, g->place.decisions_at,
                               name.seq, members, vote, &decision);
    if (rc != PCOLL_OK || decision == DECISION_PENDING)
        return rc;
    if (g->phase == PHASE_ROUND && group_wire_same_name(g->now.name, name))
        return group_round_learn(g, decision);
    if (decision == DECISION_EXPIRED)
        return rc; /* has been told, and there is no telling now what it was */
    return group_wire_send_decision(g, source, name, decision);
}

static int group_round_refuse_one(struct group *g, struct group_name name)
{
    enum decision decision;
    int rc = group_window_request_vote(g, name, VOTE_ABORT, UINT32_MAX, &decision);
    if (rc != PCOLL_OK || decision != DECISION_ABORT)
        return rc;
    if (name.leader == g->window->rank)
        return group_round_on_abort(g, name);
    return group_wire_send_decision(g, name.leader, name, decision);
}

int group_round_refuse(struct group *g)
{
    struct match_refusal refused;
    int rc = PCOLL_OK;
    CHECK(g->match.refusals <= g->membership.ranks);
    while (rc == PCOLL_OK && match_refused(&g->match, &refused))
        rc =
            group_round_refuse_one(g, (struct group_name){refused.leader, refused.seq});
    return rc;
}

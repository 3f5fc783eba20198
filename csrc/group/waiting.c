/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting in a group's round: every member lets the others know that it is there four
 * times in a timeout T while the round lasts. Whoever has contributed for T/2 passes
 * over those whose application has not come: their agents go on without it. A member
 * that has sent nothing for T aborts the round. Whoever has waited for T/2 for its
 * group to be found nudges those it waits for (matching.c): they may be in an earlier
 * round in which nobody has come yet.
 */
#include "group/group.h"

#include "base/check.h"

static bool group_round_is_silent(const struct group *g, uint32_t member, int64_t time)
{
    int64_t since = g->now.received_at[member] > g->now.began
                        ? g->now.received_at[member]
                        : g->now.began;
    return member != g->now.data.group.position &&
           time - since > group_agent_timeout_ns(g);
}

/* It left while its leader closed the list, has never seen it and puts nothing in: who
 * has seen the list finishes the round before it is away. */
static bool group_round_is_gone(const struct group *g, uint32_t member)
{
    uint32_t rank = g->now.data.group.rank[member];
    return g->membership.entries[rank].status == MEMBER_AWAY &&
           !g->now.data.known[member];
}

static int group_round_abort_on_silence(struct group *g, int64_t time)
{
    const struct group_members *group = &g->now.data.group;
    bool silent = false;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (group_round_is_silent(g, i, time) || group_round_is_gone(g, i)) {
            silent = true;
            rc = group_wire_suspect(g, group->rank[i]);
        }
    if (rc != PCOLL_OK || !silent || time < g->now.abort_after)
        return rc;
    g->now.abort_after =
        time + group_agent_timeout_ns(g) / 4; /* should the leader not answer */
    return group_round_abort(g);
}

static int group_round_send(struct group *g, enum group_wire_kind kind,
                            bool only_missing)
{
    const struct group_members *group = &g->now.data.group;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (i != group->position && !(only_missing && g->now.data.known[i]))
            rc = group_wire_send_about(g, group->rank[i], kind, g->now.name, 0);
    return rc;
}

/* By the process's time: one that stood still has sent none meanwhile. */
int group_round_heartbeat(void *arg)
{
    struct group *g = arg;
    CHECK(g->phase == PHASE_ROUND);
    group_wire_update_clock(g);
    int64_t now = group_wire_process_time(&g->clock);
    if (now - g->now.heartbeat < group_agent_timeout_ns(g) / 4)
        return PCOLL_OK;
    g->now.heartbeat = now;
    return group_round_send(g, WIRE_HEARTBEAT, false);
}

int group_round_watch_members(struct group *g)
{
    struct group_round *now = &g->now;
    CHECK(now->decision == DECISION_PENDING);
    int rc = group_round_heartbeat(g);
    int64_t time = g->clock.time, quarter = group_agent_timeout_ns(g) / 4;
    if (now->contribution == CONTRIBUTION_OPEN || rc != PCOLL_OK)
        return rc;
    if (!now->passed_over && time - now->began >= 2 * quarter) {
        now->passed_over = true;
        rc = group_round_send(g, WIRE_PASS, true);
    }
    if (rc == PCOLL_OK && now->marked && time - now->voted >= quarter)
        rc = group_round_vote(g, VOTE_NOTHING);
    return rc == PCOLL_OK && now->decision == DECISION_PENDING
               ? group_round_abort_on_silence(g, time)
               : rc;
}

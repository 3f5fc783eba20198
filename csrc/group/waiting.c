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

static bool is_silent(const struct group *g, uint32_t member, int64_t time)
{
    int64_t since = g->now.received_at[member] > g->now.began
                        ? g->now.received_at[member]
                        : g->now.began;
    return member != g->now.data.group.position && time - since > group_timeout_ns(g);
}

/* It left while its leader closed the list, has never seen it and puts nothing in: who
 * has seen the list finishes the round before it is away. */
static bool is_gone(const struct group *g, uint32_t member)
{
    uint32_t rank = g->now.data.group.rank[member];
    return g->membership.entries[rank].status == MEMBER_AWAY &&
           !g->now.data.known[member];
}

static int find_silent(struct group *g, int64_t time)
{
    const struct group_members *group = &g->now.data.group;
    bool silent = false;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (is_silent(g, i, time) || is_gone(g, i)) {
            silent = true;
            rc = group_suspect(g, group->rank[i]);
        }
    if (rc != PCOLL_OK || !silent || time < g->now.abort_after)
        return rc;
    g->now.abort_after =
        time + group_timeout_ns(g) / 4; /* should the leader not answer */
    return group_abort(g);
}

static int send_to_members(struct group *g, enum wire_kind kind, bool only_missing)
{
    const struct group_members *group = &g->now.data.group;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (i != group->position && !(only_missing && g->now.data.known[i]))
            rc = group_send_about(g, group->rank[i], kind, g->now.name, 0);
    return rc;
}

/* By the process's time: one that stood still has sent none meanwhile. */
int group_heartbeat(void *arg)
{
    struct group *g = arg;
    CHECK(g->phase == PHASE_ROUND);
    group_poll_clock(g);
    int64_t now = clock_of_process(&g->clock);
    if (now - g->now.heartbeat < group_timeout_ns(g) / 4)
        return PCOLL_OK;
    g->now.heartbeat = now;
    return send_to_members(g, WIRE_HEARTBEAT, false);
}

int group_wait_for_members(struct group *g)
{
    struct running *now = &g->now;
    CHECK(now->decision == DECISION_PENDING);
    int rc = group_heartbeat(g);
    int64_t time = g->clock.time, quarter = group_timeout_ns(g) / 4;
    if (now->contribution == CONTRIBUTION_OPEN || rc != PCOLL_OK)
        return rc;
    if (!now->passed_over && time - now->began >= 2 * quarter) {
        now->passed_over = true;
        rc = send_to_members(g, WIRE_PASS, true);
    }
    if (rc == PCOLL_OK && now->marked && time - now->voted >= quarter)
        rc = group_vote(g, VOTE_NOTHING);
    return rc == PCOLL_OK && now->decision == DECISION_PENDING ? find_silent(g, time)
                                                               : rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A group's round on one rank; see running.h. */
#include <math.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "group/group.h"
#include "protocol/group/shares.h"

#include "base/check.h"
#include "base/moment.h"

enum { FIRST_BACKOFF_NS = 20000, LAST_BACKOFF_NS = 500000, GRAIN_BYTES = 64 };

/* From the list to the group. */

static bool group_round_know_bandwidths(const struct match_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (!(list->members[i].bandwidth > 0))
            return false;
    return true;
}

static int group_round_share_out(struct group *g, const struct match_list *list)
{
    struct group_members *group = &g->now.data.group;
    double *bandwidth = g->now.bandwidths;
    bool known = group_round_know_bandwidths(list);
    for (uint32_t i = 0; i < list->count; i++)
        bandwidth[i] = known ? (double)list->members[i].bandwidth : 1.0;
    int rc = grid_shares(bandwidth, list->count, group->share);
    if (rc == PCOLL_OK)
        grid_bounds(group->share, list->count, g->place.count,
                    GRAIN_BYTES / g->place.element, group->bound);
    return rc;
}

static void group_round_fill_members(struct group *g, const struct match_list *list)
{
    struct group_members *group = &g->now.data.group;
    CHECK(list->count <= g->now.data.max_members);
    group->members = list->count;
    g->now.chain = UINT32_MAX;
    for (uint32_t i = 0; i < list->count; i++) {
        group->rank[i] = list->members[i].rank;
        if (group->rank[i] == g->window->rank)
            group->position = i;
        if (list->members[i].chain < g->now.chain)
            g->now.chain = list->members[i].chain;
    }
    CHECK(group->position < list->count &&
          group->rank[group->position] == g->window->rank);
}

static uint32_t group_round_member_of(const struct group *g, uint32_t rank)
{
    const struct group_members *group = &g->now.data.group;
    uint32_t i = 0;
    while (i < group->members && group->rank[i] != rank)
        i++;
    return i;
}

static int group_round_apply_decision(struct group *g, uint32_t bits)
{
    struct group_round *now = &g->now;
    if (now->decision != DECISION_PENDING || !(bits & (NOTICE_ABORT | NOTICE_COMMIT)))
        return PCOLL_OK;
    enum decision decision = bits & NOTICE_COMMIT ? DECISION_COMMIT : DECISION_ABORT;
    int rc = group_round_check_decision(g, decision);
    if (rc == PCOLL_OK)
        now->decision = decision;
    return rc;
}

static int group_round_apply_notice(struct group *g, uint32_t rank)
{
    const struct group_notice *n = &g->now.notices[rank];
    struct group_round *now = &g->now;
    if (g->phase != PHASE_ROUND || !group_wire_same_name(n->name, now->name))
        return PCOLL_OK;
    uint32_t member = group_round_member_of(g, rank);
    if (member < now->data.group.members) {
        now->received_at[member] = g->clock.time;
        if (n->bits & (NOTICE_INPUT | NOTICE_NULL))
            group_data_input(&now->data, member, n->bits & NOTICE_INPUT);
        if (n->bits & NOTICE_PART)
            group_data_part(&now->data, member);
    }
    if (n->bits & NOTICE_PASS)
        now->passed = true;
    return group_round_apply_decision(g, n->bits);
}

int group_round_begin(struct group *g)
{
    const struct match_list *list = match_list(&g->match);
    struct group_round *now = &g->now;
    CHECK(g->phase == PHASE_ROUND && list->round == g->round);
    int64_t time = g->clock.time;
    group_round_fill_members(g, list);
    now->name = (struct group_name){list->leader, list->seq};
    now->contribution = CONTRIBUTION_OPEN;
    now->decision = DECISION_PENDING;
    now->marked = now->passed = now->passed_over = false;
    now->began = time;
    now->voted = time;
    now->heartbeat = group_wire_process_time(&g->clock);
    now->abort_after = 0;
    now->backoff = FIRST_BACKOFF_NS;
    now->early = !group_agent_was_started(g);
    int rc = group_round_share_out(g, list);
    if (rc == PCOLL_OK)
        rc = group_data_prepare(&now->data);
    for (uint32_t i = 0; i < list->count && rc == PCOLL_OK; i++) {
        now->received_at[i] = time;
        rc = group_round_apply_notice(g, now->data.group.rank[i]);
    }
    return rc;
}

int group_round_on_notice(struct group *g, uint32_t source, struct group_name name,
                          uint32_t bits, uint32_t rate)
{
    CHECK(source < g->membership.ranks);
    struct group_notice *n = &g->now.notices[source];
    if (!group_wire_same_name(n->name, name))
        *n = (struct group_notice){.name = name};
    n->bits |= bits;
    n->rate += rate;
    return group_round_apply_notice(g, source);
}

int group_round_notify(void *arg, uint32_t member, int edge)
{
    struct group *g = arg;
    CHECK(member < g->now.data.group.members && member != g->now.data.group.position);
    uint32_t rank = g->now.data.group.rank[member];
    double rate = fmin(g->now.data.meter.rate[member] / KIB, UINT32_MAX);
    if (edge == BUTTERFLY_RESULT)
        return group_wire_send_about(g, rank, WIRE_PART, g->now.name, (uint64_t)rate);
    return group_wire_send_about(g, rank, WIRE_INPUT, g->now.name,
                                 group_data_contributes(&g->now.data) ? NOTICE_INPUT
                                                                      : NOTICE_NULL);
}

/* What this rank puts in. */

static int group_round_contribute(struct group *g)
{
    struct group_round *now = &g->now;
    bool leaves = atomic_load(&g->shared.wants_away) || g->shared.closing;
    if (now->contribution != CONTRIBUTION_OPEN)
        return PCOLL_OK;
    if (group_agent_was_started(g)) {
        g->shared.consumed++;
        CHECK(g->shared.consumed == atomic_load(&g->shared.started));
        now->contribution = CONTRIBUTION_OWN;
        MOMENT("contributed");
    } else if (leaves || now->passed)
        now->contribution = CONTRIBUTION_NULL;
    else
        return PCOLL_OK;
    now->began = g->clock.time;
    return group_data_start(&now->data, now->contribution == CONTRIBUTION_OWN);
}

int group_round_on_nudge(struct group *g, uint64_t round)
{
    struct group_round *now = &g->now;
    const struct group_members *group = &now->data.group;
    int rc = PCOLL_OK;
    if (g->phase != PHASE_ROUND || g->round >= round || now->passed ||
        now->contribution != CONTRIBUTION_OPEN)
        return rc;
    CHECK(!now->marked);
    now->passed = true;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (i != group->position)
            rc = group_wire_send(g, group->rank[i], WIRE_NUDGE, 0, round,
                                 (uint64_t[4]){true});
    return rc;
}

static int group_round_mark_done(struct group *g)
{
    if (g->now.marked || !group_data_complete(&g->now.data))
        return PCOLL_OK;
    CHECK(g->now.contribution != CONTRIBUTION_OPEN);
    g->now.marked = true;
    MOMENT("about to vote");
    return group_round_vote(g, VOTE_DONE);
}

static int group_round_step(struct group *g)
{
    int rc = group_round_contribute(g);
    if (rc == PCOLL_OK)
        rc = group_data_run(&g->now.data);
    if (rc == PCOLL_OK && g->now.decision == DECISION_PENDING)
        rc = group_round_mark_done(g);
    if (rc == PCOLL_OK && g->now.decision == DECISION_PENDING)
        rc = group_round_watch_members(g);
    return rc;
}

int group_round_continue(struct group *g, enum group_phase *next)
{
    bool ended;
    CHECK(g->phase == PHASE_ROUND && match_list(&g->match));
    int rc = group_data_poll(&g->now.data, &ended);
    if (ended)
        g->now.backoff = FIRST_BACKOFF_NS;
    if (rc == PCOLL_OK && g->now.decision == DECISION_PENDING)
        rc = group_round_step(g);
    if (rc != PCOLL_OK || g->now.decision == DECISION_PENDING)
        return rc;
    *next = PHASE_IDLE;
    return group_round_finish(g);
}

int64_t group_round_alarm(struct group *g)
{
    struct group_round *now = &g->now;
    int64_t at = g->phase == PHASE_ROUND
                     ? now->heartbeat - g->clock.behind + group_agent_timeout_ns(g) / 4
                     : INT64_MAX;
    if (!now->data.under_way && !now->data.abandoned)
        return at;
    CHECK(now->backoff > 0);
    int64_t soon = g->clock.time + now->backoff;
    now->backoff =
        2 * now->backoff < LAST_BACKOFF_NS ? 2 * now->backoff : LAST_BACKOFF_NS;
    return soon < at ? soon : at;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A group's round on one rank; see group_agent.h. */

#include "group/group_agent.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "group/group_wire.h"
#include "protocol/group/grid.h"

enum { KIB = 1024 };

void group_round_set_bandwidth(struct group *g, double bandwidth)
{
    CHECK(bandwidth >= 0);
    double told = bandwidth < (double)FLT_MAX ? bandwidth : (double)FLT_MAX;
    g->bandwidth.told = bandwidth > 0 ? (float)fmax(told, (double)FLT_MIN) : 0;
    g->shared.stats.bandwidth = bandwidth;
}

/* The link can receive what the rank has received, and send what all other members together have
 * fetched from it. The smaller of the two counts (appendix G). */
static void group_round_measure_bandwidth(struct group *g)
{
    const struct group_members *group = &g->now.data.group;
    struct group_bandwidth *b = &g->bandwidth;
    double rate = g->now.data.meter.download, upload = 0;
    if (!g->options.measure)
        return;
    for (uint32_t i = 0; i < group->members; i++) {
        const struct group_notice *n = &g->now.notices[group->rank[i]];
        if (i != group->position && group_wire_same_name(n->name, g->now.name))
            upload += (double)n->rate * KIB;
    }
    if (upload > 0 && (rate == 0 || upload < rate))
        rate = upload;
    if (rate > 0)
        b->measured = b->measured > 0 ? (b->measured + rate) / 2 : rate;
    if (b->measured > 0 && b->rounds++ % g->options.every == 0)
        group_round_set_bandwidth(g, b->measured);
}

/* The decision. Far members vote by messages where this rank leads. */

/* Send all other members a notice about the group, or those whose input is missing. */
static int group_round_send(struct group *g, enum group_notice_bit bit,
                            bool only_missing)
{
    const struct group_members *group = &g->now.data.group;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (i != group->position && !(only_missing && g->now.data.state[i].known))
            rc = group_wire_send_notice(g, group->rank[i], g->now.name, bit, 0);
    return rc;
}

/* The round is decided. Tell the other members, unless one of them has told this rank. */
static int group_round_learn(struct group *g, enum decision decision, bool told)
{
    struct group_round *now = &g->now;
    CHECK(decision != DECISION_PENDING);
    if (now->decision != DECISION_PENDING)
        return PCOLL_OK;
    if (decision == DECISION_COMMIT && !now->marked)
        return fail(PCOLL_EPROTOCOL,
                    "round %llu of a grouped allreduce is said to count, and this rank "
                    "has not voted in it",
                    (unsigned long long)g->round);
    now->decision = decision;
    if (told)
        return PCOLL_OK;
    MOMENT("decided");
    return group_round_send(g, group_wire_bit_of(decision), false);
}

/* Return whether this rank is in a round of this group. */
static bool group_round_is(const struct group *g, struct group_name name)
{
    return g->phase == PHASE_ROUND && group_wire_same_name(g->now.name, name);
}

static int group_round_vote(struct group *g, enum decision_vote vote)
{
    struct group_round *now = &g->now;
    enum decision decision;
    CHECK(g->phase == PHASE_ROUND && (vote != VOTE_DONE || now->marked));
    now->voted = g->clock.time;
    int rc = group_window_vote(g, now->name, vote, now->data.group.members, &decision);
    MOMENT("voted");
    if (rc != PCOLL_OK || decision == DECISION_PENDING)
        return rc;
    if (decision == DECISION_EXPIRED && now->marked)
        return PCOLL_OK; /* The round may have counted. The leader's message says so. */
    return group_round_learn(g, decision == DECISION_COMMIT ? decision : DECISION_ABORT,
                             false);
}

int group_round_on_vote(struct group *g, const struct group_message *m)
{
    struct group_name name = m->values.name;
    CHECK(name.leader == g->window->rank && m->values.vote != VOTE_OPEN);
    enum decision decision;
    int rc = group_window_vote(g, name, (enum decision_vote)m->values.vote,
                               m->values.members, &decision);
    if (rc != PCOLL_OK || decision == DECISION_PENDING)
        return rc;
    if (group_round_is(g, name))
        return group_round_learn(g, decision, false);
    if (decision == DECISION_EXPIRED)
        return rc; /* The leader has sent it; it is no longer known here. */
    return group_wire_send_notice(g, m->source, name, group_wire_bit_of(decision), 0);
}

int group_round_refuse(struct group *g)
{
    struct match_refusal refused;
    enum decision decision;
    int rc = PCOLL_OK;
    while (rc == PCOLL_OK && match_refused(&g->match, &refused)) {
        struct group_name name = {refused.leader, refused.seq};
        rc = group_window_vote(g, name, VOTE_ABORT, UINT32_MAX, &decision);
        if (rc != PCOLL_OK || decision != DECISION_ABORT)
            continue;
        if (name.leader != g->window->rank)
            rc = group_wire_send_notice(g, name.leader, name, NOTICE_ABORT, 0);
        else if (group_round_is(g, name))
            rc = group_round_learn(g, decision, false);
    }
    return rc;
}

/* Silence; see group_agent.h. */

/* Suspect the members that are silent, and those that have left without contributing. Such a
 * member left while its leader closed the list, and has never seen the list: otherwise it would
 * finish the round first. */
static int group_round_abort_on_silence(struct group *g)
{
    const struct group_round *now = &g->now;
    const struct group_members *group = &now->data.group;
    int64_t time = g->clock.time, timeout = group_agent_timeout_ns(g);
    bool lost = false;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++) {
        int64_t last = now->received_at[i];
        bool left = g->membership.entries[group->rank[i]].status == MEMBER_AWAY &&
                    !now->data.state[i].known;
        if (i == group->position ||
            (time - (last > now->began ? last : now->began) <= timeout && !left))
            continue;
        lost = true;
        rc = group_wire_suspect(g, group->rank[i]);
    }
    if (rc != PCOLL_OK || !lost || time < now->abort_after)
        return rc;
    g->now.abort_after = time + timeout / 4; /* Vote again if there is no answer. */
    rc = group_round_vote(g, VOTE_ABORT);
    /* Without this member's mark the round cannot count, so it leaves. */
    return rc == PCOLL_OK && !now->marked ? group_round_learn(g, DECISION_ABORT, false)
                                          : rc;
}

/* Heartbeats follow the time of the process, because a process that was suspended has
 * sent none in the meantime. */
int group_round_heartbeat(struct group *g)
{
    CHECK(g->phase == PHASE_ROUND);
    group_wire_update_clock(g);
    int64_t now = group_wire_process_time(&g->clock);
    if (now - g->now.heartbeat < group_agent_timeout_ns(g) / 4)
        return PCOLL_OK;
    g->now.heartbeat = now;
    return group_round_send(g, NOTICE_ALIVE, false);
}

/* Pass over late applications, read the decision, and suspect silent members. */
static int group_round_watch_members(struct group *g)
{
    struct group_round *now = &g->now;
    int rc = group_round_heartbeat(g);
    int64_t time = g->clock.time, quarter = group_agent_timeout_ns(g) / 4;
    if (now->contribution == CONTRIBUTION_OPEN || rc != PCOLL_OK)
        return rc;
    if (!now->passed_over && time - now->began >= 2 * quarter) {
        now->passed_over = true;
        rc = group_round_send(g, NOTICE_PASS, true);
    }
    if (rc == PCOLL_OK && now->marked && time - now->voted >= quarter)
        rc = group_round_vote(g, VOTE_NOTHING);
    return rc == PCOLL_OK && now->decision == DECISION_PENDING
               ? group_round_abort_on_silence(g)
               : rc;
}

/* The outcome, for the application and for the next rounds. */

static void group_round_publish_outcome(struct group *g, bool counts)
{
    const struct group_data *r = &g->now.data;
    size_t members = counts ? r->group.members : 0;
    CHECK(atomic_load(&g->shared.finished) < atomic_load(&g->shared.started));
    CHECK(g->shared.last_index <= g->round && r->active <= r->group.members);
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
    g->shared.last_index = g->round + 1;
    atomic_store(&g->shared.shown_round, g->round + 1);
    atomic_fetch_add(&g->shared.finished, 1);
    if (g->communicator->progress)
        progress_wake_waiters(g->communicator->progress);
}

int group_round_finish(struct group *g)
{
    const struct group_data *r = &g->now.data;
    bool counts = g->now.decision == DECISION_COMMIT;
    bool own = g->now.contribution == CONTRIBUTION_OWN;
    uint32_t axis = grid_axis(&g->grid, g->round);
    CHECK(g->now.decision != DECISION_PENDING);
    CHECK(!counts || g->now.marked);
    group_round_measure_bandwidth(g);
    /* Was the group full, and did all its members contribute? On a full grid, such rounds
     * along all axes in a row make the average of all ranks: each multiplies the number of
     * ranks behind a value by a side, and no rank is counted twice. */
    bool complete =
        r->group.members == g->grid.side[axis] && r->active == r->group.members;
    g->chain = counts && complete ? g->now.chain + 1 : 0;
    g->shared.stats.rounds += own && counts;
    g->shared.stats.void_rounds += own && !counts;
    g->shared.stats.null_rounds += g->now.contribution == CONTRIBUTION_NULL;
    g->shared.stats.matched_ahead += own && g->now.early;
    g->shared.stats.bytes_fetched = r->bytes_fetched;
    if (own)
        group_round_publish_outcome(g, counts);
    if (counts && g->dynamic)
        g->cell = grid_move(&g->grid, g->cell, axis,
                            grid_chunk(&g->grid, g->membership.ranks, g->round,
                                       grid_line(&g->grid, g->cell, axis),
                                       r->group.position, r->group.members));
    match_end(&g->match);
    g->round++;
    return group_data_end(&g->now.data);
}

enum { FIRST_BACKOFF_NS = 20000, LAST_BACKOFF_NS = 500000, GRAIN_BYTES = 64 };

static int group_round_apply_notice(struct group *g, uint32_t rank)
{
    const struct group_notice *n = &g->now.notices[rank];
    struct group_round *now = &g->now;
    if (!group_round_is(g, n->name))
        return PCOLL_OK;
    uint32_t member = 0;
    while (member < now->data.group.members && now->data.group.rank[member] != rank)
        member++;
    if (member < now->data.group.members) {
        now->received_at[member] = g->clock.time;
        if (n->bits & (NOTICE_INPUT | NOTICE_NULL))
            group_data_input(&now->data, member, n->bits & NOTICE_INPUT);
        if (n->bits & NOTICE_PART)
            group_data_part(&now->data, member);
    }
    if (n->bits & NOTICE_PASS)
        now->passed = true;
    if (n->bits & NOTICE_COMMIT)
        return group_round_learn(g, DECISION_COMMIT, true);
    /* A sender that has refused the list does not know the members. The leader tells them. */
    return n->bits & NOTICE_ABORT
               ? group_round_learn(g, DECISION_ABORT,
                                   now->name.leader != g->window->rank)
               : PCOLL_OK;
}

/* Make the group of the list. */
int group_round_begin(struct group *g)
{
    const struct match_list *list = match_formed(&g->match);
    struct group_round *now = &g->now;
    struct group_members *group = &now->data.group;
    CHECK(g->phase == PHASE_ROUND && list->round == g->round);
    CHECK(list->count <= now->data.max_members);
    int64_t time = g->clock.time;
    bool known = true; /* All bandwidths. */
    group->members = list->count;
    now->chain = UINT32_MAX;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct match_member *member = &list->members[i];
        group->rank[i] = member->rank;
        if (member->rank == g->window->rank)
            group->position = i;
        if (member->chain < now->chain)
            now->chain = member->chain;
        known = known && member->bandwidth > 0;
        now->bandwidths[i] = (double)member->bandwidth;
        now->received_at[i] = time;
    }
    CHECK(group->rank[group->position] == g->window->rank);
    for (uint32_t i = 0; i < list->count && !known; i++)
        now->bandwidths[i] = 1;
    now->name = (struct group_name){list->leader, list->seq};
    now->contribution = CONTRIBUTION_OPEN;
    now->decision = DECISION_PENDING;
    now->marked = now->passed = now->passed_over = false;
    now->began = now->voted = time;
    now->heartbeat = group_wire_process_time(&g->clock);
    now->abort_after = 0;
    now->backoff = FIRST_BACKOFF_NS;
    now->early = !group_agent_was_started(g);
    int rc = grid_shares(now->bandwidths, list->count, group->share);
    if (rc != PCOLL_OK)
        return rc;
    grid_bounds(group->share, list->count, g->place.count,
                GRAIN_BYTES / g->place.element, group->bound);
    rc = group_data_prepare(&now->data);
    for (uint32_t i = 0; i < list->count && rc == PCOLL_OK; i++)
        rc = group_round_apply_notice(g, group->rank[i]);
    return rc;
}

int group_round_on_notice(struct group *g, const struct group_message *m)
{
    struct group_notice *n = &g->now.notices[m->source];
    if (!group_wire_same_name(n->name, m->values.name))
        *n = (struct group_notice){.name = m->values.name};
    n->bits |= m->values.bits;
    n->rate += m->values.rate;
    return group_round_apply_notice(g, m->source);
}

int group_round_notify(struct group *g, uint32_t member, int edge)
{
    const struct group_data *r = &g->now.data;
    CHECK(member < r->group.members && member != r->group.position);
    double rate = fmin(r->state[member].rate / KIB, UINT32_MAX);
    bool result = edge == BUTTERFLY_RESULT;
    enum group_notice_bit bit = result                      ? NOTICE_PART
                                : group_data_contributes(r) ? NOTICE_INPUT
                                                            : NOTICE_NULL;
    return group_wire_send_notice(g, r->group.rank[member], g->now.name, bit,
                                  result ? (uint32_t)rate : 0);
}

/* The contribution of this rank. */

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
    now->passed = true;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (i != group->position)
            rc = group_wire_send(g, group->rank[i], WIRE_NUDGE, 0, round,
                                 (union group_values){.application = true});
    return rc;
}

static int group_round_step(struct group *g)
{
    struct group_round *now = &g->now;
    int rc = group_round_contribute(g) ?: group_data_run(&now->data);
    if (rc == PCOLL_OK && now->decision == DECISION_PENDING && !now->marked &&
        group_data_complete(&now->data)) {
        CHECK(now->contribution != CONTRIBUTION_OPEN);
        now->marked = true;
        MOMENT("about to vote");
        rc = group_round_vote(g, VOTE_DONE);
    }
    if (rc == PCOLL_OK && now->decision == DECISION_PENDING)
        rc = group_round_watch_members(g);
    return rc;
}

int group_round_continue(struct group *g, enum group_phase *next)
{
    bool ended;
    CHECK(g->phase == PHASE_ROUND && match_formed(&g->match));
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
    int64_t soon = g->clock.time + now->backoff;
    now->backoff =
        2 * now->backoff < LAST_BACKOFF_NS ? 2 * now->backoff : LAST_BACKOFF_NS;
    return soon < at ? soon : at;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See group_agent.h. */
#include "group/group_agent.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "base/random.h"

/* A round. */

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

/* Send all other members of the group a message, or (NOTICE_PASS) those whose input is missing. */
static int group_round_send(struct group *g, enum group_wire_kind kind, uint64_t round,
                            union group_values values)
{
    const struct group_members *group = &g->now.data.group;
    bool only_missing = kind == WIRE_NOTICE && values.bits == NOTICE_PASS;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++)
        if (i != group->position && !(only_missing && g->now.data.state[i].known))
            rc = group_wire_send(g, group->rank[i], kind, 0, round, values);
    return rc;
}

static int group_round_tell(struct group *g, enum group_notice_bit bit)
{
    return group_round_send(g, WIRE_NOTICE, g->round,
                            (union group_values){.name = g->now.name, .bits = bit});
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
    return group_round_tell(g, group_wire_bit_of(decision));
}

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

/* A far member votes in the window of this rank, which leads the group. */
static int group_round_on_vote(struct group *g, const struct group_message *m)
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

/* Abort a group whose list names a member that does not keep it, rather than at the timeout. */
static int group_round_refuse(struct group *g, struct group_name name)
{
    enum decision decision;
    int rc = group_window_vote(g, name, VOTE_ABORT, UINT32_MAX, &decision);
    if (rc != PCOLL_OK || decision != DECISION_ABORT)
        return rc;
    if (name.leader != g->window->rank)
        return group_wire_send_notice(g, name.leader, name, NOTICE_ABORT, 0);
    return group_round_is(g, name) ? group_round_learn(g, decision, false) : rc;
}

/* Silence; see group_agent.h. */

/* Suspect the members that are silent, and those that have left without contributing. Such a member
 * left while its leader closed the list, and has never seen the list: otherwise it would finish the
 * round first. */
static int group_round_abort_on_silence(struct group *g)
{
    const struct group_round *now = &g->now;
    const struct group_members *group = &now->data.group;
    int64_t time = g->clock.time, timeout = group_agent_timeout_ns(g);
    bool lost = false;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < group->members && rc == PCOLL_OK; i++) {
        int64_t last = now->data.state[i].received_at;
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

/* By the time of the process, because a process that was suspended has sent no heartbeat. */
int group_round_heartbeat(struct group *g)
{
    CHECK(g->phase == PHASE_ROUND);
    group_wire_update_clock(g);
    int64_t now = group_wire_process_time(&g->clock);
    if (now - g->now.heartbeat < group_agent_timeout_ns(g) / 4)
        return PCOLL_OK;
    g->now.heartbeat = now;
    return group_round_tell(g, NOTICE_ALIVE);
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
        rc = group_round_tell(g, NOTICE_PASS);
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

static int group_round_finish(struct group *g)
{
    const struct group_data *r = &g->now.data;
    bool counts = g->now.decision == DECISION_COMMIT;
    bool own = g->now.contribution == CONTRIBUTION_OWN;
    uint32_t axis = grid_axis(&g->grid, g->round);
    CHECK(g->now.decision != DECISION_PENDING);
    CHECK(!counts || g->now.marked);
    group_round_measure_bandwidth(g);
    /* Was the group full, and did all its members contribute? On a full grid, such rounds along all
     * axes in a row make the average of all ranks: each multiplies the number of ranks behind a
     * value by a side, and no rank is counted twice. */
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
        now->data.state[member].received_at = g->clock.time;
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

static int group_round_begin(struct group *g)
{
    const struct match_list *list = match_formed(&g->match);
    struct group_round *now = &g->now;
    struct group_members *group = &now->data.group;
    CHECK(g->match.goal.round == g->round && list->count <= now->data.max_members);
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
        group->share[i] = (double)member->bandwidth;
    }
    CHECK(group->rank[group->position] == g->window->rank);
    for (uint32_t i = 0; i < list->count && !known; i++)
        group->share[i] = 1;
    now->name = (struct group_name){list->leader, list->seq};
    now->contribution = CONTRIBUTION_OPEN;
    now->decision = DECISION_PENDING;
    now->marked = now->passed = now->passed_over = false;
    now->began = now->voted = time;
    now->heartbeat = group_wire_process_time(&g->clock);
    now->abort_after = 0;
    now->backoff = FIRST_BACKOFF_NS;
    now->early = !group_agent_was_started(g);
    int rc = grid_shares(group->share, list->count, group->share);
    if (rc != PCOLL_OK)
        return rc;
    grid_bounds(group->share, list->count, g->place.count,
                GRAIN_BYTES / g->place.element, group->bound);
    rc = group_data_prepare(&now->data);
    for (uint32_t i = 0; i < list->count && rc == PCOLL_OK; i++)
        rc = group_round_apply_notice(g, group->rank[i]);
    return rc;
}

static int group_round_on_notice(struct group *g, const struct group_message *m)
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
        now->contribution = CONTRIBUTION_OWN;
        MOMENT("contributed");
    } else if (leaves || now->passed)
        now->contribution = CONTRIBUTION_NULL;
    else
        return PCOLL_OK;
    now->began = g->clock.time;
    return group_data_start(&now->data, now->contribution == CONTRIBUTION_OWN);
}

/* A rank waits in `round`: do not wait for the application in an earlier round. */
static int group_round_on_nudge(struct group *g, uint64_t round)
{
    struct group_round *now = &g->now;
    if (g->phase != PHASE_ROUND || g->round >= round || now->passed ||
        now->contribution != CONTRIBUTION_OPEN)
        return PCOLL_OK;
    now->passed = true;
    return group_round_send(g, WIRE_NUDGE, round,
                            (union group_values){.application = true});
}

static int group_round_continue(struct group *g, enum group_phase *next)
{
    struct group_round *now = &g->now;
    bool ended;
    CHECK(g->phase == PHASE_ROUND && match_formed(&g->match));
    int rc = group_data_poll(&now->data, &ended);
    if (ended)
        now->backoff = FIRST_BACKOFF_NS;
    if (rc == PCOLL_OK && now->decision == DECISION_PENDING)
        rc = group_round_contribute(g) ?: group_data_run(&now->data);
    if (rc == PCOLL_OK && now->decision == DECISION_PENDING && !now->marked &&
        engine_over(&now->data.engine)) {
        now->marked = true;
        MOMENT("about to vote");
        rc = group_round_vote(g, VOTE_DONE);
    }
    if (rc == PCOLL_OK && now->decision == DECISION_PENDING)
        rc = group_round_watch_members(g);
    if (rc != PCOLL_OK || now->decision == DECISION_PENDING)
        return rc;
    *next = PHASE_IDLE;
    return group_round_finish(g);
}

static int64_t group_round_alarm(struct group *g)
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

/* Finding the group of the next round. */

enum { FIRST_PAUSE_NS = 200000, LAST_PAUSE_NS = 20000000 };

/* The inquiry. */

/* The directory has answered, with these entries. Drop an answer to an earlier round, or one that
 * nothing waits for. Do not wait for ranks that have declared themselves and then left. */
static void group_matching_on_found(struct group *g, const struct group_message *m,
                                    const struct match_entry *entries, uint32_t count)
{
    struct group_inquiry *i = &g->inquiry;
    uint32_t kept = 0;
    if (g->phase != PHASE_MATCHING || m->round != g->round || !i->waits)
        return;
    for (uint32_t k = 0; k < count && i->found < g->membership.ranks; k++)
        i->entries[i->found++] = entries[k];
    if (i->found < m->values.count)
        return;
    i->waits = false;
    i->counted = m->values.counted;
    for (uint32_t k = 0; k < i->found; k++) {
        struct match_entry entry = i->entries[k];
        if (entry.peer == g->window->rank ||
            membership_takes_part(&g->membership, entry.peer, g->round))
            i->entries[kept++] = entry;
    }
    match_candidates(&g->match, g->clock.time, i->entries, kept);
    if (i->counted >= membership_count(&g->membership, g->round))
        match_expect(&g->match, g->clock.time, kept);
    i->at = g->clock.time + i->pause;
    i->pause = 2 * i->pause < LAST_PAUSE_NS ? 2 * i->pause : LAST_PAUSE_NS;
}

/* Ask the directory, and go on with the answer if it is near. */
static int group_matching_ask(struct group *g, enum group_wire_kind kind)
{
    uint32_t host = splitmix_below(0, g->round, g->membership.ranks);
    struct group_message answer,
        m = {.kind = kind,
             .source = g->window->rank,
             .round = g->round,
             .values = {.key = group_agent_line(g), .time = g->inquiry.time}};
    g->inquiry.waits = g->inquiry.declared = kind == WIRE_DECLARE;
    g->inquiry.found = 0;
    if (window_is_far(g->window, host))
        return group_wire_send(g, host, kind, 0, g->round, m.values);
    int rc = group_window_access(g, host, &m, &answer);
    if (rc == PCOLL_OK)
        group_matching_on_found(g, &answer, g->remote.found, answer.values.count);
    return rc;
}

static int group_matching_withdraw(struct group *g)
{
    return g->inquiry.declared ? group_matching_ask(g, WIRE_WITHDRAW) : PCOLL_OK;
}

/* Candidates. */

bool group_matching_is_on_line(const struct group *g, uint32_t rank)
{
    return rank == g->window->rank ||
           (membership_takes_part(&g->membership, rank, g->round) &&
            grid_line(&g->grid, g->cells[rank], grid_axis(&g->grid, g->round)) ==
                group_agent_line(g));
}

static void group_matching_offer_line(struct group *g)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        if (group_matching_is_on_line(g, r))
            g->inquiry.entries[count++] = (struct match_entry){.peer = r};
    match_candidates(&g->match, g->clock.time, g->inquiry.entries, count);
    match_expect(&g->match, g->clock.time, count);
}

static int group_matching_begin(struct group *g)
{
    struct group_matching *m = &g->matching;
    CHECK(g->phase == PHASE_MATCHING &&
          g->membership.entries[g->window->rank].status == MEMBER_LIVE);
    /* The time of day orders the ranks of different hosts. Simulated ranks share a clock. */
    struct timespec day;
    clock_gettime(CLOCK_REALTIME, &day);
    int64_t now = g->communicator->progress
                      ? day.tv_sec * INT64_C(1000000000) + day.tv_nsec
                      : g->clock.time;
    struct match_goal goal = {
        .round = g->round,
        .key = group_agent_line(g),
        .time = g->dynamic ? now : 0,
        .max_members = g->grid.side[grid_axis(&g->grid, g->round)],
        .expected = g->dynamic && membership_count(&g->membership, g->round) == 1,
        .window = g->options.window_us * 1000,
        .self = {g->window->rank, g->bandwidth.told, g->chain},
    };
    m->nudge_at = m->stay_until = 0;
    m->began = g->clock.time;
    m->members_changed = false;
    g->inquiry = (struct group_inquiry){.time = goal.time,
                                        .at = g->dynamic ? g->clock.time : INT64_MAX,
                                        .pause = FIRST_PAUSE_NS,
                                        .entries = g->inquiry.entries};
    match_begin(&g->match, g->clock.time, &goal);
    if (!g->dynamic)
        group_matching_offer_line(g);
    return PCOLL_OK;
}

/* Nudge the ranks that are missing. If the application waits, they go on without their application.
 * Otherwise they only answer, so that they do not count as silent when the window ends. */
static int group_matching_nudge(struct group *g)
{
    struct group_matching *m = &g->matching;
    int64_t limit = g->options.timeout_us < g->options.window_us ? g->options.timeout_us
                                                                 : g->options.window_us;
    int64_t half = limit * 500;
    uint64_t waits = group_agent_was_started(g);
    int rc = PCOLL_OK;
    if (!m->nudge_at || (waits && !m->application))
        m->nudge_at = g->clock.time + half;
    m->application = waits;
    if (g->clock.time < m->nudge_at)
        return rc;
    m->nudge_at = g->clock.time + half;
    for (uint32_t r = 0; r < g->membership.ranks && rc == PCOLL_OK; r++)
        if (r != g->window->rank &&
            membership_takes_part(&g->membership, r, g->round) &&
            (g->dynamic || group_matching_is_on_line(g, r)))
            rc = group_wire_send(g, r, WIRE_NUDGE, 0, g->round,
                                 (union group_values){.application = waits});
    return rc;
}

/* The list. */

/* Send the messages of matchmaking. First open the decision of an own group whose list they are. */
static int group_matching_flush(struct group *g)
{
    const struct match_list *list = match_formed(&g->match);
    struct match_message m;
    union group_values values;
    int rc = PCOLL_OK;
    CHECK(!g->match.out.lost);
    if (list && list->leader == g->window->rank && list->seq != g->matching.opened) {
        enum decision decision;
        CHECK(list->seq > g->matching.opened);
        g->matching.opened = list->seq;
        rc = group_window_vote(g, (struct group_name){list->leader, list->seq},
                               VOTE_OPEN, UINT32_MAX, &decision);
        MOMENT("group closed");
    }
    while (rc == PCOLL_OK && match_next(&g->match, &m)) {
        memcpy(values.word, m.value, sizeof values.word);
        rc = m.kind == MATCH_VOID
                 ? group_round_refuse(g, (struct group_name){m.peer, m.list.seq})
                 : group_wire_send(g, m.peer, m.kind, m.part, m.round, values);
    }
    return rc;
}

/* Suspect the ranks for which this leader has waited, and which have sent nothing either. A rank
 * that is only late finds another group. */
static int group_matching_suspect_absent(struct group *g)
{
    const struct match_list *list = match_formed(&g->match);
    uint32_t at = 0;
    int rc = PCOLL_OK;
    for (uint32_t r = 0; r < g->membership.ranks && rc == PCOLL_OK; r++) {
        while (at < list->count && list->members[at].rank < r)
            at++;
        if (g->dynamic || !group_matching_is_on_line(g, r) ||
            (at < list->count && list->members[at].rank == r))
            continue;
        int64_t last = g->wire.received_at[r];
        if (g->clock.time - last > group_agent_timeout_ns(g) ||
            last < g->matching.began)
            rc = group_wire_suspect(g, r);
    }
    return rc;
}

static int group_matching_step(struct group *g, enum group_phase *next)
{
    match_tick(&g->match, g->clock.time);
    bool asks = !g->inquiry.waits && g->clock.time >= g->inquiry.at &&
                g->match.state != MATCH_FORMED;
    int rc = (asks ? group_matching_ask(g, WIRE_DECLARE) : PCOLL_OK)
                 ?: group_matching_nudge(g);
    if (rc != PCOLL_OK)
        return rc;
    if (g->match.state ==
        MATCH_BEHIND) { /* Skip to the round that the others are at. */
        uint64_t ahead = g->match.ahead;
        rc = group_matching_withdraw(g);
        if (rc != PCOLL_OK)
            return rc;
        match_end(&g->match);
        g->round = ahead > g->round ? ahead : g->round + 1;
        g->chain = 0;
        *next = PHASE_IDLE;
        return group_wire_announce(g, g->window->rank);
    }
    if (g->match.state != MATCH_FORMED)
        return PCOLL_OK;
    *next = PHASE_ROUND;
    rc = group_matching_flush(g);
    return rc == PCOLL_OK && match_formed(&g->match)->leader == g->window->rank
               ? group_matching_suspect_absent(g)
               : rc;
}

/* A rank that wants to leave may be on its leader's list already. It waits for the list for a
 * moment, because a round whose list names a rank that has left is void. */
static int group_matching_continue(struct group *g, enum group_phase *next)
{
    int64_t *until = &g->matching.stay_until;
    bool goes = group_agent_leaves(g) || g->rejoin.suspected;
    bool offers = g->matching.members_changed && g->match.state != MATCH_FORMED;
    g->matching.members_changed = false;
    if (offers && !g->dynamic) /* Offer the candidates again. */
        group_matching_offer_line(g);
    else if (offers && membership_count(&g->membership, g->round) == 1)
        match_expect(&g->match, g->clock.time, 1);
    bool stays = goes && match_bound(&g->match) && (!*until || g->clock.time < *until);
    if (!stays)
        *until = 0;
    else if (!*until)
        *until = g->clock.time + g->match.answer_timeout;
    if (stays || !goes || g->match.state == MATCH_FORMED)
        return group_matching_step(g, next);
    match_end(&g->match);
    *next = PHASE_IDLE;
    return group_matching_withdraw(g);
}

/* Return when to call group_matching_continue without a message, or INT64_MAX. */
static int64_t group_matching_alarm(const struct group *g)
{
    const struct group_matching *m = &g->matching;
    CHECK(!g->inquiry.waits || g->dynamic);
    int64_t at = match_alarm(&g->match);
    if (!g->inquiry.waits && g->inquiry.at < at)
        at = g->inquiry.at;
    if (m->nudge_at && m->nudge_at < at)
        at = m->nudge_at;
    if (m->stay_until && m->stay_until < at)
        at = m->stay_until;
    return at;
}

/* The phases. */

static int group_agent_leave(struct group *g)
{
    uint32_t rank = g->window->rank, returns = g->membership.entries[rank].returns;
    CHECK(g->phase == PHASE_AWAY && !match_bound(&g->match));
    g->rejoin.suspected = false;
    membership_set(&g->membership, rank, MEMBER_AWAY, returns);
    return group_wire_announce(g, rank);
}

/* Return. No other rank waits for this one in a round that it has left. */
static int group_agent_begin_rejoin(struct group *g)
{
    uint32_t rank = g->window->rank, returns = g->membership.entries[rank].returns + 1;
    if (g->round < g->match.floor)
        g->round = g->match.floor;
    membership_set(&g->membership, rank, MEMBER_LIVE, returns);
    CHECK(g->phase == PHASE_ASKING && membership_is_live(&g->membership, rank));
    g->chain = 0;
    g->rejoin = (struct group_rejoin){.highest = g->round,
                                      .wait_until = g->clock.time +
                                                    group_agent_timeout_ns(g) / 10};
    return group_wire_announce(g, rank);
}

/* Return the round that a returning rank may join, as far as this rank knows. */
static uint64_t group_agent_round_to_join(const struct group *g)
{
    CHECK(g->phase != PHASE_ASKING || g->rejoin.highest >= g->round);
    return g->phase == PHASE_ASKING ? g->rejoin.highest
                                    : g->round + (g->phase == PHASE_ROUND);
}

static int group_agent_continue_rejoin(struct group *g, enum group_phase *next)
{
    uint32_t others = 0; /* The ranks that can answer: all but silent and dead ones. */
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        others +=
            r != g->window->rank && g->membership.entries[r].status <= MEMBER_AWAY;
    if (g->rejoin.answers < others && g->clock.time < g->rejoin.wait_until &&
        !group_agent_leaves(g))
        return PCOLL_OK;
    g->round = group_agent_round_to_join(g);
    *next = PHASE_IDLE;
    return group_agent_leaves(g) ? PCOLL_OK : group_wire_announce(g, g->window->rank);
}

/* Closing. */

static const int64_t again_after = 1000000; /* Nanoseconds between two sums. */

static int group_agent_sum_counts(struct group *g)
{
    struct group_drain *d = &g->drain;
    d->counts[0] = g->wire.sent;
    d->counts[1] = g->wire.received;
    d->agreeing = true;
    d->again_at = INT64_MAX;
    d->agreement = (struct agreement){
        .values = d->counts, .count = 2, .op = AGREE_SUM, .object = &g->base};
    return communicator_agree(g->communicator, &d->agreement);
}

static int group_agent_begin_close(struct object *p)
{
    struct group *g = (struct group *)p;
    CHECK(g->queued && g->phase == PHASE_AWAY);
    g->drain.before = UINT64_MAX;
    return group_agent_sum_counts(g);
}

/* The same for an object that closes. */
static int group_agent_drain(struct group *g)
{
    struct group_drain *d = &g->drain;
    int rc = group_matching_flush(g); /* Also void groups that named this rank late. */
    if (rc != PCOLL_OK || atomic_load(&g->base.closed))
        return rc;
    if (d->agreeing && atomic_load(&d->agreement.done)) {
        uint64_t sum = d->counts[0] == d->counts[1] ? d->counts[0] : UINT64_MAX;
        d->agreeing = false;
        if (sum == d->before && sum != UINT64_MAX) {
            if (!g->left) /* Otherwise that was before a rank died. */
                communicator_spend_window(g->communicator, g->window);
            g->left = true;
            return communicator_closed(g->communicator, &g->base);
        }
        d->before = sum;
        d->again_at = communicator_now(g->communicator) + again_after;
    }
    if (d->again_at == INT64_MAX)
        return PCOLL_OK;
    if (communicator_now(g->communicator) >= d->again_at)
        return group_agent_sum_counts(g);
    communicator_alarm(g->communicator, &g->base, d->again_at);
    return PCOLL_OK;
}

/* The phases. */

static int (*const group_agent_begin[])(struct group *g) = {
    [PHASE_ASKING] = group_agent_begin_rejoin,
    [PHASE_MATCHING] = group_matching_begin,
    [PHASE_ROUND] = group_round_begin,
    [PHASE_AWAY] = group_agent_leave,
};

/* Do one step. *more: the phase or the round has changed. */
static int group_agent_continue(struct group *g, bool *more)
{
    enum group_phase before = g->phase, next = before;
    uint64_t round = g->round;
    int rc = group_matching_flush(g); /* A group of this rank may be void. */
    if (rc == PCOLL_OK && before == PHASE_IDLE)
        next = group_agent_leaves(g) ? PHASE_AWAY
               : g->rejoin.suspected ? PHASE_ASKING
                                     : PHASE_MATCHING;
    else if (rc == PCOLL_OK && before == PHASE_AWAY)
        next = group_agent_leaves(g) ? PHASE_AWAY : PHASE_ASKING;
    else if (rc == PCOLL_OK)
        rc = before == PHASE_ASKING     ? group_agent_continue_rejoin(g, &next)
             : before == PHASE_MATCHING ? group_matching_continue(g, &next)
                                        : group_round_continue(g, &next);
    *more = rc == PCOLL_OK && (next != before || g->round != round);
    if (rc != PCOLL_OK)
        return rc;
    g->phase = next;
    if (next != before && next != PHASE_IDLE)
        rc = group_agent_begin[next](g);
    return rc ?: group_matching_flush(g);
}

int group_agent_drive(struct object *p)
{
    struct group *g = (struct group *)p;
    bool more, ended;
    int rc = PCOLL_OK;
    CHECK(!g->queued || g->shared.closing);
    group_wire_update_clock(g);
    if (!g->driven || g->queued)
        return g->queued ? group_agent_drain(g) : rc;
    do
        rc = group_agent_continue(g, &more);
    while (rc == PCOLL_OK && more);
    if (rc == PCOLL_OK && g->phase == PHASE_AWAY && g->shared.closing) {
        rc = group_data_poll(&g->now.data, &ended); /* Fetches of void rounds. */
        g->queued = rc == PCOLL_OK && !g->now.data.abandoned;
        if (g->queued) /* Ask for the turn to close. */
            rc = communicator_close(g->communicator, &g->base);
    }
    atomic_store(&g->shared.shown_round, g->round);
    g->clock.due = rc != PCOLL_OK ? INT64_MAX
                   : g->phase == PHASE_ROUND || g->now.data.abandoned
                       ? group_round_alarm(g)
                   : g->phase == PHASE_ASKING   ? g->rejoin.wait_until
                   : g->phase == PHASE_MATCHING ? group_matching_alarm(g)
                                                : match_alarm(&g->match);
    if (g->clock.due != INT64_MAX)
        communicator_alarm(g->communicator, &g->base, g->clock.due + g->clock.behind);
    return rc;
}

/* Messages. */

static int group_agent_on_membership(struct group *g, const struct group_message *m)
{
    const union group_values *v = &m->values;
    struct membership_entry *e = &g->membership.entries[v->rank];
    if (v->rank == g->window->rank) {
        g->rejoin.suspected |= v->returns == e->returns;
        return PCOLL_OK;
    }
    bool live = v->status == MEMBER_LIVE;
    bool news = membership_set(&g->membership, v->rank, v->status, v->returns);
    bool joins = live && e->status != MEMBER_DEAD && v->returns == e->returns &&
                 m->round > e->from;
    if (joins)
        e->from = m->round;
    if (news || joins)
        group_wire_membership_changed(g, v->rank);
    if (!live || !news)
        return PCOLL_OK;
    return group_wire_send(g, m->source, WIRE_ROUND, 0, group_agent_round_to_join(g),
                           (union group_values){.returns = v->returns});
}

static int group_agent_dispatch(struct group *g, const struct group_message *m)
{
    struct match_entry entries[FOUND_ENTRIES];
    uint32_t found = 0;
    switch (m->kind) {
    case WIRE_MATCH:
    case WIRE_NUDGED:
        return PCOLL_OK;
    case WIRE_NOTICE:
        return group_round_on_notice(g, m);
    case WIRE_NUDGE:
        return m->values.application
                   ? group_round_on_nudge(g, m->round)
                   : group_wire_send(g, m->source, WIRE_NUDGED, 0, g->round,
                                     (union group_values){.word = {0}});
    case WIRE_VOTE:
        return group_round_on_vote(g, m);
    case WIRE_MEMBERSHIP:
        return group_agent_on_membership(g, m);
    case WIRE_ROUND:
        if (m->values.returns != g->membership.entries[g->window->rank].returns)
            return PCOLL_OK; /* To an earlier return: the rounds may have progressed. */
        g->rejoin.answers += g->membership.entries[m->source].status != MEMBER_SUSPECT;
        if (m->round > g->rejoin.highest)
            g->rejoin.highest = m->round;
        return PCOLL_OK;
    case WIRE_DECLARE:
    case WIRE_WITHDRAW:
        return group_window_serve(g, m);
    case WIRE_FOUND:
        for (; found < FOUND_ENTRIES && m->values.peer[found] != MATCH_NOBODY; found++)
            entries[found] =
                (struct match_entry){m->values.peer[found], m->values.peer_time[found]};
        group_matching_on_found(g, m, entries, found);
        return PCOLL_OK;
    }
    return PCOLL_OK;
}

static int group_agent_on_message(struct object *p, uint32_t source,
                                  const struct control *message)
{
    struct group *g = (struct group *)p;
    struct group_message m;
    struct match_message match = {.peer = source,
                                  .kind = message->kind,
                                  .part = message->edge,
                                  .round = message->round};
    CHECK(source < g->membership.ranks && source != g->window->rank);
    bool matches = message->kind < WIRE_NOTICE;
    int rc = matches ? PCOLL_OK
                     : group_wire_decode(g->window->rank, g->membership.ranks, source,
                                         message, &m);
    if (rc != PCOLL_OK)
        return rc;
    group_wire_update_clock(g);
    g->wire.received++;
    g->wire.received_at[source] = g->clock.time;
    memcpy(match.value, message->value, sizeof match.value);
    rc = matches ? match_on_message(&g->match, g->clock.time, &match)
                 : group_agent_dispatch(g, &m);
    return rc ?: group_agent_drive(p);
}

const struct object_ops group_agent_ops = {.run = group_agent_drive,
                                           .control = group_agent_on_message,
                                           .begin_close = group_agent_begin_close};

/* Restarting without dead ranks. */

enum { WORD_LIVES = 1, WORD_AWAY = 2, WORD_RETURNS = 4 };

uint64_t group_agent_state_word(const struct group *g)
{
    const struct membership_entry *own = &g->membership.entries[g->window->rank];
    CHECK(own->status != MEMBER_SUSPECT);
    return WORD_LIVES | (own->status == MEMBER_AWAY ? WORD_AWAY : 0) |
           (uint64_t)own->returns * WORD_RETURNS;
}

/* Decide the round by its word, and end it. If the word was opened again, the round is void: it has
 * lasted for DECISIONS groups of its leader, which takes a process that was suspended. */
static int group_agent_end_round(struct group *g, const uint64_t *words)
{
    struct group_round *now = &g->now;
    const struct group_members *group = &now->data.group;
    enum decision decision = now->decision;
    int rc = PCOLL_OK;
    if (decision == DECISION_PENDING)
        rc = group_window_vote(g, now->name, VOTE_ABORT, group->members, &decision);
    now->decision = decision == DECISION_COMMIT ? decision : DECISION_ABORT;
    bool again = now->decision == DECISION_ABORT;
    for (uint32_t i = 0; i < group->members; i++)
        again &= words[group->rank[i]] != 0;
    if (again && now->contribution == CONTRIBUTION_OWN) {
        g->shared.consumed--;
        now->contribution = CONTRIBUTION_OPEN;
    }
    return rc ?: group_round_finish(g);
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
    for (uint32_t r = 0; r < g->membership.ranks; r++) {
        enum member_status status = words[r] & WORD_AWAY ? MEMBER_AWAY : MEMBER_LIVE;
        g->membership.entries[r] =
            (struct membership_entry){words[r] ? status : MEMBER_DEAD,
                                      (uint32_t)(words[r] / WORD_RETURNS), round};
        g->wire.received_at[r] = g->clock.time;
    }
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

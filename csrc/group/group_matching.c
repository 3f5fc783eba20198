/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the group of the next round; see group_matching.h. */

#include "group/group_matching.h"

#include <time.h>

#include "base/check.h"
#include "group/group_agent.h"
#include "group/group_window.h"

enum { FIRST_PAUSE_NS = 200000, LAST_PAUSE_NS = 20000000 };

void group_matching_begin_inquiry(struct group *g, int64_t time)
{
    CHECK(g->phase == PHASE_MATCHING);
    g->inquiry = (struct group_inquiry){.time = time,
                                        .at = g->dynamic ? g->clock.time : INT64_MAX,
                                        .pause = FIRST_PAUSE_NS,
                                        .entries = g->inquiry.entries};
}

static struct group_key group_matching_key(const struct group *g)
{
    return (struct group_key){g->round, group_agent_line(g)};
}

/* The inquiry: what the answers mean. */

static void group_matching_declared(struct group_inquiry *i)
{
    i->waits = false;
    i->stage = INQUIRY_COUNT;
}

static void group_matching_counted(struct group_inquiry *i, uint32_t count)
{
    i->waits = false;
    i->stage = INQUIRY_QUERY;
    i->counted = count;
}

/* Do not wait for ranks that have declared themselves and then left. */
static void group_matching_drop_absent(struct group *g)
{
    struct group_inquiry *i = &g->inquiry;
    uint32_t kept = 0;
    for (uint32_t k = 0; k < i->found; k++) {
        struct match_entry entry = i->entries[k];
        if (entry.peer == g->window->rank ||
            membership_takes_part(&g->membership, entry.peer, g->round))
            i->entries[kept++] = entry;
    }
    i->found = kept;
}

static void group_matching_found_all(struct group *g)
{
    group_matching_drop_absent(g);
    int64_t now = g->clock.time;
    struct group_inquiry *i = &g->inquiry;
    CHECK(i->found <= g->membership.ranks && i->stage == INQUIRY_QUERY);
    match_candidates(&g->match, now, i->entries, i->found);
    if (i->counted >= membership_count(&g->membership, g->round))
        match_expect(&g->match, now, i->found);
    i->stage = INQUIRY_COUNT;
    i->waits = false;
    i->at = now + i->pause;
    i->pause = 2 * i->pause < LAST_PAUSE_NS ? 2 * i->pause : LAST_PAUSE_NS;
}

/* The inquiry: its stages. */

static int group_matching_declare(struct group *g)
{
    struct group_key key = group_matching_key(g);
    bool answered;
    int rc = group_window_request_declare(g, &key, g->inquiry.time, &answered);
    g->inquiry.waits = true;
    if (rc == PCOLL_OK && answered)
        group_matching_declared(&g->inquiry);
    return rc;
}

static int group_matching_count(struct group *g)
{
    uint32_t all;
    int32_t more = g->inquiry.counted_self ? 0 : 1;
    bool answered;
    int rc = group_window_request_count(g, g->round, more, &all, &answered);
    g->inquiry.counted_self = g->inquiry.waits = true;
    if (rc == PCOLL_OK && answered)
        group_matching_counted(&g->inquiry, all);
    return rc;
}

static int group_matching_query(struct group *g)
{
    struct group_key key = group_matching_key(g);
    struct group_inquiry *i = &g->inquiry;
    bool answered;
    i->found = 0;
    i->waits = true;
    int rc = group_window_request_query(g, &key, i->entries, &i->found, &answered);
    if (rc == PCOLL_OK && answered)
        group_matching_found_all(g);
    return rc;
}

static bool group_matching_inquiry_due(const struct group *g)
{
    return g->phase == PHASE_MATCHING && !g->inquiry.waits &&
           match_state(&g->match) != MATCH_FORMED && g->clock.time >= g->inquiry.at;
}

int group_matching_inquire(struct group *g)
{
    int rc = PCOLL_OK;
    CHECK(g->phase == PHASE_MATCHING);
    while (rc == PCOLL_OK && group_matching_inquiry_due(g)) {
        switch (g->inquiry.stage) {
        case INQUIRY_DECLARE:
            rc = group_matching_declare(g);
            break;
        case INQUIRY_COUNT:
            rc = group_matching_count(g);
            break;
        case INQUIRY_QUERY:
            rc = group_matching_query(g);
            break;
        }
    }
    return rc;
}

static int group_matching_withdraw(struct group *g)
{
    uint32_t all;
    bool answered;
    CHECK(g->phase == PHASE_MATCHING);
    if (!g->inquiry.counted_self)
        return PCOLL_OK;
    g->inquiry.counted_self = false;
    return group_window_request_count(g, g->round, -1, &all, &answered);
}

int64_t group_matching_inquiry_alarm(const struct group *g)
{
    CHECK(!g->inquiry.waits || g->dynamic);
    return g->inquiry.waits ? INT64_MAX : g->inquiry.at;
}

/* The inquiry: answers from another node. An answer to an earlier round, or one that
 * nothing waits for, is dropped. */

static bool group_matching_is_awaited(const struct group *g,
                                      const struct group_message *m,
                                      enum group_inquiry_stage stage)
{
    return g->phase == PHASE_MATCHING && m->round == g->round && g->inquiry.waits &&
           g->inquiry.stage == stage;
}

void group_matching_on_counted(struct group *g, const struct group_message *m)
{
    if (!group_matching_is_awaited(g, m, m->counts ? INQUIRY_COUNT : INQUIRY_DECLARE))
        return;
    if (m->counts)
        group_matching_counted(&g->inquiry, m->count);
    else
        group_matching_declared(&g->inquiry);
}

void group_matching_on_found(struct group *g, const struct group_message *m)
{
    struct group_inquiry *i = &g->inquiry;
    if (!group_matching_is_awaited(g, m, INQUIRY_QUERY))
        return;
    for (uint32_t k = 0; k < m->entries && i->found < g->membership.ranks; k++)
        i->entries[i->found++] = m->entry[k];
    if (i->found >= m->count)
        group_matching_found_all(g);
}

/* Candidates. */

uint32_t group_matching_live_on_line(struct group *g)
{
    uint32_t axis = grid_axis(&g->grid, g->round), count = 0;
    uint64_t line = group_agent_line(g);
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        if (r == g->window->rank ||
            (membership_takes_part(&g->membership, r, g->round) &&
             grid_line(&g->grid, g->cells[r], axis) == line))
            g->matching.line[count++] = r;
    CHECK(count >= 1 && count <= g->membership.ranks);
    return count;
}

/* Return the time of day, which orders the ranks of different hosts. Simulated ranks
 * share a clock. */
static int64_t group_matching_wall_clock(const struct group *g)
{
    struct timespec t;
    if (!g->communicator->progress)
        return g->clock.time;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void group_matching_offer_line(struct group *g)
{
    struct group_matching *m = &g->matching;
    uint32_t count = group_matching_live_on_line(g);
    for (uint32_t i = 0; i < count; i++)
        m->candidates[i] = (struct match_entry){.peer = m->line[i]};
    match_candidates(&g->match, g->clock.time, m->candidates, count);
    match_expect(&g->match, g->clock.time, count);
}

static bool group_matching_is_alone(const struct group *g)
{
    return membership_count(&g->membership, g->round) == 1;
}

int group_matching_begin(struct group *g)
{
    struct group_matching *m = &g->matching;
    CHECK(g->phase == PHASE_MATCHING &&
          g->membership.entries[g->window->rank].status == MEMBER_LIVE);
    struct match_goal goal = {
        .round = g->round,
        .key = group_agent_line(g),
        .time = g->dynamic ? group_matching_wall_clock(g) : 0,
        .max_members = g->grid.side[grid_axis(&g->grid, g->round)],
        .expected =
            g->dynamic && membership_count(&g->membership, g->round) > 1 ? 0 : 1,
        .window = g->options.window_us * 1000,
        .self = {g->window->rank, g->bandwidth.told, g->chain},
    };
    if (!g->dynamic)
        goal.expected = group_matching_live_on_line(g);
    m->nudge_at = m->stay_until = 0;
    m->began = g->clock.time;
    m->members_changed = false;
    group_matching_begin_inquiry(g, goal.time);
    match_begin(&g->match, g->clock.time, &goal);
    if (!g->dynamic)
        group_matching_offer_line(g);
    return PCOLL_OK;
}

/* Offer matchmaking the candidates again if the membership has changed. */
static void group_matching_offer_changed(struct group *g)
{
    bool changed = g->matching.members_changed;
    g->matching.members_changed = false;
    if (!changed || match_state(&g->match) == MATCH_FORMED)
        return;
    if (!g->dynamic)
        group_matching_offer_line(g);
    else if (group_matching_is_alone(g))
        match_expect(&g->match, g->clock.time, 1);
}

/* Nudge the ranks that are missing. If the application waits, they go on without their
 * application. Otherwise they only answer, so that they do not count as silent when the
 * window ends. */
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
    uint32_t waited_for =
        g->dynamic ? g->membership.ranks : group_matching_live_on_line(g);
    for (uint32_t i = 0; i < waited_for && rc == PCOLL_OK; i++) {
        uint32_t rank = g->dynamic ? i : m->line[i];
        if (rank != g->window->rank &&
            membership_takes_part(&g->membership, rank, g->round))
            rc =
                group_wire_send(g, rank, WIRE_NUDGE, 0, g->round, (uint64_t[4]){waits});
    }
    return rc;
}

/* The list. */

/* Open the decision of an own group before any member is sent its list. */
static int group_matching_open_decision(struct group *g)
{
    const struct match_list *list = match_formed(&g->match);
    if (match_state(&g->match) != MATCH_FORMED || list->leader != g->window->rank ||
        list->seq == g->matching.opened)
        return PCOLL_OK;
    CHECK(list->seq > g->matching.opened);
    g->matching.opened = list->seq;
    int rc = group_window_open_decision(g->window, g->place.decisions_at, list->seq);
    MOMENT("group closed");
    return rc;
}

int group_matching_flush(struct group *g)
{
    struct match_message m;
    int rc = group_matching_open_decision(g);
    CHECK(!g->match.out.lost);
    while (rc == PCOLL_OK && match_next(&g->match, &m))
        rc = group_wire_send(g, m.peer, (enum group_wire_kind)m.kind, m.part, m.round,
                             m.value);
    return rc;
}

/* Has a rank for which the leader has waited sent nothing either? A rank that is only
 * late finds another group. */
static bool group_matching_is_silent(const struct group *g, uint32_t rank)
{
    int64_t last = g->wire.received_at[rank];
    return g->clock.time - last > group_agent_timeout_ns(g) || last < g->matching.began;
}

static int group_matching_suspect_absent(struct group *g)
{
    const struct match_list *list = match_formed(&g->match);
    const uint32_t *line = g->matching.line;
    uint32_t count = g->dynamic ? 0 : group_matching_live_on_line(g), at = 0;
    int rc = PCOLL_OK;
    for (uint32_t i = 0; i < count && rc == PCOLL_OK; i++) {
        while (at < list->count && list->members[at].rank < line[i])
            at++;
        bool absent = at == list->count || list->members[at].rank != line[i];
        if (absent && group_matching_is_silent(g, line[i]))
            rc = group_wire_suspect(g, line[i]);
    }
    return rc;
}

static int group_matching_take_list(struct group *g)
{
    int rc = group_matching_flush(g);
    if (rc == PCOLL_OK && match_formed(&g->match)->leader == g->window->rank)
        rc = group_matching_suspect_absent(g);
    return rc;
}

/* Skip to the round that the others are at. */
static int group_matching_catch_up(struct group *g)
{
    uint64_t ahead = match_ahead(&g->match);
    CHECK(ahead > g->round);
    int rc = group_matching_withdraw(g);
    if (rc != PCOLL_OK)
        return rc;
    match_end(&g->match);
    g->round = ahead > g->round ? ahead : g->round + 1;
    g->chain = 0;
    return group_wire_announce_join(g);
}

static int group_matching_step(struct group *g, enum group_phase *next)
{
    match_tick(&g->match, g->clock.time);
    int rc = group_matching_inquire(g);
    if (rc == PCOLL_OK)
        rc = group_matching_nudge(g);
    if (rc != PCOLL_OK)
        return rc;
    switch (match_state(&g->match)) {
    case MATCH_FORMED:
        *next = PHASE_ROUND;
        return group_matching_take_list(g);
    case MATCH_BEHIND:
        *next = PHASE_IDLE;
        return group_matching_catch_up(g);
    case MATCH_IDLE:
    case MATCH_LOOKING:
    case MATCH_FOLLOWING:
        break;
    }
    return PCOLL_OK;
}

/* A rank that wants to leave may be on its leader's list already. It waits for the list
 * for a moment, because a round whose list names a rank that has left is void. */
static bool group_matching_waits_for_list(struct group *g, bool goes)
{
    int64_t *until = &g->matching.stay_until;
    bool stays = goes && match_bound(&g->match) && (!*until || g->clock.time < *until);
    if (!stays)
        *until = 0;
    else if (!*until)
        *until = g->clock.time + g->match.answer_timeout;
    return stays;
}

int group_matching_continue(struct group *g, enum group_phase *next)
{
    CHECK(g->phase == PHASE_MATCHING);
    bool goes = group_agent_leaves(g) || g->rejoin.suspected;
    group_matching_offer_changed(g);
    bool formed = match_state(&g->match) == MATCH_FORMED;
    if (group_matching_waits_for_list(g, goes) || formed || !goes)
        return group_matching_step(g, next);
    match_end(&g->match);
    *next = PHASE_IDLE;
    return group_matching_withdraw(g);
}

int64_t group_matching_alarm(const struct group *g)
{
    const struct group_matching *m = &g->matching;
    CHECK(g->phase == PHASE_MATCHING);
    int64_t at = match_alarm(&g->match);
    if (group_matching_inquiry_alarm(g) < at)
        at = group_matching_inquiry_alarm(g);
    if (m->nudge_at && m->nudge_at < at)
        at = m->nudge_at;
    if (m->stay_until && m->stay_until < at)
        at = m->stay_until;
    return at;
}

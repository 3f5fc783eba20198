/* SPDX-License-Identifier: Apache-2.0 */
/* Matchmaking: the events that come in, and what is due after each of them
 * (matchmaking.h has the protocol). The functions of matchmaking_roles.c return what
 * came of an event; the consequences for other roles are drawn here. */

#include "protocol/group/matchmaking.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "protocol/group/matchmaking_parts.h"

int match_init(struct match *m, uint32_t rank, uint32_t size, int64_t answer_timeout)
{
    *m = (struct match){.rank = rank,
                        .size = size,
                        .answer_timeout = answer_timeout,
                        .longest_window = INT64_MAX,
                        .asking = MATCH_NOBODY,
                        .leader = MATCH_NOBODY};
    if (rank >= size || size > INT32_MAX / 4)
        return fail(PCOLL_EINVAL, "matchmaking: expected rank below size, got %u of %u",
                    rank, size);
    if (answer_timeout <= 0 || answer_timeout > INT64_MAX / 8)
        return fail(
            PCOLL_EINVAL,
            "matchmaking: expected an answer timeout of more than 0 ns, got %lld",
            (long long)answer_timeout);
    m->peers = calloc(size, sizeof *m->peers);
    m->candidates = calloc(size, sizeof *m->candidates);
    m->followers = calloc(size, sizeof *m->followers);
    m->members = calloc(size, sizeof *m->members);
    int rc = match_outbox_init(&m->out, size);
    CHECK(match_first(m) == 0 && m->state == MATCH_IDLE);
    if (rc == PCOLL_OK && m->peers && m->candidates && m->followers && m->members)
        return PCOLL_OK;
    match_destroy(m);
    return fail(PCOLL_ENOMEM, "no memory for the matchmaking of %u ranks", size);
}

void match_destroy(struct match *m)
{
    CHECK(m->candidate_count <= m->size && m->follower_count <= m->size);
    free(m->peers);
    free(m->candidates);
    free(m->followers);
    free(m->members);
    match_outbox_destroy(&m->out);
    *m = (struct match){0};
}

/* Check the invariants that hold after every event. */
static void match_check_state(const struct match *m)
{
    CHECK(m->candidate_count < m->size && m->follower_count < m->size);
    CHECK(m->unconfirmed <= m->follower_count);
    CHECK(m->refusals <= m->size);
    CHECK(m->asking == MATCH_NOBODY || m->state == MATCH_LOOKING);
    CHECK((m->leader == MATCH_NOBODY) != (m->state == MATCH_FOLLOWING) ||
          m->state == MATCH_FORMED);
    CHECK(m->state != MATCH_FOLLOWING || !m->follower_count);
    CHECK(m->state != MATCH_FORMED ||
          (m->list.count >= 1 && m->list.count <= m->goal.max_members));
    CHECK(m->state != MATCH_BEHIND || m->ahead > m->goal.round);
    CHECK(m->at == m->floor);
    (void)m;
}

/* Forget the round. Only filed asks remain. */
static void match_forget_round(struct match *m)
{
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        struct match_peer *p = &m->peers[m->candidates[i]];
        p->candidate = CANDIDATE_UNKNOWN;
        p->tries = p->attempt = 0;
        p->of_key = false;
    }
    for (uint32_t i = 0; i < m->follower_count; i++) {
        m->peers[m->followers[i]].follower = FOLLOWER_NOT;
        m->peers[m->followers[i]].ask.there = false;
    }
    m->candidate_count = m->follower_count = m->unconfirmed = m->listed = 0;
    m->asking = m->leader = MATCH_NOBODY;
    m->given = m->told = m->offer = m->window_over = false;
    m->state = MATCH_IDLE;
}

/* Do what can be done after an event: ask, accept filed asks, close. */
static void match_proceed(struct match *m, int64_t now)
{
    if (m->state != MATCH_LOOKING)
        return;
    if (m->asking == MATCH_NOBODY)
        match_ask_next(m, now);
    if (m->asking != MATCH_NOBODY)
        return;
    if (m->offer)
        match_offer(m, now);
    if (m->unconfirmed)
        return;
    if (match_is_behind(m))
        m->state = MATCH_BEHIND;
    else if (match_may_close(m))
        match_close(m);
}

static struct match_goal match_clip_goal(const struct match *m,
                                         const struct match_goal *goal)
{
    struct match_goal g = *goal;
    g.self.rank = m->rank;
    g.window = g.window > 0 ? g.window : 0;
    g.max_members = g.max_members ? g.max_members : 1;
    g.max_members =
        g.max_members < MATCH_MAX_MEMBERS ? g.max_members : MATCH_MAX_MEMBERS;
    return g;
}

void match_begin(struct match *m, int64_t now, const struct match_goal *goal)
{
    match_end(m);
    m->goal = match_clip_goal(m, goal);
    m->window_end = match_later(now, m->goal.window);
    m->ahead = m->floor;
    if (goal->round < m->floor) {
        m->state = MATCH_BEHIND;
        return;
    }
    CHECK(goal->round >= m->floor);
    m->floor = m->at = m->ahead = goal->round;
    m->state = MATCH_LOOKING;
    match_answer_filed(m, now);
    match_proceed(m, now);
    CHECK(m->state != MATCH_IDLE);
}

void match_candidates(struct match *m, int64_t now, const struct match_entry *entries,
                      uint32_t count)
{
    if (!match_active(m))
        return;
    for (uint32_t i = 0; i < count; i++)
        if (entries[i].peer < m->size)
            match_add_candidate(m, entries[i].peer, entries[i].time);
    m->given = true;
    for (uint32_t i = 0; i < m->candidate_count; i++)
        match_note_gone(m, now, m->candidates[i], 0);
    match_proceed(m, now);
    match_check_state(m);
}

void match_expect(struct match *m, int64_t now, uint32_t expected)
{
    m->goal.expected = expected;
    match_proceed(m, now);
    match_check_state(m);
}

void match_lost(struct match *m, int64_t now, uint32_t peer)
{
    if (peer >= m->size || peer == m->rank)
        return;
    struct match_peer *p = &m->peers[peer];
    if (p->ask.there)
        p->ask.since = now - m->answer_timeout; /* It has to confirm. */
    if (!match_active(m))
        return;
    match_drop_lost_follower(m, peer);
    match_dismiss(m, now, peer);
    match_proceed(m, now);
    match_check_state(m);
}

void match_back(struct match *m, int64_t now, uint32_t peer)
{
    if (!match_active(m) || peer >= m->size)
        return;
    if (m->peers[peer].candidate == CANDIDATE_FINAL)
        m->peers[peer].candidate = CANDIDATE_UNTRIED;
    match_proceed(m, now);
    match_check_state(m);
}

static void match_dispatch(struct match *m, int64_t now,
                           const struct match_message *message,
                           const struct match_note *note)
{
    switch ((enum match_kind)message->kind) {
    case MATCH_ASK:
        match_on_ask(m, now, message, note);
        match_note_gone(m, now, message->peer, message->round);
        break;
    case MATCH_ACCEPT:
        if (match_on_accept(m, now, message,
                            note)) /* The followers ask the new leader. */
            match_disband(m, m->leader, m->peers[m->leader].time);
        break;
    case MATCH_CONFIRM:
        match_on_confirm(m, message, note);
        break;
    case MATCH_REJECT:
        match_on_reject(m, message, note);
        break;
    case MATCH_LEAVE:
        match_on_leave(m, message, note);
        break;
    case MATCH_DISBAND:
        match_on_disband(m, now, message, note);
        break;
    case MATCH_LIST:
    case MATCH_KINDS:
        break;
    }
}

int match_on_message(struct match *m, int64_t now, const struct match_message *message)
{
    struct match_note note;
    struct match_part part;
    bool is_list = message->kind == MATCH_LIST;
    int rc = is_list ? match_decode_part(m, message, &part)
                     : match_decode(m, message, &note);
    if (rc != PCOLL_OK)
        return rc;
    if (!is_list)
        match_dispatch(m, now, message, &note);
    else if (!match_on_list(m, message, &part))
        match_dismiss(m, now, message->peer);
    match_proceed(m, now);
    match_check_state(m);
    return PCOLL_OK;
}

void match_tick(struct match *m, int64_t now)
{
    if (match_active(m)) {
        match_expire_seeking(m, now);
        match_expire_unconfirmed(m, now);
        m->window_over = now >= m->window_end;
    }
    match_proceed(m, now);
    match_check_state(m);
}

static int64_t match_confirm_alarm(const struct match *m)
{
    int64_t first = INT64_MAX;
    for (uint32_t i = 0; i < m->follower_count; i++) {
        const struct match_peer *p = &m->peers[m->followers[i]];
        if (p->follower == FOLLOWER_UNCONFIRMED && p->confirm_by < first)
            first = p->confirm_by;
    }
    return first;
}

int64_t match_alarm(const struct match *m)
{
    CHECK(m->size && m->answer_timeout > 0);
    if (m->state == MATCH_FOLLOWING)
        return m->follow_by;
    if (m->state != MATCH_LOOKING)
        return INT64_MAX;
    int64_t first = m->unconfirmed ? match_confirm_alarm(m) : INT64_MAX;
    if (m->asking != MATCH_NOBODY)
        return m->ask_by < first ? m->ask_by : first;
    return m->unconfirmed ? first : m->window_end;
}

void match_end(struct match *m)
{
    bool left = match_active(m);
    if (m->state == MATCH_IDLE)
        return;
    if (left) {
        match_refuse_coming(m);
        match_withdraw(m);
        match_disband(m, MATCH_NOBODY, 0);
    }
    if (m->goal.round >= m->floor) {
        m->floor = m->at = m->goal.round + 1;
        m->has_left = left;
        m->left = m->goal.round;
    }
    match_forget_round(m);
    match_check_state(m);
}

void match_restart(struct match *m, uint64_t first)
{
    CHECK(first >= m->floor);
    match_forget_round(m);
    for (uint32_t i = 0; i < m->size; i++)
        m->peers[i] = (struct match_peer){0};
    match_outbox_clear(&m->out);
    m->refusals = 0;
    m->has_left = false;
    m->floor = m->at = m->ahead = first;
    match_check_state(m);
}

bool match_refused(struct match *m, struct match_refusal *out)
{
    for (uint32_t i = 0; m->refusals && i < m->size; i++) {
        struct match_peer *p = &m->peers[i];
        if (!p->refused)
            continue;
        *out = p->refusal;
        p->refused = false;
        m->refusals--;
        return true;
    }
    CHECK(!m->refusals);
    return false;
}

enum match_state match_state(const struct match *m)
{
    CHECK(m->state <= MATCH_BEHIND);
    return m->state;
}

const struct match_list *match_formed(const struct match *m)
{
    CHECK(m->state != MATCH_FORMED || m->list.members == m->members);
    return m->state == MATCH_FORMED ? &m->list : NULL;
}

bool match_bound(const struct match *m)
{
    CHECK(m->asking == MATCH_NOBODY || m->asking < m->size);
    return m->state == MATCH_FOLLOWING ||
           (m->state == MATCH_LOOKING && m->asking != MATCH_NOBODY);
}

uint64_t match_first(const struct match *m)
{
    CHECK(m->state == MATCH_IDLE || m->state == MATCH_BEHIND ||
          m->floor == m->goal.round);
    return m->floor;
}

uint64_t match_ahead(const struct match *m)
{
    CHECK(m->state != MATCH_BEHIND || m->ahead > m->goal.round);
    return m->ahead;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Seeking: whom to ask, what the answers mean, and following. */
#include "protocol/group/matchmaking_parts.h"

#include "base/check.h"

static void match_enlist(struct match *m, uint32_t peer)
{
    struct match_peer *p = &m->peers[peer];
    if (p->candidate != CANDIDATE_UNKNOWN)
        return;
    p->candidate = CANDIDATE_UNTRIED;
    CHECK(m->candidate_count + 1 < m->size);
    m->candidates[m->candidate_count++] = peer;
}

void match_add_candidate(struct match *m, uint32_t peer, int64_t time)
{
    CHECK(peer < m->size);
    if (peer == m->rank)
        return;
    match_enlist(m, peer);
    m->peers[peer].of_key = true;
    m->peers[peer].time = time;
}

static uint32_t match_lowest_untried(const struct match *m)
{
    uint32_t best = MATCH_NOBODY;
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        uint32_t peer = m->candidates[i];
        const struct match_peer *p = &m->peers[peer];
        if (p->candidate == CANDIDATE_UNTRIED && p->of_key && p->tries < MATCH_TRIES &&
            match_below(m, p->time, peer) &&
            (best == MATCH_NOBODY ||
             match_before(p->time, peer, m->peers[best].time, best)))
            best = peer;
    }
    return best;
}

static void match_ask_peer(struct match *m, int64_t now, uint32_t peer)
{
    struct match_peer *p = &m->peers[peer];
    CHECK(peer != m->rank && p->tries < MATCH_TRIES);
    m->attempt += 1 + (m->attempt == UINT32_MAX);
    p->attempt = m->attempt;
    p->candidate = CANDIDATE_ASKED;
    p->tries++;
    m->asking = peer;
    m->ask_by = match_later(now, m->answer_timeout);
    match_send(m, MATCH_ASK, peer, m->goal.round,
               &(struct match_note){.key = m->goal.key,
                                    .time = m->goal.time,
                                    .member = m->goal.self,
                                    .attempt = p->attempt});
}

void match_ask_next(struct match *m, int64_t now)
{
    CHECK(m->state == MATCH_LOOKING && m->asking == MATCH_NOBODY);
    if (now > match_later(m->window_end, 2 * m->answer_timeout))
        return;
    uint32_t peer = match_lowest_untried(m);
    if (peer != MATCH_NOBODY)
        match_ask_peer(m, now, peer);
}

/* Nobody it knows of is left for this round. */
static bool match_nobody_left(const struct match *m)
{
    for (uint32_t i = 0; i < m->candidate_count; i++)
        if (m->peers[m->candidates[i]].candidate != CANDIDATE_FINAL)
            return false;
    return true;
}

/* A peer that is ahead may have left this round, with others still to come: so either
 * it has said that the round is over there, or nobody came. */
bool match_is_behind(const struct match *m)
{
    CHECK(m->state == MATCH_LOOKING);
    return m->ahead > m->goal.round && !m->follower_count && m->given &&
           (m->told || m->window_over || match_nobody_left(m));
}

/* Whom it has asked, or follows: tell it not to count on this rank. */
static void match_send_leave(struct match *m, uint32_t peer, uint32_t attempt)
{
    match_send(m, MATCH_LEAVE, peer, m->goal.round,
               &(struct match_note){.attempt = attempt});
}

void match_withdraw(struct match *m)
{
    CHECK(match_active(m));
    uint32_t peer = m->state == MATCH_FOLLOWING ? m->leader : m->asking;
    if (peer == MATCH_NOBODY)
        return;
    match_send_leave(m, peer, m->peers[peer].attempt);
    m->peers[peer].attempt = 0;
}

/* Look again, with time to find others that look again. */
static void match_stop_following(struct match *m, int64_t now)
{
    CHECK(m->state == MATCH_FOLLOWING && !m->follower_count);
    int64_t until = match_later(now, 2 * m->answer_timeout);
    match_refuse_coming(m);
    m->state = MATCH_LOOKING;
    m->leader = MATCH_NOBODY;
    m->offer = true;
    if (m->window_end < until)
        m->window_end = until;
    m->window_over = false;
}

void match_dismiss(struct match *m, int64_t now, uint32_t peer)
{
    CHECK(peer < m->size && peer != m->rank);
    struct match_peer *p = &m->peers[peer];
    match_enlist(m, peer); /* it may be given as a candidate later */
    p->candidate = CANDIDATE_FINAL;
    if (m->asking == peer || m->leader == peer)
        match_withdraw(m);
    p->attempt = 0;
    if (m->asking == peer)
        m->asking = MATCH_NOBODY;
    if (m->leader == peer)
        match_stop_following(m, now);
    CHECK(m->asking != peer && m->leader != peer);
}

void match_note_gone(struct match *m, int64_t now, uint32_t peer, uint64_t round)
{
    struct match_peer *p = &m->peers[peer];
    CHECK(peer < m->size && peer != m->rank);
    if (p->seen < round)
        p->seen = round;
    if (!match_active(m) || !p->of_key || p->seen <= m->goal.round)
        return;
    if (m->ahead < p->seen)
        m->ahead = p->seen;
    if (p->candidate != CANDIDATE_FINAL)
        match_dismiss(m, now, peer);
}

void match_expire_seeking(struct match *m, int64_t now)
{
    CHECK(match_active(m));
    if (m->state == MATCH_FOLLOWING && now >= m->follow_by)
        match_dismiss(m, now, m->leader);
    if (m->asking != MATCH_NOBODY && now >= m->ask_by) {
        m->peers[m->asking].candidate = CANDIDATE_WAITING;
        m->asking = MATCH_NOBODY;
    }
}

static void match_follow(struct match *m, int64_t now, uint32_t peer,
                         const struct match_note *note)
{
    m->state = MATCH_FOLLOWING;
    m->asking = MATCH_NOBODY;
    m->leader = peer;
    m->listed = 0;
    m->follow_by =
        match_later(match_later(now, 4 * m->answer_timeout), note->remaining);
    m->peers[peer].candidate = CANDIDATE_WAITING;
    if (note->confirm)
        match_send(m, MATCH_CONFIRM, peer, m->goal.round,
                   &(struct match_note){.attempt = note->attempt});
}

bool match_on_accept(struct match *m, int64_t now, const struct match_message *message,
                     const struct match_note *note)
{
    CHECK(message->kind == MATCH_ACCEPT);
    uint32_t peer = message->peer;
    struct match_peer *p = &m->peers[peer];
    bool current = m->state != MATCH_IDLE && message->round == m->goal.round &&
                   p->attempt && p->attempt == note->attempt;
    bool free = m->asking == MATCH_NOBODY || m->asking == peer;
    if (current && m->state == MATCH_LOOKING && free) {
        match_follow(m, now, peer, note);
        return true;
    }
    if (current && m->state == MATCH_FOLLOWING && m->leader == peer)
        return false; /* accepted twice */
    match_send(m, MATCH_LEAVE, peer, message->round, note);
    if (!current)
        return false;
    p->attempt = 0;
    if (p->candidate == CANDIDATE_WAITING)
        p->candidate = CANDIDATE_UNTRIED;
    return false;
}

/* Somebody knows a lower one that takes followers. If that was asked before, it has the
 * ask on file and will answer. */
static void match_take_hint(struct match *m, uint32_t hint, int64_t time)
{
    if (hint < m->size && match_below(m, time, hint))
        match_add_candidate(m, hint, time);
}

void match_on_reject(struct match *m, const struct match_message *message,
                     const struct match_note *note)
{
    CHECK(message->kind == MATCH_REJECT);
    uint32_t peer = message->peer;
    struct match_peer *p = &m->peers[peer];
    if (!match_active(m) || message->round != m->goal.round || !p->attempt ||
        p->attempt != note->attempt || m->leader == peer)
        return;
    bool filed = note->reason == REJECT_FOLLOWS || note->reason == REJECT_FULL;
    p->candidate = filed ? CANDIDATE_WAITING : CANDIDATE_FINAL;
    p->attempt = filed ? p->attempt : 0;
    if (m->asking == peer)
        m->asking = MATCH_NOBODY;
    if (note->reason == REJECT_LOWER) { /* it is there, and may ask this rank */
        p->candidate = CANDIDATE_UNTRIED;
        p->tries = MATCH_TRIES;
    } else if (note->reason == REJECT_FOLLOWS) {
        match_take_hint(m, note->hint, note->time);
    } else if (note->reason == REJECT_GONE && note->at > m->goal.round) {
        m->ahead = note->at > m->ahead ? note->at : m->ahead;
        m->told = true;
    }
}

void match_on_disband(struct match *m, int64_t now, const struct match_message *message,
                      const struct match_note *note)
{
    CHECK(message->kind == MATCH_DISBAND);
    uint32_t peer = message->peer;
    struct match_peer *p = &m->peers[peer];
    if (m->state != MATCH_FOLLOWING || m->leader != peer ||
        message->round != m->goal.round || p->attempt != note->attempt)
        return;
    match_stop_following(m, now);
    if (note->hint == MATCH_NOBODY) { /* it has not kept the ask */
        p->candidate = CANDIDATE_UNTRIED;
        p->attempt = 0;
    }
    match_take_hint(m, note->hint, note->time);
}

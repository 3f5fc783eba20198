/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leading: asks that come, those on file, followers, and closing the group.
 *
 * A peer's ask stays on file from its arrival until it is answered for good: while it
 * is held for a round to come, while its peer follows this rank, and while it was
 * rejected for a reason that may go away.
 */
#include <string.h>

#include "protocol/group/matchmaking_parts.h"

#include "base/check.h"

static uint64_t match_reported_round(const struct match *m, uint64_t round)
{
    if (m->has_left && m->left == round)
        return round;
    return m->state == MATCH_BEHIND ? m->ahead : m->at;
}

static void match_reject(struct match *m, uint32_t peer, enum match_reason reason)
{
    const struct match_ask *ask = &m->peers[peer].ask;
    struct match_note note = {.reason = reason,
                              .hint = MATCH_NOBODY,
                              .at = match_reported_round(m, ask->round),
                              .attempt = ask->attempt};
    if (reason == REJECT_FOLLOWS) {
        note.hint = m->leader;
        note.time = m->peers[m->leader].time;
    }
    match_send(m, MATCH_REJECT, peer, ask->round, &note);
}

static void match_reject_finally(struct match *m, uint32_t peer,
                                 enum match_reason reason)
{
    match_reject(m, peer, reason);
    m->peers[peer].ask.there = false;
}

static bool match_has_room(const struct match *m)
{
    return m->follower_count + 1 < m->goal.max_members;
}

static void match_add_follower(struct match *m, uint32_t peer)
{
    CHECK(peer != m->rank && m->follower_count + 1 < m->size);
    uint32_t at = m->follower_count++;
    for (; at && m->followers[at - 1] > peer; at--)
        m->followers[at] = m->followers[at - 1];
    m->followers[at] = peer;
}

static void match_drop_follower(struct match *m, uint32_t peer)
{
    struct match_peer *p = &m->peers[peer];
    if (p->follower == FOLLOWER_NOT)
        return;
    m->unconfirmed -= p->follower == FOLLOWER_UNCONFIRMED;
    p->follower = FOLLOWER_NOT;
    uint32_t at = 0;
    while (at < m->follower_count && m->followers[at] != peer)
        at++;
    CHECK(at < m->follower_count);
    m->follower_count--;
    memmove(&m->followers[at], &m->followers[at + 1],
            (m->follower_count - at) * sizeof *m->followers);
    m->offer = true; /* there is room */
}

static void match_accept(struct match *m, int64_t now, uint32_t peer, bool confirm)
{
    struct match_peer *p = &m->peers[peer];
    CHECK(m->state == MATCH_LOOKING && p->ask.there);
    int64_t remaining = m->window_end > now ? m->window_end - now : 0;
    if (p->follower == FOLLOWER_NOT)
        match_add_follower(m, peer);
    m->unconfirmed -= p->follower == FOLLOWER_UNCONFIRMED;
    m->unconfirmed += confirm;
    p->follower = confirm ? FOLLOWER_UNCONFIRMED : FOLLOWER_IN;
    CHECK(m->follower_count < m->goal.max_members);
    p->confirm_by = match_later(now, m->answer_timeout);
    match_send(m, MATCH_ACCEPT, peer, m->goal.round,
               &(struct match_note){.remaining = remaining,
                                    .confirm = confirm,
                                    .attempt = p->ask.attempt});
}

/* An ask on file for the round that this rank is in. */
static void match_answer(struct match *m, int64_t now, uint32_t peer)
{
    struct match_peer *p = &m->peers[peer];
    bool stale = now - p->ask.since > m->answer_timeout / 2;
    if (m->state == MATCH_BEHIND)
        match_reject_finally(m, peer, REJECT_GONE);
    else if (p->ask.key != m->goal.key)
        match_reject_finally(m, peer, REJECT_KEY);
    else if (m->state == MATCH_FORMED)
        match_reject_finally(m, peer, REJECT_CLOSED);
    else if (match_below(m, p->ask.time, peer))
        match_reject_finally(m, peer, REJECT_LOWER);
    else if (m->state == MATCH_FOLLOWING)
        match_reject(m, peer, REJECT_FOLLOWS);
    else if (p->follower == FOLLOWER_NOT && !match_has_room(m))
        match_reject(m, peer, REJECT_FULL);
    else
        match_accept(m, now, peer, stale);
}

void match_on_ask(struct match *m, int64_t now, const struct match_message *message,
                  const struct match_note *note)
{
    CHECK(message->kind == MATCH_ASK && message->peer != m->rank);
    uint32_t peer = message->peer;
    struct match_peer *p = &m->peers[peer];
    bool this_round = p->ask.there && p->ask.round == message->round;
    if (m->state == MATCH_FORMED && p->follower != FOLLOWER_NOT && this_round)
        return; /* it is in the list, and has not left */
    if (!this_round)
        match_drop_follower(m, peer);
    p->ask = (struct match_ask){.there = true,
                                .round = message->round,
                                .key = note->key,
                                .time = note->time,
                                .since = now,
                                .member = note->member,
                                .attempt = note->attempt};
    if (message->round < m->floor)
        match_reject_finally(m, peer, REJECT_GONE);
    else if (m->state != MATCH_IDLE && message->round == m->goal.round)
        match_answer(m, now, peer);
}

void match_on_confirm(struct match *m, const struct match_message *message,
                      const struct match_note *note)
{
    struct match_peer *p = &m->peers[message->peer];
    if (p->follower != FOLLOWER_UNCONFIRMED || message->round != m->goal.round ||
        note->attempt != p->ask.attempt)
        return; /* it has been told already that this is over */
    CHECK(m->unconfirmed >= 1);
    p->follower = FOLLOWER_IN;
    m->unconfirmed--;
}

void match_on_leave(struct match *m, const struct match_message *message,
                    const struct match_note *note)
{
    CHECK(message->kind == MATCH_LEAVE);
    uint32_t peer = message->peer;
    struct match_peer *p = &m->peers[peer];
    if (!p->ask.there || p->ask.round != message->round ||
        p->ask.attempt != note->attempt)
        return;
    p->ask.there = false;
    if (m->state == MATCH_FORMED && p->follower != FOLLOWER_NOT)
        match_refuse(m, peer, m->rank, m->list.seq, m->list.round);
    match_drop_follower(m, peer);
}

static bool match_is_filed(const struct match *m, uint32_t peer)
{
    return m->peers[peer].ask.there && m->peers[peer].ask.round == m->goal.round &&
           m->peers[peer].follower == FOLLOWER_NOT;
}

void match_answer_filed(struct match *m, int64_t now)
{
    CHECK(m->state == MATCH_LOOKING && !m->follower_count);
    for (uint32_t i = 0; i < m->size; i++) {
        struct match_peer *p = &m->peers[i];
        if (match_is_filed(m, i))
            match_answer(m, now, i);
        else if (p->ask.there && p->ask.round < m->goal.round)
            match_reject_finally(m, i, REJECT_GONE);
    }
}

void match_offer(struct match *m, int64_t now)
{
    CHECK(m->state == MATCH_LOOKING && m->asking == MATCH_NOBODY);
    m->offer = false;
    for (uint32_t i = 0; i < m->size && match_has_room(m); i++)
        if (match_is_filed(m, i))
            match_accept(m, now, i, true);
}

static void match_send_disband(struct match *m, uint32_t peer, uint32_t hint,
                               int64_t time)
{
    match_send(m, MATCH_DISBAND, peer, m->goal.round,
               &(struct match_note){
                   .hint = hint, .time = time, .attempt = m->peers[peer].ask.attempt});
}

void match_disband(struct match *m, uint32_t hint, int64_t time)
{
    CHECK(hint == MATCH_NOBODY || hint == m->leader);
    for (uint32_t i = 0; i < m->follower_count; i++) {
        match_send_disband(m, m->followers[i], hint, time);
        m->peers[m->followers[i]].follower = FOLLOWER_NOT;
        m->peers[m->followers[i]].ask.there = hint != MATCH_NOBODY;
    }
    m->follower_count = m->unconfirmed = 0;
}

void match_expire_unconfirmed(struct match *m, int64_t now)
{
    CHECK(match_active(m) && m->unconfirmed <= m->follower_count);
    for (uint32_t i = m->follower_count; i-- && m->unconfirmed;) {
        uint32_t peer = m->followers[i];
        struct match_peer *p = &m->peers[peer];
        if (p->follower != FOLLOWER_UNCONFIRMED || now < p->confirm_by)
            continue;
        match_send_disband(m, peer, MATCH_NOBODY, 0);
        p->ask.there = false;
        match_drop_follower(m, peer);
    }
}

void match_drop_lost_follower(struct match *m, uint32_t peer)
{
    CHECK(match_active(m));
    if (m->peers[peer].follower == FOLLOWER_NOT)
        return;
    match_send_disband(m, peer, MATCH_NOBODY, 0);
    m->peers[peer].ask.there = false;
    match_drop_follower(m, peer);
}

bool match_may_close(const struct match *m)
{
    CHECK(m->asking == MATCH_NOBODY && !m->unconfirmed);
    uint32_t members = m->follower_count + 1;
    bool enough = members >= m->goal.max_members ||
                  (m->goal.expected && members >= m->goal.expected);
    return m->window_over || (enough && m->given);
}

void match_close(struct match *m)
{
    CHECK(m->state == MATCH_LOOKING && m->asking == MATCH_NOBODY && !m->unconfirmed);
    uint32_t count = 0, i = 0;
    for (; i < m->follower_count && m->followers[i] < m->rank; i++)
        m->members[count++] = m->peers[m->followers[i]].ask.member;
    m->members[count++] = m->goal.self;
    for (; i < m->follower_count; i++)
        m->members[count++] = m->peers[m->followers[i]].ask.member;
    m->list = (struct match_list){.leader = m->rank,
                                  .seq = ++m->seq,
                                  .round = m->goal.round,
                                  .key = m->goal.key,
                                  .count = count,
                                  .members = m->members};
    CHECK(count <= m->goal.max_members && m->seq);
    m->state = MATCH_FORMED;
    match_send_list(m);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Asking, following, leading, and receiving lists; see matchmaking.h. */

#include <string.h>

#include "base/check.h"
#include "protocol/group/matchmaking_parts.h"

void match_refuse(struct match *m, uint32_t member, uint32_t leader, uint32_t seq,
                  uint64_t round)
{
    CHECK(member < m->size && member != m->rank);
    struct match_peer *p = &m->peers[member];
    m->refusals += !p->refused;
    p->refused = true;
    p->refusal = (struct match_refusal){.leader = leader, .seq = seq, .round = round};
}

void match_refuse_coming(struct match *m)
{
    if (m->state == MATCH_FOLLOWING && m->listed)
        match_refuse(m, m->leader, m->leader, m->list.seq, m->list.round);
    CHECK(m->state != MATCH_FOLLOWING || m->leader < m->size);
    m->listed = 0;
}

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

/* Is no candidate left for this round? */
static bool match_nobody_left(const struct match *m)
{
    for (uint32_t i = 0; i < m->candidate_count; i++)
        if (m->peers[m->candidates[i]].candidate != CANDIDATE_FINAL)
            return false;
    return true;
}

/* A candidate that is ahead may have left this round while others still come. So this
 * rank is behind only if a rank has reported the end of the round, or no other rank has
 * come. */
bool match_is_behind(const struct match *m)
{
    CHECK(m->state == MATCH_LOOKING);
    return m->ahead > m->goal.round && !m->follower_count && m->given &&
           (m->told || m->window_over || match_nobody_left(m));
}

/* Tell a rank that this one has asked or followed not to count on it. */
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

/* Look again, for long enough to find other ranks that look again. */
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
    match_enlist(m, peer); /* It may become a candidate later. */
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
        return false; /* It has accepted twice. */
    match_send(m, MATCH_LEAVE, peer, message->round, note);
    if (!current)
        return false;
    p->attempt = 0;
    if (p->candidate == CANDIDATE_WAITING)
        p->candidate = CANDIDATE_UNTRIED;
    return false;
}

/* Another rank knows a lower one that leads. If this rank has asked that one before,
 * the ask is filed there and will be answered. */
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
    if (note->reason == REJECT_LOWER) { /* The peer is alive, and may ask this rank. */
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
    if (note->hint == MATCH_NOBODY) { /* It has not filed the ask. */
        p->candidate = CANDIDATE_UNTRIED;
        p->attempt = 0;
    }
    match_take_hint(m, note->hint, note->time);
}

/* Leading. A peer's ask stays filed from its arrival until it is answered finally:
 * while it waits for a round to begin, while its sender follows this rank, and while it
 * was rejected for a reason that may go away. */

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
    m->offer = true; /* There is room for a filed ask. */
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

/* Answer a filed ask for the current round. */
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
        return; /* It is in the list, and has not left. */
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
        return; /* This rank has told it already that its ask has ended. */
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

/* Lists. A list is taken only from the leader that this rank follows, for the attempt
 * that was accepted, complete and valid. Any other list is refused, because its group
 * counts on this rank. */

static bool match_begin_list(struct match *m, const struct match_part *part)
{
    if (part->count > m->goal.max_members)
        return false;
    m->list = (struct match_list){.leader = m->leader,
                                  .seq = part->seq,
                                  .round = m->goal.round,
                                  .key = m->goal.key,
                                  .count = part->count,
                                  .members = m->members};
    m->listed = 0;
    return true;
}

/* Add a part. False: it does not fit the parts before it. */
static bool match_add_part(struct match *m, const struct match_part *part)
{
    if (!part->first && !match_begin_list(m, part))
        return false;
    if (part->first != m->listed || part->count != m->list.count ||
        part->seq != m->list.seq)
        return false;
    if (m->listed && part->member[0].rank <= m->members[m->listed - 1].rank)
        return false;
    CHECK(m->listed + part->holds <= m->list.count && m->list.count <= m->size);
    memcpy(m->members + m->listed, part->member, part->holds * sizeof *part->member);
    m->listed += part->holds;
    return true;
}

static bool match_same_member(const struct match_member *a,
                              const struct match_member *b)
{
    return a->rank == b->rank && a->chain == b->chain &&
           !memcmp(&a->bandwidth, &b->bandwidth, sizeof a->bandwidth);
}

/* Does the list name this rank with its values, and the leader? */
static bool match_list_is_valid(const struct match *m)
{
    bool self = false, leader = false;
    for (uint32_t i = 0; i < m->list.count; i++) {
        self = self || match_same_member(&m->members[i], &m->goal.self);
        leader = leader || m->members[i].rank == m->leader;
    }
    return self && leader;
}

/* Forget earlier asks of the members of this group. */
static void match_forget_asks(struct match *m)
{
    for (uint32_t i = 0; i < m->list.count; i++) {
        struct match_peer *p = &m->peers[m->members[i].rank];
        if (p->ask.round <= m->goal.round)
            p->ask.there = false;
    }
}

static bool match_awaits_part(const struct match *m,
                              const struct match_message *message, uint32_t attempt)
{
    return m->state == MATCH_FOLLOWING && message->peer == m->leader &&
           message->round == m->goal.round &&
           attempt == (uint16_t)m->peers[m->leader].attempt;
}

bool match_on_list(struct match *m, const struct match_message *message,
                   const struct match_part *part)
{
    CHECK(message->kind == MATCH_LIST && message->peer != m->rank);
    uint32_t from = message->peer;
    if (!match_awaits_part(m, message, part->attempt)) {
        if (!part->first)
            match_refuse(m, from, from, part->seq, message->round);
        return true;
    }
    bool good = match_add_part(m, part);
    if (good && m->listed < m->list.count)
        return true;
    if (good && match_list_is_valid(m)) {
        CHECK(m->leader == from && m->listed == m->list.count);
        m->state = MATCH_FORMED;
        match_forget_asks(m);
        return true;
    }
    match_refuse(m, from, from, part->seq, message->round);
    m->listed = 0;
    return false;
}

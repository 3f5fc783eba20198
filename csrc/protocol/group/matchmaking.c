/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matchmaking; matchmaking.h has the protocol.
 *
 * The parts of a list are made when they are fetched, because a large group has thousands of them.
 *
 * Bad messages. match_find_wrong refuses a message that no correct sender makes with
 * PCOLL_EPROTOCOL, before anything reads its values. A message that is possible, but does not fit
 * the state (an old attempt, an unexpected part), is dropped. A list that does not fit is refused.
 */
#include "protocol/group/matchmaking.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"

enum match_reason {
    REJECT_KEY = 1,
    REJECT_CLOSED,
    REJECT_GONE,
    REJECT_FOLLOWS,
    REJECT_FULL,
    REJECT_LOWER
};

enum candidate_state {
    CANDIDATE_UNKNOWN,
    CANDIDATE_UNTRIED,
    CANDIDATE_ASKED,   /* This rank is bound to it. */
    CANDIDATE_WAITING, /* It still has the ask, and may answer. */
    CANDIDATE_FINAL    /* It is not asked again in this round. */
};

enum follower_state { FOLLOWER_NOT, FOLLOWER_UNCONFIRMED, FOLLOWER_IN };

struct match_ask {
    bool there;
    uint64_t round, key;
    int64_t time, since;
    struct match_member member;
    uint32_t attempt;
};

struct match_peer {
    uint64_t seen; /* Highest round of its asks. */

    enum candidate_state candidate;
    bool of_key;      /* It was given as a candidate. */
    int64_t time;     /* Its priority, as far as known. */
    uint32_t tries;   /* Asks sent to it in this round. */
    uint32_t attempt; /* Of the ask that it may still accept; 0: none. */

    struct match_ask ask;
    enum follower_state follower;
    int64_t confirm_by;
};

/* Add to a time without overflow. */
static int64_t match_later(int64_t time, int64_t by)
{
    return time > 0 && by > INT64_MAX - time ? INT64_MAX : time + by;
}

static bool match_active(const struct match *m)
{
    return m->state == MATCH_LOOKING || m->state == MATCH_FOLLOWING;
}

/* Return whether the first priority comes before the second. */
static bool match_before(int64_t time, uint32_t peer, int64_t than_time,
                         uint32_t than_peer)
{
    return time < than_time || (time == than_time && peer < than_peer);
}

static bool match_below(const struct match *m, int64_t time, uint32_t peer)
{
    return match_before(time, peer, m->goal.time, m->rank);
}

static void match_queue(struct match_outbox *o, struct match_message message)
{
    if (o->tail - o->head == o->capacity)
        o->lost++;
    else
        o->ring[o->tail++ % o->capacity] = message;
}

/* Queue a message of any kind but LIST. */
static void match_send(struct match *m, enum match_kind kind, uint32_t peer,
                       uint64_t round, const struct match_note *note)
{
    CHECK(peer < m->size && peer != m->rank);
    match_queue(&m->out,
                (struct match_message){
                    .peer = peer, .kind = kind, .round = round, .note = *note});
}

/* A list counts on a member that does not keep it: its group has to become void. */
static void match_refuse(struct match *m, uint32_t leader, uint32_t seq)
{
    CHECK(leader < m->size && seq);
    match_queue(&m->out, (struct match_message){
                             .peer = leader, .kind = MATCH_VOID, .list = {.seq = seq}});
}

static bool match_is_bandwidth(float x)
{
    return x >= 0 && x <= FLT_MAX;
}

static struct match_member match_member_at(const struct match_message *message,
                                           uint32_t i)
{
    const struct match_part *p = &message->list;
    if (message->part & PART_ALIKE)
        return (struct match_member){p->alike.rank[i], p->alike.bandwidth,
                                     p->alike.chain};
    return (struct match_member){p->each[i].rank, p->each[i].bandwidth, p->chain[i]};
}

static uint32_t match_part_length(const struct match_message *message)
{
    uint32_t holds = match_part_holds(message);
    uint32_t left = message->list.count - match_part_first(message);
    return holds < left ? holds : left;
}

static const char *match_find_wrong_member(const struct match *m,
                                           const struct match_message *message)
{
    const struct match_part *part = &message->list;
    int64_t before = -1;
    if (part->count < 2 || part->count > m->size ||
        match_part_first(message) >= part->count)
        return "its length";
    if (!part->seq)
        return "the name of its group";
    for (uint32_t i = 0; i < match_part_length(message); i++) {
        struct match_member member = match_member_at(message, i);
        if (member.rank >= m->size || member.rank <= before)
            return "the ranks of its members";
        if (!match_is_bandwidth(member.bandwidth))
            return "the bandwidth of a member";
        before = member.rank;
    }
    return NULL;
}

/* Return what is wrong with a message; NULL: every rank, reason and number is within its bounds. */
static const char *match_find_wrong(const struct match *m,
                                    const struct match_message *message)
{
    const struct match_note *note = &message->note;
    bool rejects = message->kind == MATCH_REJECT;
    if (message->peer >= m->size || message->peer == m->rank)
        return "its sender";
    if (message->kind < MATCH_ASK || message->kind >= MATCH_KINDS)
        return "its kind";
    if (message->round > ROUND_LAST)
        return "its round";
    if (message->kind == MATCH_LIST)
        return match_find_wrong_member(m, message);
    if (note->attempt > UINT32_MAX || message->part)
        return "its attempt";
    if (message->kind == MATCH_ASK && !match_is_bandwidth(note->bandwidth))
        return "its bandwidth";
    if (message->kind == MATCH_ACCEPT &&
        (note->time < 0 || note->time > m->longest_window || note->confirm > 1))
        return "the time until the list, or a flag";
    if (!rejects && message->kind != MATCH_DISBAND)
        return NULL;
    if (rejects ? note->reason < REJECT_KEY || note->reason > REJECT_LOWER
                : note->reason != 0)
        return "its reason";
    if (note->hint >= m->size &&
        (note->hint != MATCH_NOBODY || note->reason == REJECT_FOLLOWS))
        return "the rank to ask instead";
    return note->at > ROUND_LAST ? "the round that its sender is at" : NULL;
}

static bool match_same_values(const struct match_member *a,
                              const struct match_member *b)
{
    return a->chain == b->chain &&
           !memcmp(&a->bandwidth, &b->bandwidth, sizeof a->bandwidth);
}

uint32_t match_part_holds(const struct match_message *message)
{
    CHECK(message->kind == MATCH_LIST);
    return message->part & PART_ALIKE ? PART_MEMBERS : 2;
}

uint32_t match_part_first(const struct match_message *message)
{
    return (message->part & (PART_ALIKE - 1u)) * match_part_holds(message);
}

void match_put_member(struct match_message *message, uint32_t i,
                      const struct match_member *member)
{
    struct match_part *p = &message->list;
    CHECK(i < match_part_holds(message));
    if (message->part & PART_ALIKE) {
        p->alike.bandwidth = member->bandwidth;
        p->alike.chain = member->chain;
        p->alike.rank[i] = (uint16_t)member->rank;
    } else {
        p->each[i].rank = member->rank;
        p->each[i].bandwidth = member->bandwidth;
        p->chain[i] = member->chain;
    }
}

/* Make the next part of this rank's own list; false: there is none. */
static bool match_next_part(struct match *m, struct match_message *out)
{
    struct match_outbox *o = &m->out;
    const struct match_list *list = &m->list;
    if (m->state != MATCH_FORMED || list->leader != m->rank)
        return false;
    if (o->to < list->count && m->members[o->to].rank == m->rank)
        o->to++;
    if (o->to >= list->count)
        return false;
    uint32_t peer = m->members[o->to].rank;
    *out = (struct match_message){
        .peer = peer,
        .kind = MATCH_LIST,
        .part = (uint16_t)(o->part | (o->alike ? PART_ALIKE : 0)),
        .round = m->goal.round,
        .list = {.count = (uint16_t)list->count,
                 .attempt = (uint16_t)m->peers[peer].ask.attempt,
                 .seq = list->seq}};
    uint32_t holds = match_part_length(out), first = match_part_first(out);
    CHECK(first < list->count);
    for (uint32_t i = 0; i < holds; i++)
        match_put_member(out, i, &m->members[first + i]);
    bool last = first + holds == list->count;
    o->part = last ? 0 : o->part + 1;
    o->to += last;
    return true;
}

bool match_next(struct match *m, struct match_message *out)
{
    struct match_outbox *o = &m->out;
    CHECK(o->head <= o->tail && o->tail - o->head <= o->capacity);
    if (o->head == o->tail)
        return match_next_part(m, out);
    *out = o->ring[o->head++ % o->capacity];
    return true;
}

/* Refuse the list that is arriving, if any. */
static void match_refuse_coming(struct match *m)
{
    if (m->state == MATCH_FOLLOWING && m->listed)
        match_refuse(m, m->leader, m->list.seq);
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

static void match_add_candidate(struct match *m, uint32_t peer, int64_t time)
{
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

/* Ask the lowest candidate, unless it is too late. */
static void match_ask_next(struct match *m)
{
    uint32_t peer = match_lowest_untried(m);
    if (peer == MATCH_NOBODY ||
        m->now > match_later(m->window_end, 2 * m->answer_timeout))
        return;
    struct match_peer *p = &m->peers[peer];
    m->attempt += 1 + (m->attempt == UINT32_MAX);
    p->attempt = m->attempt;
    p->candidate = CANDIDATE_ASKED;
    p->tries++;
    m->asking = peer;
    m->ask_by = match_later(m->now, m->answer_timeout);
    match_send(m, MATCH_ASK, peer, m->goal.round,
               &(struct match_note){.key = m->goal.key,
                                    .time = m->goal.time,
                                    .bandwidth = m->goal.self.bandwidth,
                                    .chain = m->goal.self.chain,
                                    .attempt = p->attempt});
}

static bool match_nobody_left(const struct match *m)
{
    for (uint32_t i = 0; i < m->candidate_count; i++)
        if (m->peers[m->candidates[i]].candidate != CANDIDATE_FINAL)
            return false;
    return true;
}

/* A candidate that is ahead may have left this round while others still come. So this rank is
 * behind only if a rank has reported the end of the round, or no other rank has come. */
static bool match_is_behind(const struct match *m)
{
    return m->ahead > m->goal.round && !m->follower_count && m->given &&
           (m->told || m->window_over || match_nobody_left(m));
}

/* Tell the leader, or the rank that was asked, that this rank leaves. */
static void match_withdraw(struct match *m)
{
    CHECK(match_active(m));
    uint32_t peer = m->state == MATCH_FOLLOWING ? m->leader : m->asking;
    if (peer == MATCH_NOBODY)
        return;
    match_send(m, MATCH_LEAVE, peer, m->goal.round,
               &(struct match_note){.attempt = m->peers[peer].attempt});
    m->peers[peer].attempt = 0;
}

/* Look again, for long enough to find other ranks that look again. */
static void match_stop_following(struct match *m)
{
    CHECK(m->state == MATCH_FOLLOWING && !m->follower_count);
    int64_t until = match_later(m->now, 2 * m->answer_timeout);
    match_refuse_coming(m);
    m->state = MATCH_LOOKING;
    m->leader = MATCH_NOBODY;
    m->offer = true;
    if (m->window_end < until)
        m->window_end = until;
    m->window_over = false;
}

/* Do not ask this rank again in this round. If it was asked or followed, tell it. */
static void match_dismiss(struct match *m, uint32_t peer)
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
        match_stop_following(m);
}

/* A rank is in that round. */
static void match_note_gone(struct match *m, uint32_t peer, uint64_t round)
{
    struct match_peer *p = &m->peers[peer];
    if (p->seen < round)
        p->seen = round;
    if (!match_active(m) || !p->of_key || p->seen <= m->goal.round)
        return;
    if (m->ahead < p->seen)
        m->ahead = p->seen;
    if (p->candidate != CANDIDATE_FINAL)
        match_dismiss(m, peer);
}

static void match_send_disband(struct match *m, uint32_t peer, uint32_t hint,
                               int64_t time)
{
    match_send(m, MATCH_DISBAND, peer, m->goal.round,
               &(struct match_note){
                   .hint = hint, .time = time, .attempt = m->peers[peer].ask.attempt});
}

static void match_disband(struct match *m, uint32_t hint, int64_t time)
{
    for (uint32_t i = 0; i < m->follower_count; i++) {
        match_send_disband(m, m->followers[i], hint, time);
        m->peers[m->followers[i]].follower = FOLLOWER_NOT;
        m->peers[m->followers[i]].ask.there = hint != MATCH_NOBODY;
    }
    m->follower_count = m->unconfirmed = 0;
}

/* If this rank follows now, it leads no rank any more: its followers ask the new leader. */
static void match_on_accept(struct match *m, const struct match_message *message)
{
    uint32_t peer = message->peer;
    struct match_peer *p = &m->peers[peer];
    struct match_note answer = {.attempt = message->note.attempt};
    bool current = m->state != MATCH_IDLE && message->round == m->goal.round &&
                   p->attempt && p->attempt == answer.attempt;
    bool free = m->asking == MATCH_NOBODY || m->asking == peer;
    if (current && m->state == MATCH_LOOKING && free) {
        m->state = MATCH_FOLLOWING;
        m->asking = MATCH_NOBODY;
        m->leader = peer;
        m->listed = 0;
        m->follow_by =
            match_later(match_later(m->now, 4 * m->answer_timeout), message->note.time);
        p->candidate = CANDIDATE_WAITING;
        if (message->note.confirm)
            match_send(m, MATCH_CONFIRM, peer, m->goal.round, &answer);
        match_disband(m, peer, p->time);
        return;
    }
    if (current && m->state == MATCH_FOLLOWING && m->leader == peer)
        return; /* It has accepted twice. */
    match_send(m, MATCH_LEAVE, peer, message->round, &answer);
    if (!current)
        return;
    p->attempt = 0;
    if (p->candidate == CANDIDATE_WAITING)
        p->candidate = CANDIDATE_UNTRIED;
}

/* Another rank knows a lower one that leads. An ask that is filed there will be answered. */
static void match_take_hint(struct match *m, uint32_t hint, int64_t time)
{
    if (hint < m->size && match_below(m, time, hint))
        match_add_candidate(m, hint, time);
}

static void match_on_reject(struct match *m, const struct match_message *message)
{
    const struct match_note *note = &message->note;
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

static void match_on_disband(struct match *m, const struct match_message *message)
{
    const struct match_note *note = &message->note;
    uint32_t peer = message->peer;
    struct match_peer *p = &m->peers[peer];
    if (m->state != MATCH_FOLLOWING || m->leader != peer ||
        message->round != m->goal.round || p->attempt != note->attempt)
        return;
    match_stop_following(m);
    if (note->hint == MATCH_NOBODY) { /* It has not filed the ask. */
        p->candidate = CANDIDATE_UNTRIED;
        p->attempt = 0;
    }
    match_take_hint(m, note->hint, note->time);
}

/* Leading. A peer's ask stays filed until it is answered finally: while it waits for a round to
 * begin, while its sender follows this rank, and while the reason of a rejection may go away. */

static void match_reject(struct match *m, uint32_t peer, enum match_reason reason)
{
    struct match_ask *ask = &m->peers[peer].ask;
    struct match_note note = {.reason = reason,
                              .hint = MATCH_NOBODY,
                              .at = m->has_left && m->left == ask->round ? m->left
                                    : m->state == MATCH_BEHIND           ? m->ahead
                                                                         : m->floor,
                              .attempt = ask->attempt};
    if (reason == REJECT_FOLLOWS) {
        note.hint = m->leader;
        note.time = m->peers[m->leader].time;
    }
    match_send(m, MATCH_REJECT, peer, ask->round, &note);
    ask->there = reason == REJECT_FOLLOWS || reason == REJECT_FULL;
}

static bool match_has_room(const struct match *m)
{
    return m->follower_count + 1 < m->goal.max_members;
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
    m->followers[at] = m->followers[--m->follower_count];
    m->offer = true; /* There is room for a filed ask. */
}

static void match_accept(struct match *m, uint32_t peer, bool confirm)
{
    struct match_peer *p = &m->peers[peer];
    CHECK(m->state == MATCH_LOOKING && p->ask.there);
    int64_t remaining = m->window_end > m->now ? m->window_end - m->now : 0;
    if (p->follower == FOLLOWER_NOT)
        m->followers[m->follower_count++] = peer;
    m->unconfirmed -= p->follower == FOLLOWER_UNCONFIRMED;
    m->unconfirmed += confirm;
    p->follower = confirm ? FOLLOWER_UNCONFIRMED : FOLLOWER_IN;
    p->confirm_by = match_later(m->now, m->answer_timeout);
    match_send(m, MATCH_ACCEPT, peer, m->goal.round,
               &(struct match_note){
                   .time = remaining, .confirm = confirm, .attempt = p->ask.attempt});
}

/* Answer a filed ask for the current round. */
static void match_answer(struct match *m, uint32_t peer)
{
    struct match_peer *p = &m->peers[peer];
    bool stale = m->now - p->ask.since > m->answer_timeout / 2;
    if (m->state == MATCH_BEHIND)
        match_reject(m, peer, REJECT_GONE);
    else if (p->ask.key != m->goal.key)
        match_reject(m, peer, REJECT_KEY);
    else if (m->state == MATCH_FORMED)
        match_reject(m, peer, REJECT_CLOSED);
    else if (match_below(m, p->ask.time, peer))
        match_reject(m, peer, REJECT_LOWER);
    else if (m->state == MATCH_FOLLOWING)
        match_reject(m, peer, REJECT_FOLLOWS);
    else if (p->follower == FOLLOWER_NOT && !match_has_room(m))
        match_reject(m, peer, REJECT_FULL);
    else
        match_accept(m, peer, stale);
}

static void match_on_ask(struct match *m, const struct match_message *message)
{
    const struct match_note *note = &message->note;
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
                                .since = m->now,
                                .member = {peer, note->bandwidth, note->chain},
                                .attempt = (uint32_t)note->attempt};
    if (message->round < m->floor)
        match_reject(m, peer, REJECT_GONE);
    else if (m->state != MATCH_IDLE && message->round == m->goal.round)
        match_answer(m, peer);
    match_note_gone(m, peer, message->round);
}

static void match_on_confirm(struct match *m, const struct match_message *message)
{
    struct match_peer *p = &m->peers[message->peer];
    if (p->follower != FOLLOWER_UNCONFIRMED || message->round != m->goal.round ||
        message->note.attempt != p->ask.attempt)
        return; /* This rank has told it already that its ask has ended. */
    p->follower = FOLLOWER_IN;
    m->unconfirmed--;
}

static void match_on_leave(struct match *m, const struct match_message *message)
{
    uint32_t peer = message->peer;
    struct match_peer *p = &m->peers[peer];
    if (!p->ask.there || p->ask.round != message->round ||
        p->ask.attempt != message->note.attempt)
        return;
    p->ask.there = false;
    if (m->state == MATCH_FORMED && p->follower != FOLLOWER_NOT)
        match_refuse(m, m->rank, m->list.seq);
    match_drop_follower(m, peer);
}

static bool match_is_filed(const struct match *m, uint32_t peer)
{
    return m->peers[peer].ask.there && m->peers[peer].ask.round == m->goal.round &&
           m->peers[peer].follower == FOLLOWER_NOT;
}

/* A follower is lost, or has not confirmed in time. */
static void match_drop_lost_follower(struct match *m, uint32_t peer)
{
    if (m->peers[peer].follower == FOLLOWER_NOT)
        return;
    match_send_disband(m, peer, MATCH_NOBODY, 0);
    m->peers[peer].ask.there = false;
    match_drop_follower(m, peer);
}

static bool match_may_close(const struct match *m)
{
    uint32_t members = m->follower_count + 1;
    bool enough = members >= m->goal.max_members ||
                  (m->goal.expected && members >= m->goal.expected);
    return m->window_over || (enough && m->given);
}

static int match_compare_ranks(const void *a, const void *b)
{
    uint32_t x = ((const struct match_member *)a)->rank;
    uint32_t y = ((const struct match_member *)b)->rank;
    return (x > y) - (x < y);
}

static void match_close(struct match *m)
{
    struct match_outbox *o = &m->out;
    uint32_t count = m->follower_count + 1;
    m->members[0] = m->goal.self;
    for (uint32_t i = 1; i < count; i++)
        m->members[i] = m->peers[m->followers[i - 1]].ask.member;
    qsort(m->members, count, sizeof *m->members, match_compare_ranks);
    m->list = (struct match_list){m->rank, ++m->seq, count, m->members};
    CHECK(count <= m->goal.max_members && m->seq);
    m->state = MATCH_FORMED;
    o->to = o->part = 0;
    o->alike = m->members[count - 1].rank <= UINT16_MAX;
    for (uint32_t i = 1; i < count; i++)
        o->alike &= match_same_values(&m->members[i], &m->members[0]);
}

/* Lists. A list is taken only from the leader that this rank follows, for the attempt that was
 * accepted, complete and valid. Others are refused, because their groups count on this rank. */

/* Add a part. False: it does not fit the parts before it. */
static bool match_add_part(struct match *m, const struct match_message *message)
{
    const struct match_part *part = &message->list;
    uint32_t first = match_part_first(message);
    if (!first) {
        m->list = (struct match_list){m->leader, part->seq, part->count, m->members};
        m->listed = 0;
    }
    if (part->count > m->goal.max_members || part->count != m->list.count ||
        part->seq != m->list.seq || first != m->listed ||
        (first && match_member_at(message, 0).rank <= m->members[first - 1].rank))
        return false;
    for (uint32_t i = 0; i < match_part_length(message); i++)
        m->members[m->listed++] = match_member_at(message, i);
    CHECK(m->listed <= m->list.count && m->list.count <= m->size);
    return true;
}

/* Return whether the list names this rank with its values, and the leader. */
static bool match_list_is_valid(const struct match *m)
{
    bool self = false, leader = false;
    for (uint32_t i = 0; i < m->list.count; i++) {
        const struct match_member *member = &m->members[i];
        self = self ||
               (member->rank == m->rank && match_same_values(member, &m->goal.self));
        leader = leader || member->rank == m->leader;
    }
    return self && leader;
}

/* Take a part that has arrived. Dismiss its sender if it does not fit the parts before it. */
static void match_on_list(struct match *m, const struct match_message *message)
{
    uint32_t from = message->peer;
    bool awaited = m->state == MATCH_FOLLOWING && from == m->leader &&
                   message->round == m->goal.round &&
                   message->list.attempt == (uint16_t)m->peers[from].attempt;
    if (!awaited && match_part_first(message))
        return;
    bool good = awaited && match_add_part(m, message);
    if (good && m->listed < m->list.count)
        return;
    if (good && match_list_is_valid(m)) {
        m->state = MATCH_FORMED;
        for (uint32_t i = 0; i < m->list.count; i++) {
            struct match_ask *ask = &m->peers[m->members[i].rank].ask;
            ask->there &= ask->round > m->goal.round; /* Forget earlier ones. */
        }
        return;
    }
    match_refuse(m, from, message->list.seq);
    if (!awaited)
        return;
    m->listed = 0;
    match_dismiss(m, from);
}

int match_init(struct match *m, uint32_t rank, uint32_t size, int64_t answer_timeout)
{
    *m = (struct match){.rank = rank,
                        .size = size,
                        .answer_timeout = answer_timeout,
                        .longest_window = INT64_MAX,
                        .asking = MATCH_NOBODY,
                        .leader = MATCH_NOBODY};
    if (rank >= size || size > INT32_MAX / 4 || answer_timeout <= 0 ||
        answer_timeout > INT64_MAX / 8)
        return fail(PCOLL_EINVAL,
                    "matchmaking: expected a rank below size and an answer timeout of "
                    "more than 0 ns, got %u of %u and %lld",
                    rank, size, (long long)answer_timeout);
    struct match_outbox *o = &m->out;
    o->capacity = 4 * size + 16; /* One event causes at most 2 * size + 4. */
    o->ring = calloc(o->capacity, sizeof *o->ring);
    m->peers = calloc(size, sizeof *m->peers);
    m->candidates = calloc(size, sizeof *m->candidates);
    m->followers = calloc(size, sizeof *m->followers);
    m->members = calloc(size, sizeof *m->members);
    if (o->ring && m->peers && m->candidates && m->followers && m->members)
        return PCOLL_OK;
    match_destroy(m);
    return fail(PCOLL_ENOMEM, "no memory for the matchmaking of %u ranks", size);
}

void match_destroy(struct match *m)
{
    free(m->peers);
    free(m->candidates);
    free(m->followers);
    free(m->members);
    free(m->out.ring);
    *m = (struct match){0};
}

/* Check the invariants that hold after every event. */
static void match_check_state(const struct match *m)
{
    CHECK(m->candidate_count < m->size && m->follower_count < m->size &&
          m->unconfirmed <= m->follower_count);
    CHECK(m->asking == MATCH_NOBODY || m->state == MATCH_LOOKING);
    CHECK((m->leader == MATCH_NOBODY) != (m->state == MATCH_FOLLOWING) ||
          m->state == MATCH_FORMED);
    CHECK(m->state != MATCH_FOLLOWING || !m->follower_count);
    CHECK(m->state != MATCH_FORMED ||
          (m->list.count >= 1 && m->list.count <= m->goal.max_members));
    CHECK(m->state != MATCH_BEHIND || m->ahead > m->goal.round);
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

/* Execute the possible steps in state MATCH_LOOKING: ask, accept filed asks, close. */
static void match_look(struct match *m)
{
    if (m->state != MATCH_LOOKING)
        return;
    if (m->asking == MATCH_NOBODY)
        match_ask_next(m);
    if (m->asking != MATCH_NOBODY)
        return;
    for (uint32_t i = 0; m->offer && i < m->size && match_has_room(m); i++)
        if (match_is_filed(m, i))
            match_accept(m, i, true); /* If its sender confirms. */
    m->offer = false;
    if (m->unconfirmed)
        return;
    if (match_is_behind(m))
        m->state = MATCH_BEHIND;
    else if (match_may_close(m))
        match_close(m);
}

/* End an event. */
static void match_proceed(struct match *m)
{
    match_look(m);
    match_check_state(m);
}

void match_begin(struct match *m, int64_t now, const struct match_goal *goal)
{
    struct match_goal *g = &m->goal;
    match_end(m);
    m->now = now;
    *g = *goal;
    g->self.rank = m->rank;
    g->window = g->window > 0 ? g->window : 0;
    g->max_members = g->max_members ? g->max_members : 1;
    if (g->max_members > MATCH_MAX_MEMBERS)
        g->max_members = MATCH_MAX_MEMBERS;
    m->window_end = match_later(now, g->window);
    m->ahead = m->floor;
    if (g->round < m->floor) {
        m->state = MATCH_BEHIND;
        return;
    }
    m->floor = m->ahead = g->round;
    m->state = MATCH_LOOKING;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct match_ask *ask = &m->peers[i].ask;
        if (match_is_filed(m, i))
            match_answer(m, i);
        else if (ask->there && ask->round < m->goal.round)
            match_reject(m, i, REJECT_GONE);
    }
    match_proceed(m);
}

void match_candidates(struct match *m, int64_t now, const struct match_entry *entries,
                      uint32_t count)
{
    if (!match_active(m))
        return;
    m->now = now;
    for (uint32_t i = 0; i < count; i++)
        if (entries[i].peer < m->size)
            match_add_candidate(m, entries[i].peer, entries[i].time);
    m->given = true;
    for (uint32_t i = 0; i < m->candidate_count; i++)
        match_note_gone(m, m->candidates[i], 0);
    match_proceed(m);
}

void match_expect(struct match *m, int64_t now, uint32_t expected)
{
    m->now = now;
    m->goal.expected = expected;
    match_proceed(m);
}

void match_present(struct match *m, int64_t now, uint32_t peer, bool present)
{
    if (peer >= m->size || peer == m->rank)
        return;
    struct match_peer *p = &m->peers[peer];
    if (!present && p->ask.there)
        p->ask.since = now - m->answer_timeout; /* It has to confirm. */
    if (!match_active(m))
        return;
    m->now = now;
    if (!present) {
        match_drop_lost_follower(m, peer);
        match_dismiss(m, peer);
    } else if (p->candidate == CANDIDATE_FINAL)
        p->candidate = CANDIDATE_UNTRIED;
    match_proceed(m);
}

static void (*const match_handlers[])(struct match *m,
                                      const struct match_message *message) = {
    [MATCH_ASK] = match_on_ask,         [MATCH_ACCEPT] = match_on_accept,
    [MATCH_CONFIRM] = match_on_confirm, [MATCH_REJECT] = match_on_reject,
    [MATCH_LEAVE] = match_on_leave,     [MATCH_DISBAND] = match_on_disband,
    [MATCH_LIST] = match_on_list};

int match_on_message(struct match *m, int64_t now, const struct match_message *message)
{
    const char *wrong = match_find_wrong(m, message);
    if (wrong)
        return fail(PCOLL_EPROTOCOL,
                    "rank %u sent a matchmaking message of kind %u that cannot be: %s",
                    message->peer, message->kind, wrong);
    m->now = now;
    match_handlers[message->kind](m, message);
    match_proceed(m);
    return PCOLL_OK;
}

void match_tick(struct match *m, int64_t now)
{
    m->now = now;
    if (match_active(m)) {
        if (m->state == MATCH_FOLLOWING && now >= m->follow_by)
            match_dismiss(m, m->leader);
        if (m->asking != MATCH_NOBODY && now >= m->ask_by) {
            m->peers[m->asking].candidate = CANDIDATE_WAITING;
            m->asking = MATCH_NOBODY;
        }
        for (uint32_t i = m->follower_count; i-- && m->unconfirmed;) {
            const struct match_peer *p = &m->peers[m->followers[i]];
            if (p->follower == FOLLOWER_UNCONFIRMED && now >= p->confirm_by)
                match_drop_lost_follower(m, m->followers[i]);
        }
        m->window_over = now >= m->window_end;
    }
    match_proceed(m);
}

int64_t match_alarm(const struct match *m)
{
    if (m->state == MATCH_FOLLOWING)
        return m->follow_by;
    if (m->state != MATCH_LOOKING)
        return INT64_MAX;
    int64_t first = INT64_MAX;
    for (uint32_t i = 0; i < m->follower_count && m->unconfirmed; i++) {
        const struct match_peer *p = &m->peers[m->followers[i]];
        if (p->follower == FOLLOWER_UNCONFIRMED && p->confirm_by < first)
            first = p->confirm_by;
    }
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
        m->floor = m->goal.round + 1;
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
    m->out.head = m->out.tail = m->out.lost = 0; /* Drop all queued messages. */
    m->has_left = false;
    m->floor = m->ahead = first;
    match_check_state(m);
}

const struct match_list *match_formed(const struct match *m)
{
    return m->state == MATCH_FORMED ? &m->list : NULL;
}

bool match_bound(const struct match *m)
{
    return m->state == MATCH_FOLLOWING ||
           (m->state == MATCH_LOOKING && m->asking != MATCH_NOBODY);
}

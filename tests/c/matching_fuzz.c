/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary input to one machine of csrc/protocol/group/matchmaking.h: calls in any order, and
 * messages whose values are mostly near valid ones. The machine must not crash, must have an alarm
 * while it waits, and must send only to other peers and within bounds. A list that it forms is its
 * own, or one that was sent by the rank it follows and contains this rank's declaration.
 */
#include <string.h>

#include "base/random.h"
#include "protocol/group/matchmaking.h"
#include "check.h"
#include "matching.h"

enum { STEPS = 300, MAX_SIZE = 7 };

static struct {
    struct match m;
    uint64_t seed, n;
    int64_t now;
    uint32_t asked[MAX_SIZE]; /* attempt of the last ask to each peer */
    struct match_goal goal;
    struct match_message list; /* the last part received */
} f;

static uint32_t roll(uint32_t bound)
{
    return splitmix_below(f.seed, f.n++, bound);
}

static uint32_t some_peer(void)
{
    return roll(30) ? roll(f.m.size) : roll(2) ? f.m.size : UINT32_MAX;
}

static uint64_t some_round(void)
{
    return roll(20) ? f.goal.round + roll(3) - (f.goal.round ? roll(2) : 0)
                    : splitmix_at(f.seed, f.n++);
}

static uint64_t some_attempt(uint32_t peer)
{
    return peer < MAX_SIZE && roll(8) ? f.asked[peer] : roll(6);
}

/* Return a member of a list of all, or of the leader and this rank. */
static struct match_member member_of(uint32_t leader, uint32_t count, uint32_t i)
{
    uint32_t self = f.m.rank, low = leader < self ? leader : self;
    uint32_t rank = count > 2 ? i : i == 0 ? low : leader + self - low;
    rank += roll(60) == 0;
    if (rank == self && roll(30))
        return f.goal.self;
    return (struct match_member){rank, 1, 0};
}

/* Draw a part of a list, mostly one that continues the last part. */
static void draw_part(struct match_message *message)
{
    bool next = roll(12) && f.list.peer == message->peer &&
                f.list.round == message->round && f.list.kind == MATCH_LIST;
    uint64_t count = roll(2) ? 2 : f.m.size, seq = 1 + roll(3);
    bool follows = f.m.leader != MATCH_NOBODY && roll(4);
    uint64_t attempt = follows ? f.asked[f.m.leader] : some_attempt(message->peer);
    uint32_t leader = follows ? f.m.leader : message->peer;
    message->part = (uint16_t)(roll(12) == 0) | (roll(2) ? PART_ALIKE : 0);
    if (next)
        message->part = (uint16_t)(f.list.part + 1);
    memset(message->value, 0, sizeof message->value);
    message->value[3] = next ? f.list.value[3] : count | attempt << 16 | seq << 32;
    if (roll(40) == 0)
        message->value[3] += splitmix_at(f.seed, f.n++);
    uint32_t members = (uint16_t)message->value[3];
    for (uint32_t i = 0; i < match_part_holds(message); i++) {
        struct match_member who =
            member_of(leader, members, match_part_first(message) + i);
        match_put_member(message, i, &who);
    }
    f.list = *message;
}

/* Make it a message that this machine waits for. */
static void draw_apt(struct match_message *message)
{
    bool follows = f.m.state == MATCH_FOLLOWING;
    message->peer = follows ? (roll(5) ? f.m.leader : roll(f.m.size)) : f.m.asking;
    message->kind = follows ? MATCH_LIST : roll(3) ? MATCH_ACCEPT : MATCH_REJECT;
    message->round = f.goal.round;
}

static struct match_message draw_message(void)
{
    struct match_message message = {
        .peer = some_peer(),
        .kind = (uint16_t)(roll(40) ? roll(MATCH_KINDS) : roll(65536)),
        .round = some_round()};
    for (int i = 0; i < 3; i++)
        message.value[i] = roll(10) ? roll(5) : splitmix_at(f.seed, f.n++);
    if (roll(2) && (f.m.asking != MATCH_NOBODY || f.m.leader != MATCH_NOBODY))
        draw_apt(&message);
    message.value[3] = some_attempt(message.peer);
    if (message.kind == MATCH_REJECT || message.kind == MATCH_DISBAND)
        message.value[0] = roll(8) | (uint64_t)some_peer() << 32;
    if (message.kind == MATCH_LIST)
        draw_part(&message);
    return message;
}

static void draw_begin(void)
{
    static const uint32_t most[] = {MAX_SIZE, MAX_SIZE, MAX_SIZE, MAX_SIZE,
                                    0,        2,        3,        UINT32_MAX};
    uint64_t round = f.goal.round + roll(3);
    f.goal = (struct match_goal){.round = round,
                                 .key = roll(3),
                                 .time = roll(4),
                                 .max_members = most[roll(8)],
                                 .expected = roll(4) ? 0 : roll(5),
                                 .window = roll(20) ? roll(5000) : INT64_MAX,
                                 .self = {f.m.rank, 1 + (float)roll(3), roll(4)}};
    match_begin(&f.m, f.now, &f.goal);
    memset(f.asked, 0, sizeof f.asked);
}

static void draw_candidates(void)
{
    struct match_entry entries[4];
    uint32_t count = roll(5);
    for (uint32_t i = 0; i < count; i++)
        entries[i] = (struct match_entry){some_peer(), roll(6)};
    match_candidates(&f.m, f.now, entries, count);
}

/* Make one call. Return true if it also processed everything that was due. */
static bool act(void)
{
    struct match_message message;
    int rc;
    switch (roll(60)) {
    case 0:
        draw_begin();
        break;
    case 1:
    case 2:
    case 3:
        draw_candidates();
        break;
    case 4:
        match_expect(&f.m, f.now, roll(6));
        break;
    case 5:
        match_present(&f.m, f.now, some_peer(), false);
        break;
    case 6:
        match_present(&f.m, f.now, some_peer(), true);
        break;
    case 7:
        if (roll(2))
            match_end(&f.m);
        break;
    case 8:
        if (roll(2))
            match_end(&f.m);
        break;
    case 9:
    case 10:
    case 11:
        f.now += roll(2 * PATIENCE);
        match_tick(&f.m, f.now);
        return true;
    default:
        message = draw_message();
        rc = match_on_message(&f.m, f.now, &message);
        EXPECT(rc == PCOLL_OK || rc == PCOLL_EPROTOCOL, "%d: %s", rc,
               pcoll_last_error());
    }
    return false;
}

static void drain(void)
{
    struct match_message message;
    uint32_t sent = 0;
    while (match_next(&f.m, &message)) {
        bool to_driver = message.kind == MATCH_VOID;
        EXPECT(message.peer < f.m.size && (to_driver || message.peer != f.m.rank),
               "sent to %u", message.peer);
        EXPECT(to_driver || (message.kind >= MATCH_ASK && message.kind < MATCH_KINDS),
               "sent kind %u", message.kind);
        if (message.kind == MATCH_ASK)
            f.asked[message.peer] = (uint32_t)message.value[3];
        sent += message.kind != MATCH_LIST;
    }
    INVARIANT("messages", sent <= 2 * f.m.size + 4 && !f.m.out.lost,
              "%u messages at one time, of %u peers", sent, f.m.size);
}

static void check_list(enum match_state before, uint32_t followed)
{
    const struct match_list *list = match_formed(&f.m);
    bool self = false, leader = false;
    if (!list)
        return;
    INVARIANT("well formed",
              list->count >= 1 && list->count <= f.m.goal.max_members &&
                  list->count <= f.m.size && f.m.goal.round == f.goal.round,
              "%u members", list->count);
    uint32_t attempt = (uint16_t)(f.list.value[3] >> 16);
    if (before != MATCH_FORMED && list->leader != f.m.rank)
        INVARIANT("well formed",
                  f.list.peer == followed && attempt == f.asked[followed],
                  "it came from %u for ask %u", f.list.peer, attempt);
    if (before != MATCH_FORMED)
        INVARIANT("well formed",
                  list->leader == f.m.rank ||
                      (before == MATCH_FOLLOWING && list->leader == followed),
                  "the list of %u, following %u", list->leader, followed);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct match_member *m = &list->members[i];
        INVARIANT("well formed", m->rank < f.m.size && (!i || m->rank > m[-1].rank),
                  "member %u is %u", i, m->rank);
        leader = leader || m->rank == list->leader;
        self = self || (m->rank == f.m.rank && m->chain == f.goal.self.chain &&
                        m->bandwidth == f.goal.self.bandwidth);
    }
    INVARIANT("well formed", self && leader, "leader %u, or itself, is not in it",
              list->leader);
}

static bool check_alarm(bool ticked)
{
    enum match_state state = f.m.state;
    int64_t alarm = match_alarm(&f.m);
    bool waits = state == MATCH_LOOKING || state == MATCH_FOLLOWING;
    INVARIANT("alarm", !ticked || alarm > f.now, "at %lld, now %lld", (long long)alarm,
              (long long)f.now);
    INVARIANT("alarm", waits || alarm == INT64_MAX, "waits for nothing");
    return f.m.state == MATCH_FORMED && match_formed(&f.m)->leader != f.m.rank;
}

uint64_t matching_fuzz(uint64_t seed)
{
    uint64_t formed = 0;
    memset(&f, 0, sizeof f);
    f.seed = seed;
    uint32_t size = 1 + roll(MAX_SIZE);
    EXPECT_OK(match_init(&f.m, roll(size), size, PATIENCE));
    for (int i = 0; i < STEPS; i++) {
        enum match_state before = f.m.state;
        uint32_t followed = f.m.leader;
        bool ticked = act();
        check_list(before, followed);
        formed += check_alarm(ticked) && before != MATCH_FORMED;
        drain();
    }
    match_destroy(&f.m);
    return formed;
}

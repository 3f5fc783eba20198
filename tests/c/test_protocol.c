/* SPDX-License-Identifier: Apache-2.0 */
/* Headers, contributions and one rank's rounds, one by one. */
#include <string.h>

#include "protocol/member.h"
#include "protocol/recovery.h"
#include "check.h"

/* A carry that loses the race against an activation goes in alone. */
static void test_contribution_race(void)
{
    struct contribution c;
    contribution_init(&c, PCOLL_LATE_CARRY, false);
    contribution_publish(&c, contribution_plan(&c));
    struct deposit_plan plan = contribution_plan(&c);
    EXPECT(plan.carried == c.pending, "nothing to carry");
    int frozen = contribution_freeze(&c);
    EXPECT(frozen == plan.carried, "froze something else");
    EXPECT(!contribution_plan_holds(&c, plan), "would count a deposit twice");
    plan = contribution_plan(&c);
    EXPECT(plan.carried == NO_SLOT && plan.target != frozen,
           "writes into a frozen slot");
    contribution_publish(&c, plan);
    plan = contribution_plan(&c);
    EXPECT(plan.carried != frozen && plan.target != frozen &&
               plan.target != plan.carried,
           "three slots are not three");
    contribution_thaw(&c);
    EXPECT(contribution_freeze(&c) == plan.carried, "lost");
    EXPECT(contribution_freeze(&c) == NO_SLOT, "counted twice");
}

/* In place: the application's slot is never one that somebody reads. */
static void test_contribution_in_place(void)
{
    struct contribution c;
    contribution_init(&c, PCOLL_LATE_CARRY, true);
    for (int i = 0; i < 50; i++) {
        int filled = c.user;
        EXPECT(filled != c.pending && filled != c.frozen, "the user's slot is in use");
        struct deposit_plan plan = contribution_plan(&c);
        EXPECT(plan.target >= 0, "no slot");
        if (plan.carried == NO_SLOT)
            EXPECT(plan.target == filled, "copies for nothing");
        contribution_publish(&c, plan);
        if (i % 3 == 0)
            contribution_freeze(&c);
        if (i % 3 == 1)
            contribution_thaw(&c);
    }
}

struct header_storage {
    uint64_t words[16];
};

static void complete_round(struct member *m, bool joined)
{
    struct header_storage storage;
    struct round_header *h = (struct round_header *)&storage;
    round_header_clear(h, 2, m->frozen);
    member_freeze(m, h, 2);
    if (joined)
        bitset_fill(round_mask(h, 2, ROUND_JOINED), 2);
    member_complete(m, h, 2);
}

static void deposit(struct member *m, enum deposit_outcome expected)
{
    EXPECT_OK(member_begin(m));
    enum deposit_outcome outcome =
        member_publish(m, contribution_plan(&m->contribution));
    EXPECT(outcome == expected, "outcome %d", outcome);
}

static void take(struct member *m, uint64_t expected, uint64_t expected_lost)
{
    uint64_t round, lost;
    EXPECT(member_ready(m), "not ready");
    EXPECT(member_read_begin(m, UINT64_MAX, UINT64_MAX, &round), "nothing to read");
    member_read_end(m, &lost);
    INVARIANT("order", round == expected && lost == expected_lost,
              "round %llu, lost %llu", (unsigned long long)round,
              (unsigned long long)lost);
}

static pcoll_options options_of(int deliver, int late, uint32_t history)
{
    return (pcoll_options){.deliver = deliver, .late = late, .history = history};
}

static void test_member_one(void)
{
    struct member m;
    pcoll_options o = options_of(PCOLL_DELIVER_ONE, PCOLL_LATE_CARRY, 2);
    member_init(&m, 0, &o);
    deposit(&m, DEPOSIT_ARRIVED);
    EXPECT(member_begin(&m) == PCOLL_ESTATE, "started twice");
    complete_round(&m, false);
    take(&m, 0, 0);
    EXPECT(member_included(&m, 0), "not included");
    EXPECT_OK(member_finish(&m));
    complete_round(&m, false);
    EXPECT(member_admits(&m), "held back with a lag of 1, history 2");
    complete_round(&m, false);
    EXPECT(!member_admits(&m), "not held back with a lag of 2, history 2");
    deposit(&m, DEPOSIT_STORED);
    take(&m, 1, 0);
    EXPECT(m.holds_back == false && member_admits(&m), "still held back");
    EXPECT(!member_included(&m, 1), "a stored deposit is not in an older round");
    EXPECT_OK(member_finish(&m));
    EXPECT(member_finish(&m) == PCOLL_ESTATE, "finished twice");
}

static void test_member_all(void)
{
    struct member m;
    pcoll_options o = options_of(PCOLL_DELIVER_ALL, PCOLL_LATE_DROP, 2);
    member_init(&m, 0, &o);
    for (int i = 0; i < 5; i++) {
        EXPECT(member_admits(&m), "deliver=all holds the others back");
        complete_round(&m, false);
    }
    deposit(&m, DEPOSIT_DROPPED);
    take(&m, 3, 3);
    take(&m, 4, 0);
    EXPECT_OK(member_finish(&m));
    deposit(&m, DEPOSIT_ARRIVED);
    EXPECT(!member_ready(&m), "ready without a round");
    complete_round(&m, false);
    take(&m, 5, 0);
    EXPECT(m.stats.lost == 3, "%llu lost", (unsigned long long)m.stats.lost);
}

/* While a result is being copied out, its slot is not used again. */
static void test_member_copying(void)
{
    struct member m;
    pcoll_options o = options_of(PCOLL_DELIVER_ALL, PCOLL_LATE_CARRY, 2);
    member_init(&m, 0, &o);
    uint64_t round, lost;
    complete_round(&m, false);
    EXPECT(member_read_begin(&m, UINT64_MAX, UINT64_MAX, &round), "nothing to read");
    complete_round(&m, false);
    complete_round(&m, false);
    EXPECT(!member_admits(&m), "round 3 would overwrite round 0, which is being read");
    EXPECT(member_read_end(&m, &lost), "nobody is told that it goes on");
    EXPECT(member_admits(&m), "still held");
}

/* What a read found lost that came to nothing is told by the next one, also where the member
 * goes on in another domain in between. */
static void test_member_overwritten(void)
{
    struct member m;
    pcoll_options o = options_of(PCOLL_DELIVER_ALL, PCOLL_LATE_DROP, 2);
    member_init(&m, 0, &o);
    uint64_t round, failed[1] = {0};
    for (int i = 0; i < 4; i++)
        complete_round(&m, false);
    EXPECT(member_read_begin(&m, UINT64_MAX, UINT64_MAX, &round) && round == 2,
           "not round 2");
    for (int i = 0; i < 3; i++)
        complete_round(&m, false);
    EXPECT(!member_read_begin(&m, 4, UINT64_MAX, &round), "no round up to 4 is kept");
    struct header_storage storage;
    struct round_header *last = (struct round_header *)&storage;
    round_header_clear(last, 2, 6);
    member_recover(&m, 7, last, failed, 2);
    deposit(&m, DEPOSIT_DROPPED);
    take(&m, 5, 5);
    take(&m, 6, 0);
    EXPECT(m.stats.lost == 5, "%llu lost", (unsigned long long)m.stats.lost);
}

static void test_member_join(void)
{
    struct member m;
    pcoll_options o = options_of(PCOLL_DELIVER_ONE, PCOLL_LATE_CARRY, 4);
    member_init(&m, 1, &o);
    EXPECT(!member_arrived(&m), "arrived by itself");
    EXPECT_OK(member_join(&m));
    EXPECT(member_arrived(&m), "a rank that joins has to say so");
    complete_round(&m, false);
    EXPECT(!m.live && !member_arrived(&m), "still starts rounds after it has joined");
    take(&m, 0, 0);
    EXPECT(m.joining, "joined too early");
    complete_round(&m, true);
    EXPECT(m.live && !member_arrived(&m), "starts a round although all have joined");
    take(&m, 1, 0);
    EXPECT(!m.joining, "does not see that all have joined");
    EXPECT_OK(member_finish(&m));
    EXPECT_OK(member_leave(&m));
    EXPECT(member_arrived(&m), "a rank that leaves has to say so");
    EXPECT(member_begin(&m) == PCOLL_ESTATE, "starts after it has left");
}

static void test_header_merge(void)
{
    struct header_storage sa, sb;
    struct round_header *a = (struct round_header *)&sa,
                        *b = (struct round_header *)&sb;
    EXPECT(round_header_bytes(1) == 64 && round_header_bytes(65) == 128, "sizes");
    round_header_clear(a, 8, 5);
    round_header_clear(b, 8, 5);
    EXPECT(round_is_null(a, 8), "not null");
    bitset_add(round_mask(b, 8, ROUND_ACTIVE), 3);
    bitset_add(round_mask(a, 8, ROUND_LEFT), 1);
    b->initiator = 3;
    round_header_merge(a, a, b, 8);
    EXPECT(a->round == 5 && a->initiator == 3 && !round_is_null(a, 8),
           "merged wrongly");
    EXPECT(bitset_has(round_mask(a, 8, ROUND_LEFT), 1), "lost a bit");
}

int main(void)
{
    test_contribution_race();
    test_contribution_in_place();
    test_member_one();
    test_member_all();
    test_member_copying();
    test_member_overwritten();
    test_member_join();
    test_header_merge();
    printf("protocol: all tests passed\n");
    return 0;
}

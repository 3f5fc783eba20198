/* SPDX-License-Identifier: Apache-2.0 */
/* Headers, contributions and the rounds of one rank. */
#include <string.h>

#include "protocol/member.h"
#include "check.h"

/* Freeze as a round does when it activates. */
static int freeze(struct contribution *c)
{
    c->frozen = c->pending;
    c->pending = NO_SLOT;
    return c->frozen;
}

/* A carry that loses the race against an activation contributes only its new data. */
static void test_contribution_race(void)
{
    struct contribution c;
    contribution_init(&c, PCOLL_LATE_CARRY, false);
    contribution_publish(&c, contribution_plan(&c));
    struct deposit_plan plan = contribution_plan(&c);
    EXPECT(plan.carried == c.pending, "nothing to carry");
    int frozen = freeze(&c);
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
    c.frozen = NO_SLOT;
    EXPECT(freeze(&c) == plan.carried, "lost");
    EXPECT(freeze(&c) == NO_SLOT, "counted twice");
}

/* In place: no round reads the slot that the application fills. */
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
            freeze(&c);
        if (i % 3 == 1)
            c.frozen = NO_SLOT;
    }
}

struct header_storage {
    uint64_t words[32];
};

/* Freeze a round with the deposit, if any, and complete it. */
static void complete_round(struct member *m)
{
    if (freeze(&m->contribution) != NO_SLOT) {
        m->taken_in = (int64_t)m->frozen;
        m->contribution.frozen = NO_SLOT;
    }
    m->frozen++;
    m->complete++;
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
    complete_round(&m);
    take(&m, 0, 0);
    EXPECT(member_included(&m, 0), "not included");
    EXPECT_OK(member_finish(&m));
    complete_round(&m);
    complete_round(&m);
    deposit(&m, DEPOSIT_STORED);
    take(&m, 1, 0);
    EXPECT(!member_included(&m, 1), "a stored deposit is not in an older round");
    EXPECT_OK(member_finish(&m));
    EXPECT(member_finish(&m) == PCOLL_ESTATE, "finished twice");
}

static void test_member_all(void)
{
    struct member m;
    pcoll_options o = options_of(PCOLL_DELIVER_ALL, PCOLL_LATE_DROP, 2);
    member_init(&m, 0, &o);
    for (int i = 0; i < 5; i++)
        complete_round(&m);
    deposit(&m, DEPOSIT_DROPPED);
    take(&m, 3, 3);
    take(&m, 4, 0);
    EXPECT_OK(member_finish(&m));
    deposit(&m, DEPOSIT_ARRIVED);
    complete_round(&m);
    take(&m, 5, 0);
    EXPECT(m.stats.lost == 3, "%llu lost", (unsigned long long)m.stats.lost);
}

/* If a read delivers nothing, the next one reports the rounds that it found lost, also
 * after the member has moved to another domain. */
static void test_member_overwritten(void)
{
    struct member m;
    pcoll_options o = options_of(PCOLL_DELIVER_ALL, PCOLL_LATE_DROP, 2);
    member_init(&m, 0, &o);
    uint64_t round;
    for (int i = 0; i < 4; i++)
        complete_round(&m);
    EXPECT(member_read_begin(&m, UINT64_MAX, UINT64_MAX, &round) && round == 2,
           "not round 2");
    for (int i = 0; i < 3; i++)
        complete_round(&m);
    EXPECT(!member_read_begin(&m, 4, UINT64_MAX, &round), "no round up to 4 is kept");
    struct header_storage storage;
    struct round_header *last = (struct round_header *)&storage;
    round_header_clear(last, 6);
    member_recover(&m, 7, last);
    deposit(&m, DEPOSIT_DROPPED);
    take(&m, 5, 5);
    take(&m, 6, 0);
    EXPECT(m.stats.lost == 5, "%llu lost", (unsigned long long)m.stats.lost);
}
static void test_header_merge(void)
{
    struct header_storage sa, sb;
    struct round_header *a = (struct round_header *)&sa,
                        *b = (struct round_header *)&sb;
    EXPECT(round_header_bytes(1) == 64 && round_header_bytes(65) == 192, "sizes");
    round_header_clear(a, 5);
    round_header_clear(b, 5);
    EXPECT(round_is_null(a, 8), "not null");
    round_add(b, 8, ROUND_ACTIVE, 3, 4);
    round_add(a, 8, ROUND_LEFT, 1, 2);
    b->initiator = 3;
    round_header_merge(a, a, b, 8);
    EXPECT(a->round == 5 && a->initiator == 3 && !round_is_null(a, 8),
           "merged wrongly");
    EXPECT(round_has(a, 8, ROUND_LEFT, 1), "lost a bit");
}

/* Any two different intents are detected, however often and in whatever order they are
 * merged. A rank without an intent agrees with all others. */
static void test_intents(void)
{
    EXPECT(!round_intent(0) && !round_intents_differ(0), "0 is an intent");
    for (uint64_t n = 1; n < 5000; n++) {
        uint64_t word = round_intent(n),
                 other = round_intent(n ^ (uint64_t)1 << n % 64);
        EXPECT(!round_intents_differ(word | word), "%llu", (unsigned long long)n);
        EXPECT(n == 1 || round_intents_differ(word | other), "%llu",
               (unsigned long long)n);
    }
    struct header_storage sa, sb;
    struct round_header *a = (struct round_header *)&sa,
                        *b = (struct round_header *)&sb;
    round_header_clear(a, 5);
    round_header_clear(b, 5);
    round_add(a, 8, ROUND_ACTIVE, 3, 4);
    a->intent = round_intent(7);
    round_header_merge(b, a, b, 8);
    INVARIANT("intents", !round_is_null(b, 8) && b->intent == a->intent,
              "lost an intent");
    b->intent = round_intent(8);
    round_header_merge(b, b, a, 8);
    EXPECT(round_is_null(b, 8), "data goes with ranks that differ");
}

/* Headers of many ranks on the wire. */

struct wire_case {
    const char *what;
    struct {
        enum round_mask mask;
        uint32_t begin, end; /* end 0: up to the last rank */
    } run[7];
    uint32_t runs;
    bool is_long;
};

static struct round_header *allocate_header(uint32_t ranks)
{
    size_t bytes = round_header_bytes(ranks);
    char *memory = malloc(bytes);
    memset(memory, 0xff, bytes); /* A header may be at the very start of its memory. */
    struct round_header *h = (struct round_header *)(void *)(memory + bytes) - 1;
    round_header_clear(h, 5);
    return h;
}

static void free_header(struct round_header *h, uint32_t ranks)
{
    free((char *)(h + 1) - round_header_bytes(ranks));
}

/* Compare the header with the runs of the case, rank by rank. */
static void check_sets(const struct round_header *h, uint32_t ranks,
                       const struct wire_case *c)
{
    for (enum round_mask m = 0; m < ROUND_MASKS; m++) {
        uint32_t count = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            bool has = false;
            for (uint32_t i = 0; i < c->runs; i++)
                has = has || (c->run[i].mask == m && rank >= c->run[i].begin &&
                              rank < (c->run[i].end ? c->run[i].end : ranks));
            EXPECT(round_has(h, ranks, m, rank) == has, "P=%u, %s: rank %u in set %d",
                   ranks, c->what, rank, (int)m);
            count += has;
        }
        EXPECT(round_count(h, ranks, m) == count, "P=%u, %s: %u in set %d", ranks,
               c->what, round_count(h, ranks, m), (int)m);
    }
}

static void check_wire(uint32_t ranks, const struct wire_case *c)
{
    struct round_header *h = allocate_header(ranks), *back = allocate_header(ranks);
    size_t bytes = round_header_bytes(ranks);
    h->initiator = ranks - 1;
    h->flags = ROUND_BELOW_QUORUM;
    h->intent = round_intent(ranks) | 1; /* Any word. */
    for (uint32_t i = 0; i < c->runs; i++) {
        uint32_t end = c->run[i].end ? c->run[i].end : ranks;
        for (uint32_t rank = c->run[i].begin; rank < end; rank++)
            round_add(h, ranks, c->run[i].mask, rank, rank + 1);
    }
    size_t encoded = round_header_length(h, ranks);
    EXPECT(encoded == (c->is_long ? bytes : sizeof *h), "P=%u, %s: %zu bytes", ranks,
           c->what, encoded);
    const char *wire = (char *)(h + 1) - encoded;
    EXPECT_OK(round_header_decode(back, wire, encoded, ranks, 5));
    INVARIANT("intents", back->intent == h->intent, "P=%u, %s: lost an intent", ranks,
              c->what);
    EXPECT(!memcmp(wire, (char *)(back + 1) - encoded, encoded),
           "P=%u, %s: decodes differently", ranks, c->what);
    check_sets(h, ranks, c);
    EXPECT(round_header_decode(back, wire, encoded, ranks, 6) == PCOLL_EPROTOCOL,
           "P=%u, %s: of another round", ranks, c->what);
    free_header(h, ranks);
    free_header(back, ranks);
}

static void test_header_wire(void)
{
    static const struct wire_case cases[] = {
        {.what = "none"},
        {.what = "one", .run = {{ROUND_ACTIVE, 64, 65}}, .runs = 1},
        {.what = "all", .run = {{ROUND_ACTIVE, 0, 0}, {ROUND_STORED, 0, 0}}, .runs = 2},
        {.what = "all but one",
         .run = {{ROUND_ACTIVE, 0, 63}, {ROUND_ACTIVE, 64, 0}, {ROUND_STORED, 3, 4}},
         .runs = 3},
        {.what = "all have left, and some are dead",
         .run = {{ROUND_LEFT, 0, 0}, {ROUND_FAILED, 1, 3}, {ROUND_FAILED, 60, 65}},
         .runs = 3},
        {.what = "five runs",
         .run = {{ROUND_ACTIVE, 0, 1},
                 {ROUND_ACTIVE, 2, 3},
                 {ROUND_ACTIVE, 4, 5},
                 {ROUND_JOINED, 8, 64},
                 {ROUND_LEFT, 9, 0}},
         .runs = 5},
        {.what = "six runs",
         .run = {{ROUND_ACTIVE, 0, 1},
                 {ROUND_ACTIVE, 2, 3},
                 {ROUND_ACTIVE, 4, 5},
                 {ROUND_STORED, 4, 5},
                 {ROUND_JOINED, 8, 64},
                 {ROUND_LEFT, 9, 0}},
         .runs = 6,
         .is_long = true},
    };
    static const uint32_t sizes[] = {66, 127, 128, 200, 4096, 65536};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++)
            check_wire(sizes[i], &cases[j]);
}

static void refuse_wire(const struct round_header *wire, const char *what)
{
    struct round_header *h = allocate_header(100);
    EXPECT(round_header_decode(h, wire, sizeof *wire, 100, 5) == PCOLL_EPROTOCOL, "%s",
           what);
    free_header(h, 100);
}

static void test_hostile_header(void)
{
    struct round_header good = {
        .round = 5, .initiator = 99, .form = 1, .run = {{.begin = 0, .end = 100}}};
    struct round_header *h = allocate_header(100);
    EXPECT_OK(round_header_decode(h, &good, sizeof good, 100, 5));
    free_header(h, 100);
    struct round_header wire = good;
    wire.run[0].end = 101;
    refuse_wire(&wire, "a rank that does not exist");
    wire = good;
    wire.run[0].begin = 100;
    refuse_wire(&wire, "a run without ranks");
    wire.run[0].begin = UINT32_MAX;
    refuse_wire(&wire, "a run that ends before it begins");
    wire = good;
    wire.form = 7;
    for (int i = 0; i < ROUND_RUNS; i++)
        wire.run[i].end = 100;
    refuse_wire(&wire, "more runs than there is room for");
    wire = good;
    wire.form = ROUND_LONG | 1;
    refuse_wire(&wire, "a form that does not exist");
    wire = good;
    wire.form = 1 << 3;
    refuse_wire(&wire, "ranks that are stored and not active");
    wire = good;
    wire.form = 2;
    wire.run[0].end = wire.run[1].begin = 50;
    wire.run[1].end = 100;
    refuse_wire(&wire, "two runs where one would do");
    wire.form = ROUND_LONG;
    refuse_wire(&wire, "sets that are not there");
    wire = good;
    wire.initiator = 100;
    refuse_wire(&wire, "an initiator that does not exist");
    wire = good;
    wire.flags = 2;
    refuse_wire(&wire, "a flag that does not exist");
}

int main(void)
{
    test_contribution_race();
    test_contribution_in_place();
    test_member_one();
    test_member_all();
    test_member_overwritten();
    test_header_merge();
    test_intents();
    test_header_wire();
    test_hostile_header();
    printf("protocol: all tests passed\n");
    return 0;
}

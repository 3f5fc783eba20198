/* SPDX-License-Identifier: Apache-2.0 */
/* Policies: their text, their draws, and when they are met. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "protocol/policy.h"
#include "check.h"

static void test_text(void)
{
    static const struct {
        const char *text, *canonical;
    } good[] = {
        {"solo", "solo"},
        {"majority", "majority"},
        {"full", "full"},
        {"quorum:6", "quorum:6"},
        {"quorum:0.75", "quorum:0.75"},
        {"quorum:1", "quorum:1"},
        {"quorum:1.0", "quorum:1.0"},
        {"quorum:5e-1", "quorum:0.5"},
        {"first_of:2", "first_of:2"},
        {"last_of:03", "last_of:3"},
        {"solo,linger=50us", "solo,linger=50us"},
        {"solo,linger=0.00005", "solo,linger=50us"},
        {"quorum:6,linger=50us,deadline=2s,max_staleness=8",
         "quorum:6,linger=50us,deadline=2s,max_staleness=8"},
        {"full,deadline=2000ms", "full,deadline=2s"},
        {"full,max_staleness=1,deadline=1ns", "full,deadline=1ns,max_staleness=1"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        pcoll_policy p, again;
        char text[200], twice[200];
        EXPECT_OK(pcoll_policy_parse(good[i].text, &p));
        EXPECT_OK(pcoll_policy_format(&p, text, sizeof text));
        EXPECT(!strcmp(text, good[i].canonical), "%s became %s", good[i].text, text);
        EXPECT_OK(pcoll_policy_parse(text, &again));
        EXPECT_OK(pcoll_policy_format(&again, twice, sizeof twice));
        EXPECT(!strcmp(text, twice), "%s became %s", text, twice);
        EXPECT(pcoll_policy_format(&p, text, 4) == PCOLL_EINVAL, "no room, and taken");
    }
}

static void test_wrong_text(void)
{
    static const char *const wrong[] = {
        "",
        "Solo",
        "solo ",
        " solo",
        "half",
        "majority,",
        "full:1",
        "solo:",
        "quorum",
        "quorum:",
        "quorum:0",
        "quorum:-1",
        "quorum:1.5",
        "quorum:0.0",
        "quorum:nan",
        "quorum:inf",
        "quorum:0x4",
        "quorum:4294967296",
        "quorum:6ranks",
        "first_of:0.5",
        "first_of",
        "last_of:0",
        "solo,linger",
        "solo,linger=",
        "solo,linger=0",
        "solo,linger=-1us",
        "solo,linger=1h",
        "solo,linger=1us,linger=2us",
        "solo,deadline=1e9",
        "solo,max_staleness=0",
        "solo,max_staleness=1.5",
        "solo,max_staleness=",
        "solo,speed=1",
        "solo,,",
        "solo;linger=1us",
        "solo,linger=1 us",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pcoll_policy p = {.kind = 77};
        EXPECT(pcoll_policy_parse(wrong[i], &p) == PCOLL_EINVAL, "accepted \"%s\"",
               wrong[i]);
        EXPECT(strstr(pcoll_last_error(), "quorum: expected") && p.kind == 77, "%s: %s",
               wrong[i], pcoll_last_error());
    }
}

static void test_check(void)
{
    static const char *const impossible[] = {"quorum:5", "first_of:5", "last_of:9"};
    static const char *const possible[] = {"quorum:4", "first_of:4", "last_of:1",
                                           "quorum:0.01"};
    pcoll_policy p;
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(pcoll_policy_parse(impossible[i], &p));
        EXPECT(policy_check(&p, 4) == PCOLL_EINVAL, "%s of 4", impossible[i]);
        EXPECT(strstr(pcoll_last_error(), "expected 1 to 4 ranks"), "%s",
               pcoll_last_error());
    }
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(pcoll_policy_parse(possible[i], &p));
        EXPECT_OK(policy_check(&p, 4));
    }
    p = (pcoll_policy){.kind = PCOLL_QUORUM, .fraction = NAN};
    EXPECT(policy_check(&p, 4) == PCOLL_EINVAL, "a fraction that is no number");
    p = (pcoll_policy){.kind = PCOLL_SOLO, .linger = -1};
    EXPECT(policy_check(&p, 4) == PCOLL_EINVAL, "a negative linger");
    p = (pcoll_policy){.kind = PCOLL_SOLO, .deadline = -1};
    EXPECT(policy_check(&p, 4) == PCOLL_EINVAL, "a negative deadline");
    char text[64];
    p = (pcoll_policy){.kind = 99};
    EXPECT(policy_check(&p, 4) == PCOLL_EINVAL, "an unknown kind");
    EXPECT(pcoll_policy_format(&p, text, sizeof text) == PCOLL_EINVAL,
           "an unknown kind");
}

enum { RANKS = 10, DRAWS = 20000 };

/* A round of ten ranks and its masks. */
struct bed {
    struct policy_round round;
    struct policy_draw draw;
    uint64_t live, drawn, overdue;
};

static void make(struct bed *b, uint64_t live)
{
    *b = (struct bed){.live = live, .draw = {.seed = 42, .endpoints = RANKS}};
    b->round = (struct policy_round){
        .ranks = RANKS,
        .words = 1,
        .live = &b->live,
        .drawn = &b->drawn,
        .overdue = &b->overdue,
    };
}

static void open_round(struct bed *b, const pcoll_policy *policy,
                       const uint32_t *absences)
{
    b->round.live_count = (uint32_t)__builtin_popcountll(b->live);
    policy_open(policy, &b->draw, absences, &b->round);
}

/* Every rank is drawn equally often, m different ones in each round, and never one that
 * has left. */
static void test_draws(void)
{
    for (uint32_t m = 1; m <= RANKS; m++) {
        struct bed b;
        pcoll_policy p = {.kind = PCOLL_FIRST_OF, .count = m};
        int count[RANKS] = {0}, coordinator[RANKS] = {0};
        make(&b, (1u << RANKS) - 1);
        for (b.draw.round = 0; b.draw.round < DRAWS; b.draw.round++) {
            open_round(&b, &p, NULL);
            EXPECT(b.round.drawn_count == m, "%u of %u drawn", b.round.drawn_count, m);
            coordinator[b.round.coordinator]++;
            for (uint32_t i = 0; i < RANKS; i++)
                count[i] += bitset_has(&b.drawn, i);
        }
        for (int i = 0; i < RANKS; i++) {
            double expected = (double)DRAWS * m / RANKS;
            EXPECT(fabs(count[i] - expected) < 0.1 * expected + 1, "rank %d: %d of %g",
                   i, count[i], expected);
            EXPECT(abs(coordinator[i] - DRAWS / RANKS) < 200, "coordinator %d: %d", i,
                   coordinator[i]);
        }
        b.live &= ~(uint64_t)(1 << 3);
        open_round(&b, &p, NULL);
        EXPECT(!bitset_has(&b.drawn, 3), "a rank that has left was drawn");
        EXPECT(b.round.drawn_count == (m < RANKS ? m : m - 1), "%u drawn of %u",
               b.round.drawn_count, m);
        b.live = 0;
        open_round(&b, &p, NULL);
        EXPECT(!b.round.drawn_count, "drawn from no ranks");
    }
}

/* majority draws the rank that first_of(1) draws. */
static void test_majority_is_first_of_one(void)
{
    struct bed b;
    pcoll_policy majority = {.kind = PCOLL_MAJORITY},
                 first = {.kind = PCOLL_FIRST_OF, .count = 1};
    make(&b, (1u << RANKS) - 1);
    for (b.draw.round = 0; b.draw.round < 100; b.draw.round++) {
        open_round(&b, &majority, NULL);
        uint64_t drawn = b.drawn;
        open_round(&b, &first, NULL);
        EXPECT(drawn == b.drawn, "round %llu", (unsigned long long)b.draw.round);
        EXPECT(*policy_awaited(&first, &b.round) == drawn, "awaited");
    }
}

static bool met(struct bed *b, const char *text, uint64_t arrived, uint64_t deposited,
                uint64_t members)
{
    uint32_t absences[RANKS] = {0};
    pcoll_policy p;
    absences[7] = 2;
    EXPECT_OK(pcoll_policy_parse(text, &p));
    open_round(b, &p, absences);
    struct policy_report report = policy_count(&b->round, &arrived, &deposited);
    b->round.own_count = (uint32_t)__builtin_popcountll(members & b->live);
    return policy_met(&p, &b->round, &report);
}

static void test_met(void)
{
    struct bed b;
    make(&b, (1u << RANKS) - 1);
    uint64_t all = b.live, few = 0x13;
    EXPECT(!met(&b, "solo", 0, all, all) && met(&b, "solo", 2, 0, all), "solo");
    EXPECT(!met(&b, "quorum:4", few, all, all) && met(&b, "quorum:3", few, 0, all),
           "quorum");
    EXPECT(!met(&b, "quorum:0.31", few, 0, all) && met(&b, "quorum:0.3", few, 0, all),
           "fractions are rounded up");
    EXPECT(met(&b, "full", few, 0, few) && !met(&b, "full", few, 0, 0x93), "full");
    EXPECT(!met(&b, "solo,max_staleness=2", few, 0, all), "rank 7 is overdue");
    EXPECT(met(&b, "solo,max_staleness=2", few, 0x80, all), "it has a deposit");
    EXPECT(met(&b, "solo,max_staleness=3", few, 0, all), "it is not overdue yet");
    b.live = 0x93; /* 0, 1, 4, 7 */
    EXPECT(met(&b, "quorum:9", 0x93, 0, all) && !met(&b, "quorum:9", few, 0, all),
           "never more than are live");
    EXPECT(!met(&b, "quorum:1", 0x20, 0, all), "one that has left counts");
    EXPECT(met(&b, "full", 0, 0, 0x60), "one that has left holds a full round up");
    b.live = 0;
    EXPECT(!met(&b, "full", 0, 0, all) && !met(&b, "quorum:1", 0, 0, all) &&
               !met(&b, "last_of:2", 0, 0, all),
           "a round starts without live ranks");
}

int main(void)
{
    test_text();
    test_wrong_text();
    test_check();
    test_draws();
    test_majority_is_first_of_one();
    test_met();
    printf("policies: all tests passed\n");
    return 0;
}

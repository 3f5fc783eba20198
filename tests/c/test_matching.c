/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matchmaking (csrc/protocol/group/matchmaking.h) of 1 to 40 simulated peers, in several keys and
 * rounds, under seeded delays, clocks, failures and reports of failures; matching_check.c has the
 * invariants. Also arbitrary messages at any time to one machine.
 *
 *   PARTIALCOLL_SEED=n        run only seed n
 *   PARTIALCOLL_SCHEDULES=n   seeds 1 to n (default 20000)
 *   PARTIALCOLL_FUZZ=n        machines with arbitrary input (default 5000)
 */
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "matching.h"

static struct matching_plan draw_plan(uint64_t seed)
{
    struct matching_plan p = {.seed = seed};
#define DRAW(n, bound) splitmix_below(seed, 1000000 + (n), bound)
    p.peers = DRAW(1, 20) ? 1 + DRAW(2, 9) : 10 + DRAW(2, MAX_PEERS - 9);
    p.rounds = 1 + DRAW(3, p.peers > 9 ? 2 : MAX_ROUNDS - 1);
    p.keys = 1 + DRAW(4, p.peers < 3 ? p.peers : 3);
    p.delays = (enum delays)(DRAW(5, 8) > 2 ? DRAW(6, 2) : 2);
    p.delay = 1 + DRAW(7, PATIENCE / 4);
    p.knowledge = (enum knowledge)DRAW(8, 2);
    p.look_up = (1 + DRAW(9, 3)) * PATIENCE;
    p.wrong_times = DRAW(10, 8) == 0;
    p.wrong_keys = DRAW(19, 8) == 0;
    p.expectation = (enum expectation)DRAW(11, 3);
    p.most = DRAW(12, 4) ? MAX_PEERS : 1 + DRAW(13, p.peers);
    p.window = (DRAW(14, 4) ? 40 : DRAW(15, 22)) * PATIENCE;
    static const int64_t spreads[] = {0, PATIENCE / 4, 6 * PATIENCE, 20 * PATIENCE,
                                      90 * PATIENCE};
    p.spread = spreads[DRAW(16, 5)];
    p.alike = DRAW(20, 2);
    p.faults = DRAW(17, 2);
    p.false_reports = DRAW(18, 8) == 0;
    return p;
}

static void describe(const struct matching_plan *p)
{
    static const char *delays[] = {"constant", "uniform", "heavy"};
    static const char *expected[] = {"unknown", "known", "told later"};
    snprintf(check_context, sizeof check_context,
             "PARTIALCOLL_SEED=%llu: %u peers, %u rounds, %u keys, %s delays of %lld, "
             "%s%s%s, expected %s, most %u, window %lld, spread %lld%s%s",
             (unsigned long long)p->seed, p->peers, p->rounds, p->keys,
             delays[p->delays], (long long)p->delay,
             p->knowledge == KNOW_ALL ? "static" : "directory",
             p->wrong_times ? " with wrong times" : "",
             p->wrong_keys ? " with wrong keys" : "", expected[p->expectation], p->most,
             (long long)p->window, (long long)p->spread, p->faults ? ", faults" : "",
             p->false_reports ? ", false reports" : "");
}

static void dump(FILE *out)
{
    static const char *states[] = {"idle", "looking", "following", "formed", "behind"};
    static const char *fates[] = {"", " stops", " pauses", " leaves"};
    fprintf(out, "  at %lld:\n", (long long)sim.now);
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        const struct sim_peer *p = &sim.peers[i];
        const struct match *m = &p->m;
        fprintf(out, "  %2u: round %llu key %llu %s", i, (unsigned long long)p->round,
                (unsigned long long)m->goal.key, states[m->state]);
        if (m->leader != MATCH_NOBODY)
            fprintf(out, " (leader %u)", m->leader);
        if (m->asking != MATCH_NOBODY)
            fprintf(out, " asking %u", m->asking);
        fprintf(out, ", %u followers, %u unconfirmed, ahead %llu", m->follower_count,
                m->unconfirmed, (unsigned long long)m->ahead);
        if (p->fate)
            fprintf(out, "%s at %lld until %lld", fates[p->fate], (long long)p->fate_at,
                    (long long)p->back_at);
        fputs(p->done ? " done\n" : "\n", out);
        for (uint64_t r = 0; r < sim.plan.rounds; r++)
            if (p->rounds[r].begun)
                fprintf(out, "        round %llu: %lld to %lld, group %d%s\n",
                        (unsigned long long)r, (long long)p->rounds[r].begun_at,
                        (long long)p->rounds[r].over_at,
                        p->rounds[r].formed ? p->rounds[r].group : -1,
                        p->rounds[r].behind ? " behind" : "");
    }
}

static uint64_t messages, together; /* of all seeds */

static void run(uint64_t seed)
{
    struct matching_plan plan = draw_plan(seed);
    describe(&plan);
    sim_run(&plan);
    sim_destroy();
    messages += sim.messages;
    together += sim.together;
}

/* Deliver messages until there are none. */
static void deliver(struct match *m, uint32_t peers, int64_t now)
{
    bool more = true;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < peers; i++) {
            struct match_message message;
            while (match_next(&m[i], &message)) {
                struct match *to = &m[message.peer];
                message.peer = i;
                EXPECT_OK(match_on_message(to, now, &message));
                more = true;
            }
        }
    }
}

static void join(struct match *m, uint32_t peers, uint32_t peer, uint64_t round)
{
    struct match_entry all[8];
    struct match_goal goal = {
        .round = round, .max_members = 8, .window = 40 * PATIENCE};
    for (uint32_t i = 0; i < peers; i++)
        all[i] = (struct match_entry){.peer = i};
    match_begin(&m[peer], 0, &goal);
    match_candidates(&m[peer], 0, all, peers);
    deliver(m, peers, 0);
}

/* Rank 2 leaves a round and is already in the next one when rank 1 begins. Rank 0 stays
 * in the round. */
static void test_left_and_back(void)
{
    struct match m[3];
    for (uint32_t i = 0; i < 3; i++)
        EXPECT_OK(match_init(&m[i], i, 3, PATIENCE));
    join(m, 3, 0, 5);
    join(m, 3, 2, 5);
    match_end(&m[2]);
    deliver(m, 3, 0);
    join(m, 3, 2, 6);
    join(m, 3, 1, 5);
    match_expect(&m[0], 0, 2);
    deliver(m, 3, 0);
    const struct match_list *list = match_formed(&m[1]);
    INVARIANT("together", list && list->count == 2 && list->leader == 0,
              "ranks 0 and 1 are not in one group");
    INVARIANT("together", m[2].state == MATCH_LOOKING,
              "rank 2 does not wait for the others");
    for (uint32_t i = 0; i < 3; i++)
        match_destroy(&m[i]);
}

/* A rank that begins a round that is over is behind, and so is one that asks. */
static void test_behind(void)
{
    struct match m[2];
    for (uint32_t i = 0; i < 2; i++)
        EXPECT_OK(match_init(&m[i], i, 2, PATIENCE));
    join(m, 2, 0, 7);
    match_tick(&m[0], 40 * PATIENCE);
    EXPECT(match_formed(&m[0]) && match_formed(&m[0])->count == 1, "not alone");
    match_end(&m[0]);
    join(m, 2, 1, 7);
    INVARIANT("ahead", m[1].state == MATCH_BEHIND && m[1].ahead == 8,
              "rank 1 is not behind, or is told %llu", (unsigned long long)m[1].ahead);
    join(m, 2, 0, 7);
    INVARIANT("ahead", m[0].state == MATCH_BEHIND && m[0].ahead == 8,
              "a round is begun again");
    for (uint32_t i = 0; i < 2; i++)
        match_destroy(&m[i]);
}

/* The same with ranks that need more than 16 bits. */
static void test_large_ranks(void)
{
    enum { SIZE = 70000, HIGH = SIZE - 1 };
    struct match m[2];
    struct match_goal goal = {.max_members = 8, .expected = 2, .window = 40 * PATIENCE};
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT_OK(match_init(&m[i], i * HIGH, SIZE, PATIENCE));
        match_begin(&m[i], 0, &goal);
    }
    match_candidates(&m[0], 0, &(struct match_entry){.peer = HIGH}, 1);
    match_candidates(&m[1], 0, &(struct match_entry){.peer = 0}, 1);
    for (uint32_t i = 0; i < 6; i++) {
        struct match_message message;
        while (match_next(&m[i % 2], &message)) {
            message.peer = i % 2 * HIGH;
            INVARIANT("genuine messages are valid",
                      !match_on_message(&m[1 - i % 2], 0, &message), "of rank %u",
                      message.peer);
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        const struct match_list *list = match_formed(&m[i]);
        INVARIANT("same list",
                  list && list->count == 2 && list->members[0].rank == 0 &&
                      list->members[1].rank == HIGH,
                  "not ranks 0 and %d", HIGH);
        match_destroy(&m[i]);
    }
}

static void test_bad_input(void)
{
    struct match m;
    EXPECT(match_init(&m, 3, 3, PATIENCE) == PCOLL_EINVAL, "rank 3 of 3");
    EXPECT(match_init(&m, 0, 0, PATIENCE) == PCOLL_EINVAL, "no ranks");
    EXPECT(match_init(&m, 0, 3, 0) == PCOLL_EINVAL, "no patience");
    EXPECT(match_init(&m, 0, 3, INT64_MAX) == PCOLL_EINVAL, "too much patience");
}

static void fuzz(uint64_t cases)
{
    uint64_t formed = 0;
    for (uint64_t seed = 1; seed <= cases; seed++) {
        snprintf(check_context, sizeof check_context, "PARTIALCOLL_FUZZ=%llu, the last",
                 (unsigned long long)seed);
        formed += matching_fuzz(seed);
    }
    EXPECT(cases < 1000 || formed > cases / 20, "only %llu lists were formed",
           (unsigned long long)formed);
    printf("matching: %llu times any messages, %llu lists formed\n",
           (unsigned long long)cases, (unsigned long long)formed);
}

int main(void)
{
    check_dump = dump;
    uint64_t schedules = check_seeds(20000, run);
    printf(
        "matching: %llu schedules, %llu messages, %llu rounds of those that are well: "
        "all invariants held\n",
        (unsigned long long)schedules, (unsigned long long)messages,
        (unsigned long long)together);
    check_dump = NULL;
    snprintf(check_context, sizeof check_context, "a single case");
    test_left_and_back();
    test_behind();
    test_large_ranks();
    test_bad_input();
    fuzz(check_setting("PARTIALCOLL_FUZZ", 5000));
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The invariants of docs/semantics.md over simulated ranks, for every policy, late and
 * deliver, P from 1 to 17, one to four handles, all endings. The checks themselves are
 * in world.c and spy.c: this file says what is run.
 *
 *   PARTIALCOLL_SEED=n     run seed n only, again
 *   PARTIALCOLL_SCHEDULES  how many (default 6000)
 */
#include <stdlib.h>
#include <string.h>

#include "../../csrc/base/splitmix.h"
#include "check.h"
#include "world.h"

static const char *const endings[] = {"loop", "join", "leave"};

/* A run drawn from its seed. */
static struct world_options draw(uint64_t seed)
{
    uint64_t n = 0;
#define DRAW(bound) splitmix_below(seed, n++, (bound))
    struct world_options o = {.seed = seed};
    o.ranks = 1 + DRAW(17);
    if (DRAW(50) == 0)
        o.ranks = DRAW(2) ? 32 : 64;
    o.handles = DRAW(3) ? 1 : 2 + (int)DRAW(3);
    o.ending = (enum world_ending)DRAW(3);
    bool all = o.handles == 1 && DRAW(2);
    for (int k = 0; k < o.handles; k++) {
        o.handle[k] = (struct world_handle){.policy = (int)DRAW(3),
                                            .deliver = all ? PCOLL_DELIVER_ALL
                                                           : PCOLL_DELIVER_ONE,
                                            .late = (int)DRAW(3),
                                            .history = DRAW(4) ? 1 + DRAW(8) : 1};
    }
    o.calls = 1 + DRAW(30);
    static const uint32_t counts[] = {1, 1, 2, 3, 7, 64, 257};
    o.count = counts[DRAW(7)];
    static const int64_t thinks[] = {0, 1000, 10000, 100000};
    o.think = thinks[DRAW(4)];
    o.slow = DRAW(2) ? DRAW(o.ranks) : UINT32_MAX;
#undef DRAW
    return o;
}

static void run(uint64_t seed, struct world_report *report)
{
    struct world_options o = draw(seed);
    snprintf(
        check_context, sizeof check_context,
        "PARTIALCOLL_SEED=%llu: %u ranks, %d handles, first policy %d deliver %d late "
        "%d history %u, ending %s, %llu calls",
        (unsigned long long)seed, o.ranks, o.handles, o.handle[0].policy,
        o.handle[0].deliver, o.handle[0].late, o.handle[0].history, endings[o.ending],
        (unsigned long long)o.calls);
    world_run(&o, report);
}

/* bitwise reproducible: under full the timing must not show. */
static void test_reproducible(void)
{
    for (uint32_t ranks = 1; ranks <= 17; ranks++) {
        uint64_t hash = 0;
        for (uint64_t seed = 1; seed <= 5; seed++) {
            struct world_options o = {.ranks = ranks,
                                      .seed = seed,
                                      .handles = 1,
                                      .calls = 10,
                                      .count = 33,
                                      .think = 5000,
                                      .slow = UINT32_MAX};
            o.handle[0] = (struct world_handle){PCOLL_FULL, PCOLL_DELIVER_ONE,
                                                PCOLL_LATE_CARRY, 4};
            struct world_report report;
            world_run(&o, &report);
            CHECK(report.rounds[0] == 10, "%llu rounds",
                  (unsigned long long)report.rounds[0]);
            CHECK(!hash || hash == report.hash[0], "%u ranks: other bits", ranks);
            hash = report.hash[0];
        }
    }
}

/* The draw of majority: on average half of the ranks are there, when they come one by
 * one. */
static void test_majority_half(void)
{
    struct world_options o = {.ranks = 16,
                              .seed = 3,
                              .handles = 1,
                              .calls = 400,
                              .count = 1,
                              .think = 4000000,
                              .slow = UINT32_MAX};
    o.handle[0] =
        (struct world_handle){PCOLL_MAJORITY, PCOLL_DELIVER_ONE, PCOLL_LATE_DROP, 8};
    struct world_report report;
    world_run(&o, &report);
    CHECK(report.active_mean > 6 && report.active_mean < 12, "%g active of 16",
          report.active_mean);
}

int main(void)
{
    const char *one = getenv("PARTIALCOLL_SEED");
    const char *many = getenv("PARTIALCOLL_SCHEDULES");
    if (one) {
        run(strtoull(one, NULL, 10), NULL);
        printf("seed %s: passed\n", one);
        return 0;
    }
    uint64_t schedules = many ? strtoull(many, NULL, 10) : 6000, rounds = 0, lost = 0;
    for (uint64_t seed = 1; seed <= schedules; seed++) {
        struct world_report report;
        run(seed, &report);
        for (int k = 0; k < WORLD_MOST_HANDLES; k++)
            rounds += report.rounds[k];
        lost += report.lost;
    }
    snprintf(check_context, sizeof check_context, "fixed runs");
    test_reproducible();
    test_majority_half();
    printf(
        "%llu schedules, %llu rounds, %llu rounds lost to slow ranks: all invariants "
        "held\n",
        (unsigned long long)schedules, (unsigned long long)rounds,
        (unsigned long long)lost);
    return 0;
}

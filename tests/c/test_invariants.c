/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: interleaved (with points at which other ranks may run). */
/*
 * The invariants of docs/semantics.md over simulated ranks, for all variants that space.c lists.
 * invariants.c, spy.c and wire.c have the checks; this file selects the runs.
 *
 * seeds.h says how to run selected seeds (default: 8000).
 */
#include <string.h>

#include "check.h"
#include "seeds.h"
#include "space.h"

/* A hand-chosen world. */
static struct world_options plain(uint32_t ranks, uint64_t seed, const char *policy)
{
    struct world_options o = {
        .ranks = ranks,
        .seed = seed,
        .handles = 1,
        .generations = 1,
        .calls = 10,
        .count = 33,
        .think = 5000,
        .slow = UINT32_MAX,
        .network = {.L = 2500, .latency = PCOLL_LATENCY_UNIFORM, .spread = 0.8}};
    o.handle[0] = (struct world_handle){.deliver = PCOLL_DELIVER_ONE,
                                        .late = PCOLL_LATE_CARRY,
                                        .op = PCOLL_SUM,
                                        .history = 10};
    while (strcmp(space_policies[o.handle[0].policy].text, policy))
        o.handle[0].policy++;
    return o;
}

/* Reproducible: under full, timing does not change the bits. */
static void test_reproducible(void)
{
    for (uint32_t ranks = 1; ranks <= 17; ranks++) {
        uint64_t hash = 0;
        for (uint64_t seed = 1; seed <= 5; seed++) {
            struct world_options o = plain(ranks, seed, "full");
            struct world_report report;
            o.fractions = true;
            o.grouping = (int)ranks % space_grouping_count();
            o.network.L = 1000.0 * (double)seed;
            world_run(&o, &report);
            EXPECT(report.rounds[0] == 10, "%llu rounds",
                   (unsigned long long)report.rounds[0]);
            INVARIANT("reproducible", !hash || hash == report.hash[0],
                      "%u ranks: other bits", ranks);
            hash = report.hash[0];
        }
    }
}

/* The draw of majority: if ranks come one by one, on average half are in a round. */
static void test_majority_half(void)
{
    struct world_options o = plain(16, 3, "majority");
    struct world_report report;
    o.calls = 400;
    o.think = 4000000;
    o.handle[0].late = PCOLL_LATE_DROP;
    world_run(&o, &report);
    INVARIANT("quorum", report.active_mean > 6 && report.active_mean < 12,
              "%g active of 16", report.active_mean);
}

/* Liveness: under solo a rank completes all its calls while all others are idle. */
static void test_wait_free(void)
{
    int64_t const a_second = 1000000000;
    for (uint32_t i = 0; i < 4 * 17; i++) {
        uint32_t ranks = 1 + i / 4;
        struct world_options o = plain(ranks, ranks, "solo");
        struct world_report report;
        o.awake = ranks / 2;
        o.asleep = a_second;
        o.in_call = i & 1;
        o.grouping = (int)i % space_grouping_count();
        if (i & 2) {
            o.handle[0].deliver = PCOLL_DELIVER_ALL;
            o.handle[0].history = 2;
        }
        world_run(&o, &report);
        INVARIANT("liveness", report.loops_over[o.awake] < a_second,
                  "of %u ranks, rank %u waited for one that sleeps", ranks, o.awake);
    }
}

/* Timers: rank 0 completes all its calls while all others sleep, because lingers end
 * and deadlines pass. */
static void test_timers(void)
{
    int64_t const a_second = 1000000000;
    for (int policy = 0; policy < space_policy_count(); policy++) {
        for (int modifier = 0; modifier < space_modifier_count(); modifier++) {
            struct world_options o = plain(7, 1, "solo");
            struct world_report report;
            o.handle[0].policy = policy;
            o.handle[0].modifier = modifier;
            o.asleep = a_second;
            o.grouping = (policy + modifier) % space_grouping_count();
            pcoll_policy p = space_policy_of(&o.handle[0]);
            bool alone =
                p.kind == PCOLL_SOLO || (p.kind == PCOLL_QUORUM && p.count == 1);
            if (!(p.deadline > 0) && !(alone && !p.max_staleness))
                continue;
            world_run(&o, &report);
            INVARIANT("liveness", report.loops_over[0] < a_second,
                      "%s waited for those that sleep",
                      space_policy_text(&o.handle[0]));
        }
    }
}

/* Linger: ranks that arrive a little later are included. When all have arrived, the
 * round does not wait for the end of the linger. */
static void test_linger(void)
{
    struct world_options o = plain(8, 1, "solo");
    struct world_report with, without;
    o.think = 1000;
    o.handle[0].late = PCOLL_LATE_DROP;
    world_run(&o, &without);
    o.handle[0].modifier = space_modifier(",linger=30us,max_staleness=2");
    world_run(&o, &with);
    INVARIANT("quorum",
              with.active_mean > 7.9 && with.active_mean > without.active_mean,
              "%g active of 8 with linger, %g without", with.active_mean,
              without.active_mean);
    INVARIANT("liveness", with.loops_over[0] < 10 * 30000,
              "10 rounds took %lld ns, although all were there before 30 us",
              (long long)with.loops_over[0]);
}

/* max_staleness: an overdue rank with a deposit, even a late one, delays no round,
 * whatever it does afterwards. */
static void test_stored_is_enough(void)
{
    struct world_options o = plain(2, 1, "solo");
    struct world_report report;
    o.handle[0].modifier = space_modifier(",max_staleness=1");
    o.calls = 2;
    o.think = 0;
    o.asleep = 20000;
    o.slow = 1;
    o.slow_think = 1000000000;
    world_run(&o, &report);
    INVARIANT("liveness", report.loops_over[0] < 1000000,
              "rank 0 waited %lld ns for a deposit that was there",
              (long long)report.loops_over[0]);
}

static void test_fixed(void)
{
    snprintf(check_context, sizeof check_context, "fixed runs");
    test_reproducible();
    test_majority_half();
    test_wait_free();
    test_timers();
    test_linger();
    test_stored_is_enough();
}

int main(void)
{
    return seeds_run(space_draw, 8000, test_fixed);
}

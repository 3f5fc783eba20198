/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated microbenchmark through its C interface: results, memory, refusals. */
#include <math.h>
#include <string.h>

#include "include/simulator.h"
#include "check.h"

static pcoll_skew skew_of(uint32_t ranks)
{
    return (pcoll_skew){
        .ranks = ranks, .count = 5, .skew = 1e6, .network = {.L = 2000, .o = 100}};
}

static pcoll_options options_of(int kind, int late)
{
    return (pcoll_options){.policy = {kind}, .late = late, .history = 1};
}

static void test_run(uint32_t ranks, int kind)
{
    enum { ITERATIONS = 5, MOST = 70 };
    pcoll_skew skew = skew_of(ranks);
    pcoll_options options = options_of(kind, PCOLL_LATE_DROP);
    pcoll_skew_run *run;
    pcoll_skew_result result;
    double latency[MOST];
    EXPECT_OK(pcoll_skew_create(&skew, &options, &run));
    for (int i = 0; i < ITERATIONS; i++) {
        EXPECT_OK(pcoll_skew_iterate(run, latency, &result));
        EXPECT(!result.wrong && result.active >= 1 && result.active <= ranks,
               "%u ranks: %llu wrong, %u active", ranks,
               (unsigned long long)result.wrong, result.active);
        if (kind == PCOLL_SOLO)
            EXPECT(result.active == 1, "solo with %u active", result.active);
        if (kind == PCOLL_FULL)
            EXPECT(result.active == ranks, "full with %u active", result.active);
        for (uint32_t r = 0; r < ranks; r++)
            EXPECT(latency[r] >= 0 && latency[r] < 1e6 * ranks + 1e5, "rank %u: %g ns",
                   r, latency[r]);
        EXPECT(kind != PCOLL_SOLO || latency[0] >= 0, "the initiator: %g", latency[0]);
    }
    EXPECT_OK(pcoll_skew_free(&run));
    EXPECT(!run, "not forgotten");
    EXPECT_OK(pcoll_skew_free(&run));
}

static void refuse(pcoll_skew skew, pcoll_options options, const char *complaint)
{
    pcoll_skew_run *run = NULL;
    int rc = pcoll_skew_create(&skew, &options, &run);
    EXPECT(rc == PCOLL_EINVAL && !run, "%s: %d", complaint, rc);
    EXPECT(strstr(pcoll_last_error(), complaint), "expected \"%s\", got \"%s\"",
           complaint, pcoll_last_error());
}

static void test_refused(void)
{
    pcoll_options good = options_of(PCOLL_SOLO, PCOLL_LATE_DROP), bad = good;
    pcoll_skew skew = skew_of(8);
    skew.ranks = 0;
    refuse(skew, good, "ranks: expected 1 to");
    skew = skew_of(8);
    skew.skew = NAN;
    refuse(skew, good, "skew: expected 0 to");
    skew = skew_of(8);
    skew.network.L = -1;
    refuse(skew, good, "L (latency): expected 0 to");
    skew = skew_of(8);
    skew.network.G = INFINITY;
    refuse(skew, good, "G (gap per byte): expected 0 to");
    skew = skew_of(8);
    skew.network.latency = 99;
    refuse(skew, good, "latency: expected one of");
    skew = skew_of(8);
    skew.network.latency = PCOLL_LATENCY_UNIFORM;
    skew.network.spread = 1.5;
    refuse(skew, good, "latency: expected a spread of 0 to 1");
    skew = skew_of(8);
    skew.count = (uint64_t)1 << 60;
    refuse(skew, good, "more than can be held");
    bad.history = 0;
    refuse(skew_of(8), bad, "history: expected 1 to");
    bad = options_of(77, PCOLL_LATE_DROP);
    refuse(skew_of(8), bad, "unknown policy");
}

static void test_memory(void)
{
    pcoll_skew skew = skew_of(64);
    pcoll_options options = options_of(PCOLL_SOLO, PCOLL_LATE_DROP);
    uint64_t few, many;
    EXPECT_OK(pcoll_skew_memory(&skew, &options, &few));
    skew.ranks *= 4;
    EXPECT_OK(pcoll_skew_memory(&skew, &options, &many));
    EXPECT(many > 4 * few && few > 64 * 1000, "%llu and %llu bytes",
           (unsigned long long)few, (unsigned long long)many);
}

int main(void)
{
    for (uint32_t ranks = 1; ranks <= 70; ranks += ranks < 17 ? 1 : 13)
        for (int kind = PCOLL_SOLO; kind <= PCOLL_FULL; kind++)
            test_run(ranks, kind);
    test_refused();
    test_memory();
    printf("simulation: all tests passed\n");
    return 0;
}

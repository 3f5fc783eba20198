/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: interleaved (with points at which other ranks may run). */
/*
 * Simulated ranks, of which one to three die at any step. The others continue
 * (docs/faults.md), and the invariants hold. seeds.h says how to run selected seeds.
 */
#include <string.h>

#include "check.h"
#include "seeds.h"
#include "space.h"

enum { COMPARED = 64 };

/* A seed determines a run, whatever ran before it in the process. */
static void test_order_of_seeds(void)
{
    static struct world_report upwards[COMPARED];
    for (uint64_t i = 0; i < COMPARED; i++) {
        struct world_options o = space_draw_crashes(i + 1);
        world_run(&o, &upwards[i]);
    }
    for (uint64_t i = COMPARED; i-- > 0;) {
        struct world_options o = space_draw_crashes(i + 1);
        struct world_report downwards;
        world_run(&o, &downwards);
        INVARIANT("reproducible", !memcmp(&downwards, &upwards[i], sizeof downwards),
                  "seed %llu depends on what ran before it", (unsigned long long)i + 1);
    }
}

int main(void)
{
    return seeds_run(space_draw_crashes, 2000, test_order_of_seeds);
}

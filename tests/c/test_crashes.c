/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: interleaved (with points at which others may come between). */
/*
 * Simulated ranks of which one to three die at any step: the others go on
 * (docs/faults.md), and the invariants hold. seeds.h says how to run some of them.
 */
#include "seeds.h"
#include "space.h"

int main(void)
{
    return seeds_run(space_draw_crashes, 2000, NULL);
}

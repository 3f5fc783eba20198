/* SPDX-License-Identifier: Apache-2.0 */
/* What each algorithm needs: temporaries, pieces, operations. */
#include "algorithms/algorithms.h"

enum { MAX_CHAINS = MAX_TEMPS / 2 };

#ifdef PCOLL_TEST_CHAIN_BYTES
enum { CHAIN_BYTES = PCOLL_TEST_CHAIN_BYTES };
#else
enum { CHAIN_BYTES = 128 * 1024 };
#endif

uint32_t largest_power_of_two(uint32_t size)
{
    uint32_t power = 1;
    while (power <= size / 2)
        power *= 2;
    return power;
}

/* Pieces of about CHAIN_BYTES: while one is reduced, another is on its way. */
static uint32_t ring_chains(uint32_t size, size_t bytes)
{
    size_t chains = bytes / size / CHAIN_BYTES;
    return chains < 1 ? 1 : chains > MAX_CHAINS ? MAX_CHAINS : (uint32_t)chains;
}

void algorithm_plan(enum pcoll_algorithm algorithm, uint32_t size, size_t bytes,
                    struct algorithm_plan *plan)
{
    *plan = (struct algorithm_plan){.algorithm = algorithm, .temps = 2};
    if (algorithm == PCOLL_ALGORITHM_RABENSEIFNER)
        plan->padded = largest_power_of_two(size);
    if (algorithm == PCOLL_ALGORITHM_NATIVE)
        plan->temps = 0;
    if (algorithm == PCOLL_ALGORITHM_RING) {
        plan->chains = ring_chains(size, bytes);
        plan->pieces = size * plan->chains;
        plan->temps = 2 * (int)plan->chains;
    }
}

uint32_t algorithm_operations(const struct algorithm_plan *plan, uint32_t size)
{
    uint32_t steps = (uint32_t)activation_edges(size);
    if (plan->algorithm == PCOLL_ALGORITHM_RING)
        return 6 * size * plan->chains;
    return plan->algorithm == PCOLL_ALGORITHM_RABENSEIFNER ? 8 + 6 * steps
                                                           : 8 + 3 * steps;
}

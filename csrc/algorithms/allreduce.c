/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithms by name, and what each needs. */
#include "algorithms.h"

#include <string.h>

#include "../base/error.h"

enum { MOST_CHAINS = MAX_TEMPS / 2 };

#ifdef PCOLL_TEST_CHAIN_BYTES
enum { CHAIN_BYTES = PCOLL_TEST_CHAIN_BYTES };
#else
enum { CHAIN_BYTES = 128 * 1024 };
#endif

const char *const algorithm_names[] = {
    [PCOLL_ALGORITHM_AUTO] = "auto",
    [PCOLL_ALGORITHM_RECDBL] = "recdbl",
    [PCOLL_ALGORITHM_RABENSEIFNER] = "rabenseifner",
    [PCOLL_ALGORITHM_RING] = "ring",
    [PCOLL_ALGORITHM_NATIVE] = "native",
    NULL,
};

int algorithm_by_name(const char *name)
{
    for (int i = 0; algorithm_names[i]; i++)
        if (!strcmp(name, algorithm_names[i]))
            return i;
    return -1;
}

int pcoll_algorithm_parse(const char *text, int32_t *algorithm)
{
    int found = algorithm_by_name(text);
    if (found < 0)
        return fail(PCOLL_EINVAL,
                    "algorithm: expected auto, recdbl, rabenseifner or ring, got "
                    "\"%.50s\"",
                    text);
    *algorithm = found;
    return PCOLL_OK;
}

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
    return chains < 1 ? 1 : chains > MOST_CHAINS ? MOST_CHAINS : (uint32_t)chains;
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
        return 5 * size * plan->chains;
    return plan->algorithm == PCOLL_ALGORITHM_RABENSEIFNER ? 8 + 6 * steps
                                                           : 8 + 3 * steps;
}

int build_allreduce_alone(struct sched *s, int freeze)
{
    int copy = sched_copy(s, "alone", BUFFER_RESULT, BUFFER_CONTRIBUTION);
    sched_after(s, copy, freeze);
    int end = sched_nop(s, "end");
    sched_after(s, end, copy);
    return end;
}

int build_allreduce(struct sched *s, uint32_t rank, uint32_t size, int active,
                    const struct algorithm_plan *plan)
{
    static allreduce_builder *const builders[] = {
        [PCOLL_ALGORITHM_RECDBL] = build_allreduce_recdbl,
        [PCOLL_ALGORITHM_RABENSEIFNER] = build_allreduce_rabenseifner,
        [PCOLL_ALGORITHM_RING] = build_allreduce_ring,
        [PCOLL_ALGORITHM_NATIVE] = build_allreduce_native,
    };
    int freeze = sched_copy(s, "freeze", BUFFER_CONTRIBUTION, BUFFER_DEPOSIT);
    sched_after(s, freeze, active);
    if (size == 1)
        return build_allreduce_alone(s, freeze);
    return builders[plan->algorithm](s, rank, size, freeze, plan);
}

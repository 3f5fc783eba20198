/* SPDX-License-Identifier: Apache-2.0 */
/* The data part of a round, by whichever algorithm was planned. */
#include "algorithms/algorithms.h"

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
    if (size > 1 &&
        plan->algorithm == PCOLL_ALGORITHM_RING) /* which gathers piece by piece */
        sched_slice(s, freeze, (struct slice){0, 0, 1});
    sched_after(s, freeze, active);
    if (size == 1)
        return build_allreduce_alone(s, freeze);
    return builders[plan->algorithm](s, rank, size, freeze, plan);
}

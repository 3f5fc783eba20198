/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce by the MPI below: MPI_Iallreduce as operations of the schedule.
 *
 * It is legal because the activation makes every rank enter in the same round order, on
 * a communicator that is this handle's alone. A rank that contributes nothing puts in
 * the identity of the op; who has contributed is known from a second, small allreduce
 * of the headers (source: docs/algorithms.md). Steps and bytes: the vendor's. The order
 * of additions is the vendor's as well.
 */
#include "algorithms/algorithms.h"

int build_allreduce_native(struct sched *s, uint32_t rank, uint32_t size, int freeze,
                           const struct algorithm_plan *plan)
{
    (void)rank;
    (void)size;
    int fill = sched_copy(s, "fill", BUFFER_RESULT, BUFFER_CONTRIBUTION);
    sched_after(s, fill, freeze);
    int end = sched_nop(s, "end");
    int header = sched_native(s, "headers", NATIVE_HEADER);
    sched_after(s, header, fill);
    sched_after(s, end, header);
    for (int part = 0; part < plan->native_parts; part++) {
        int data = sched_native(s, "allreduce", part);
        sched_after(s, data, fill);
        sched_after(s, end, data);
    }
    return end;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI_Finalize of programs that are linked with us: the agent is gone before it begins.
 * MPICH stops locking when it finalizes, and a thread that is inside it at that moment
 * leaves with a lock held, on which MPICH aborts; the attribute by which we end
 * everything else is deleted too late for that.
 */
#include <mpi.h>

#include "include/partialcoll.h"

PCOLL_API int MPI_Finalize(void);

int MPI_Finalize(void)
{
    pcoll_quiet();
    return PMPI_Finalize();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends in programs that are linked with us; the interposer has its own.
 *
 * MPI_Finalize: the agent is gone before it begins. MPICH stops locking when it finalizes, and a
 * thread that is inside it at that moment leaves with a lock held, on which MPICH aborts; the
 * attribute by which we end everything else is deleted too late for that.
 *
 * MPI_Comm_free: what is kept on the communicator goes while all its ranks are here. MPICH deletes
 * attributes when the last request on the communicator is over, which each rank comes to at a time
 * of its own, and ours wait for each other.
 */
#include <mpi.h>

#include "include/partialcoll.h"
#include "compat/mpi_shaped/cache.h"

PCOLL_API int MPI_Finalize(void);
PCOLL_API int MPI_Comm_free(MPI_Comm *comm);

int MPI_Finalize(void)
{
    pcoll_quiet();
    return PMPI_Finalize();
}

int MPI_Comm_free(MPI_Comm *comm)
{
    if (comm)
        record_part(*comm);
    return PMPI_Comm_free(comm);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks tell each other while a transport is made. */
#include <string.h>

#include "base/error.h"

#include "transport/mpi/internal.h"
#include "transport/mpi/tree.h"

int mpi_exchange(struct mpi_transport *m, const uint64_t *mine, int count,
                 uint64_t *all)
{
    MPI_Request request;
    if (m->survives) { /* their maximum, as all else is zero */
        memcpy(all + m->base.rank * (size_t)count, mine, (size_t)count * sizeof *all);
        return tree_max(m, all, (int)m->base.size * count);
    }
    int rc = mpi_check_in(m,
                          MPI_Iallgather(mine, count, MPI_UINT64_T, all, count,
                                         MPI_UINT64_T, m->comm, &request),
                          "MPI_Iallgather");
    return rc == PCOLL_OK ? mpi_patient_wait(m, &request, "MPI_Iallgather") : rc;
}

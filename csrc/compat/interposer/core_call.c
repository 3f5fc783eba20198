/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/interposer/core_call.h"

#include "compat/interposer/settings.h"

static _Thread_local bool inside;

bool core_enter(void)
{
    bool before = inside;
    inside = true;
    return before;
}

void core_leave(bool before)
{
    inside = before;
}

bool core_is_inside(void)
{
    return inside;
}

int core_raise(MPI_Comm comm, int rc)
{
    bool of_mpi = rc == PCOLL_EMPI || rc == PCOLL_EFAILED;
    int code = of_mpi ? pcoll_last_mpi_error() : MPI_SUCCESS;
    if (code == MPI_SUCCESS) /* another process or thread has had MPI's */
        code = rc == PCOLL_ENOMEM ? MPI_ERR_NO_MEM : MPI_ERR_INTERN;
    report_warn("MPI_Allreduce: %s", pcoll_last_error());
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See ulfm.h. */
#include "transport/mpi/ulfm.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "include/partialcoll.h"
#include "transport/mpi/recovery.h"

/* Open MPI's numbers since 5.0; before, and in others, no error has them. */
enum { PROC_FAILED = 75, PROC_FAILED_PENDING = 76, REVOKED = 77 };

#ifdef OPEN_MPI

/* Not there before 5.0. */
#define LATER __attribute__((weak))
extern int PMPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *failed) LATER;
extern int PMPIX_Comm_is_revoked(MPI_Comm comm, int *flag) LATER;
extern int PMPIX_Comm_revoke(MPI_Comm comm) LATER;
extern int PMPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm) LATER;
extern int PMPIX_Comm_iagree(MPI_Comm comm, int *flag, MPI_Request *request) LATER;
/* Open MPI's parameter async_mpi_finalize: MPI_Finalize skips the launcher's barrier. */
extern bool ompi_async_mpi_finalize LATER;
/* Communicators that span several jobs. MPI_Finalize waits on each if there are two. */
extern int ompi_comm_num_dyncomm LATER;

#define IN_OPEN_MPI(function) function

#else

/* Others may have such functions, but jobs do not go on with them. */
#define IN_OPEN_MPI(function) NULL

#endif

static int (*const get_failed)(MPI_Comm,
                               MPI_Group *) = IN_OPEN_MPI(PMPIX_Comm_get_failed);
static int (*const is_revoked)(MPI_Comm, int *) = IN_OPEN_MPI(PMPIX_Comm_is_revoked);
static int (*const revoke)(MPI_Comm) = IN_OPEN_MPI(PMPIX_Comm_revoke);
static int (*const shrink)(MPI_Comm, MPI_Comm *) = IN_OPEN_MPI(PMPIX_Comm_shrink);
static int (*const iagree)(MPI_Comm, int *,
                           MPI_Request *) = IN_OPEN_MPI(PMPIX_Comm_iagree);

int pcoll_tells_of_failures(void)
{
    const char *enabled = environment_get("OMPI_MCA_mpi_ft_enable"); /* by mpiexec */
    return get_failed && enabled && strcmp(enabled, "0") != 0;
}

int ulfm_rank_failure(void)
{
    return pcoll_tells_of_failures() ? PROC_FAILED : MPI_ERR_OTHER;
}

bool ulfm_is_rank_failure(int mpi_error)
{
    int class = mpi_error;
    if (!get_failed)
        return false;
    MPI_Error_class(mpi_error, &class);
    return class == PROC_FAILED || class == PROC_FAILED_PENDING || class == REVOKED;
}

int ulfm_get_failed(MPI_Comm comm, MPI_Group *failed)
{
    return get_failed ? get_failed(comm, failed) : MPI_ERR_UNSUPPORTED_OPERATION;
}

bool ulfm_is_revoked(MPI_Comm comm)
{
    int flag = 0;
    return is_revoked && is_revoked(comm, &flag) == MPI_SUCCESS && flag;
}

int ulfm_revoke(MPI_Comm comm)
{
    return revoke ? revoke(comm) : MPI_ERR_UNSUPPORTED_OPERATION;
}

int ulfm_shrink(MPI_Comm comm, MPI_Comm *out)
{
    return shrink ? shrink(comm, out) : MPI_ERR_UNSUPPORTED_OPERATION;
}

void mpi_prepare_finalize(void)
{
#ifdef OPEN_MPI
    if (!pcoll_tells_of_failures())
        return;
    if (&ompi_async_mpi_finalize)
        ompi_async_mpi_finalize = true;
    if (&ompi_comm_num_dyncomm)
        ompi_comm_num_dyncomm = INT_MIN / 2; /* others may still be made and freed */
#endif
}

int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    return iagree ? iagree(comm, flag, request) : MPI_ERR_UNSUPPORTED_OPERATION;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See ulfm.h. */
#include "transport/mpi/ulfm.h"

#include <stdlib.h>
#include <string.h>

#include "include/partialcoll.h"

#ifdef OPEN_MPI

/* Open MPI's numbers since 5.0; before, no error has them. */
enum { PROC_FAILED = 75, PROC_FAILED_PENDING = 76, REVOKED = 77 };

/* Not there before 5.0. */
#define LATER __attribute__((weak))
extern int PMPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *failed) LATER;
extern int PMPIX_Comm_is_revoked(MPI_Comm comm, int *flag) LATER;
extern int PMPIX_Comm_revoke(MPI_Comm comm) LATER;
extern int PMPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm) LATER;
extern int PMPIX_Comm_iagree(MPI_Comm comm, int *flag, MPI_Request *request) LATER;

int pcoll_tells_of_failures(void)
{
    const char *enabled = getenv("OMPI_MCA_mpi_ft_enable"); /* by mpiexec */
    return PMPIX_Comm_get_failed && enabled && strcmp(enabled, "0") != 0;
}

int ulfm_rank_failure(void)
{
    return pcoll_tells_of_failures() ? PROC_FAILED : MPI_ERR_OTHER;
}

bool ulfm_is_rank_failure(int mpi_error)
{
    int class = mpi_error;
    MPI_Error_class(mpi_error, &class);
    return class == PROC_FAILED || class == PROC_FAILED_PENDING || class == REVOKED;
}

int ulfm_get_failed(MPI_Comm comm, MPI_Group *failed)
{
    return PMPIX_Comm_get_failed ? PMPIX_Comm_get_failed(comm, failed)
                                 : MPI_ERR_UNSUPPORTED_OPERATION;
}

bool ulfm_is_revoked(MPI_Comm comm)
{
    int flag = 0;
    return PMPIX_Comm_is_revoked && PMPIX_Comm_is_revoked(comm, &flag) == MPI_SUCCESS &&
           flag;
}

int ulfm_revoke(MPI_Comm comm)
{
    return PMPIX_Comm_revoke ? PMPIX_Comm_revoke(comm) : MPI_ERR_UNSUPPORTED_OPERATION;
}

int ulfm_shrink(MPI_Comm comm, MPI_Comm *out)
{
    return PMPIX_Comm_shrink ? PMPIX_Comm_shrink(comm, out)
                             : MPI_ERR_UNSUPPORTED_OPERATION;
}

int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    return PMPIX_Comm_iagree ? PMPIX_Comm_iagree(comm, flag, request)
                             : MPI_ERR_UNSUPPORTED_OPERATION;
}

#else

int pcoll_tells_of_failures(void)
{
    return 0;
}

int ulfm_rank_failure(void)
{
    return MPI_ERR_OTHER;
}

bool ulfm_is_rank_failure(int mpi_error)
{
    (void)mpi_error;
    return false;
}

int ulfm_get_failed(MPI_Comm comm, MPI_Group *failed)
{
    (void)comm;
    (void)failed;
    return MPI_ERR_UNSUPPORTED_OPERATION;
}

bool ulfm_is_revoked(MPI_Comm comm)
{
    (void)comm;
    return false;
}

int ulfm_revoke(MPI_Comm comm)
{
    (void)comm;
    return MPI_ERR_UNSUPPORTED_OPERATION;
}

int ulfm_shrink(MPI_Comm comm, MPI_Comm *out)
{
    (void)comm;
    (void)out;
    return MPI_ERR_UNSUPPORTED_OPERATION;
}

int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    (void)comm;
    (void)flag;
    (void)request;
    return MPI_ERR_UNSUPPORTED_OPERATION;
}

#endif

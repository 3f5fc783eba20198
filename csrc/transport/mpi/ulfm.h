/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI's extension for ranks that die: ULFM, User-Level Failure Mitigation, of Open MPI 5 with
 * `mpiexec --with-ft ulfm`. Elsewhere pcoll_tells_of_failures() is 0, and each of the others
 * says that there is no such operation. As MPI's own, without this library's exclusion of
 * other threads (exclusion.h).
 */
#ifndef PCOLL_TRANSPORT_MPI_ULFM_H
#define PCOLL_TRANSPORT_MPI_ULFM_H

#include <mpi.h>
#include <stdbool.h>

/* The error of a call that failed because a rank has died; MPI_ERR_OTHER without ULFM. */
int ulfm_rank_failure(void);
bool ulfm_is_rank_failure(int mpi_error);

int ulfm_get_failed(MPI_Comm comm, MPI_Group *failed);
bool ulfm_is_revoked(MPI_Comm comm);
int ulfm_revoke(MPI_Comm comm);
int ulfm_shrink(MPI_Comm comm, MPI_Comm *out);
int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request);

#endif

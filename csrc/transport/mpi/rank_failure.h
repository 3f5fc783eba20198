/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What MPI says of ranks that have died (ulfm.h). Where the MPI tells nothing, its launcher
 * ends the job and nothing here is ever needed.
 *
 * A receive from anybody on the transport's communicator is always posted, and MPI ends it with
 * an error when a member dies: so whoever polls learns of it, without a message.
 */
#ifndef PCOLL_TRANSPORT_MPI_RANK_FAILURE_H
#define PCOLL_TRANSPORT_MPI_RANK_FAILURE_H

#include <mpi.h>

/* As mpi_check (mpi_transport.h), of a call on this communicator: PCOLL_EFAILED, and who,
 * if it failed because ranks have died. */
int mpi_check_on(MPI_Comm comm, int mpi_error, const char *what);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport over MPI, and what else of MPI the handles need: the state kept on a
 * communicator and on the process, and the end of both.
 */
#ifndef PCOLL_TRANSPORT_MPI_MPI_TRANSPORT_H
#define PCOLL_TRANSPORT_MPI_MPI_TRANSPORT_H

#include "base/doorbell.h"
#include "kernels/payload.h"
#include "transport/transport.h"
#include "transport/window.h"

struct watch; /* watch/watch.h */

/* PCOLL_OK, or PCOLL_EMPI with MPI's own message for its error code. */
int mpi_check(int mpi_error, const char *what);

/* Between MPI_Init and the end of MPI_Finalize? */
bool mpi_is_running(void);

/* PCOLL_EINVAL unless *comm is a usable intra-communicator of an MPI that is running.
 */
int mpi_check_comm(const void *comm);
/* This process in MPI_COMM_WORLD, and its size. */
void mpi_world(uint32_t *rank, uint32_t *size);

/* This rank and the number of ranks. */
void mpi_comm_shape(const void *comm, uint32_t *rank, uint32_t *size);
/* Is that what MPI calls nobody? */
bool mpi_is_proc_null(int rank);

/*
 * Duplicate *comm and make a transport of it. Collective. Peers on this machine are
 * rung through their doorbells; ranks on others are lost when the watch says so.
 */
int transport_mpi_create(const void *comm, const struct doorbell *own,
                         struct watch *watch, struct transport **out);

/* To look for a state and make it if there is none, as one step. */
void mpi_lock_states(void);
void mpi_unlock_states(void);

/* Two states kept on a communicator, 0 and 1; gone() is called with it when the
 * communicator is freed. */
void *mpi_comm_state(const void *comm, int which);
int mpi_set_comm_state(const void *comm, int which, void *state, void (*gone)(void *));
/* What is kept on it goes now, and not with it. */
void mpi_comm_part(const void *comm);

/* The state of this process; gone() is called at the beginning of MPI_Finalize. */
void *mpi_process_state(void);
int mpi_set_process_state(void *state, void (*gone)(void *));

/* Collective, on *comm: everybody's memory of so many bytes. */
int window_mpi_create(const void *comm, size_t bytes, struct window **out);

/* Reductions by MPI_Reduce_local: ops of users, and datatypes without a kernel. */

/* A user_reduction_fn. PCOLL_EINVAL for what is null, not commutative, not contiguous,
 * or not defined by MPI. */
user_reduction_fn mpi_reduction_create;

/* Give one of those another datatype, of the same bytes, and op; nobody may be reducing
 * with it. Neither is kept: both must live until that reduction is over. PCOLL_EINVAL
 * as above, and for NULL. */
int mpi_reduction_set(struct user_reduction *user, const void *mpi_type,
                      const void *mpi_op, int index);

#endif

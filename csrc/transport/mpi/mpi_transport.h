/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport over MPI, windows and reductions by MPI, and what is kept on a communicator and on
 * the process.
 */
#ifndef PCOLL_TRANSPORT_MPI_MPI_TRANSPORT_H
#define PCOLL_TRANSPORT_MPI_MPI_TRANSPORT_H

#include "base/doorbell.h"
#include "kernels/payload.h"
#include "transport/transport.h"
#include "transport/window.h"

struct watch; /* watch/watch.h */

/* Return PCOLL_OK, or PCOLL_EMPI with MPI's own message for its error code. */
int mpi_check(int mpi_error, const char *what);

/* Return whether this is between MPI_Init and the end of MPI_Finalize. */
bool mpi_is_running(void);
/* PCOLL_EINVAL unless *comm is a usable intra-communicator of an MPI that runs. */
int mpi_check_comm(const void *comm);
/* Return this process's rank, and the size, of MPI_COMM_WORLD or of *comm. */
void mpi_world(uint32_t *rank, uint32_t *size);
void mpi_comm_shape(const void *comm, uint32_t *rank, uint32_t *size);
/* Return whether this number is MPI_PROC_NULL. */
bool mpi_is_proc_null(int rank);

/*
 * Duplicate *comm and make a transport of it. Peers on this machine are woken through their
 * doorbells. Ranks on other hosts are lost when the watch says so. Collective.
 */
int transport_mpi_create(const void *comm, const struct doorbell *own,
                         struct watch *watch, struct transport **out);

/* Make a window of `bytes` of memory on every rank of *comm. Collective. */
int window_mpi_create(const void *comm, size_t bytes, struct window **out);

/* Make a reduction by MPI_Reduce_local, for operations of users and datatypes without a kernel (a
 * user_reduction_fn). PCOLL_EINVAL for what is null, not commutative, not contiguous, or not
 * defined by MPI. */
user_reduction_fn mpi_reduction_create;
/* Give such a reduction another datatype, of the same size, and op, while nobody reduces with it.
 * Neither is copied: both must live until that reduction is complete. PCOLL_EINVAL as above. */
int mpi_reduction_set(struct user_reduction *user, const void *mpi_type,
                      const void *mpi_op, int index);

/* Hold this lock to look for a state and make it if there is none, as one step. */
void mpi_lock_states(void);
void mpi_unlock_states(void);

/* Two states are kept on a communicator, 0 and 1. gone() is called with a state when the
 * communicator is freed. */
void *mpi_comm_state(const void *comm, int which);
int mpi_set_comm_state(const void *comm, int which, void *state, void (*gone)(void *));
/* End the states now, instead of with the communicator. */
void mpi_comm_part(const void *comm);

/* The state of this process. gone() is called at the beginning of MPI_Finalize. */
void *mpi_process_state(void);
int mpi_set_process_state(void *state, void (*gone)(void *));

#endif

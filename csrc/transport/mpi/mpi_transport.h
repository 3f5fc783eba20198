/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport over MPI, windows and reductions by MPI, and what is kept on a communicator and on
 * the process.
 */
#pragma once

#include "base/doorbell.h"
#include "base/lock.h"
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
 *
 * *idle is a transport of the same ranks that is in use no more, or NULL. If all ranks offer the
 * same one, it becomes *out. If some rank has that one no more, it is destroyed, and *idle is NULL.
 */
int transport_mpi_create(const void *comm, const struct doorbell *own,
                         struct watch *watch, struct transport **idle,
                         struct transport **out);
/* Return whether the transport has the ranks of *comm, in the same order. Local. */
bool mpi_has_ranks_of(const struct transport *t, const void *comm);

/* Make a window of `bytes` of memory on every rank of *comm. Collective. */
int window_mpi_create(const void *comm, size_t bytes, struct window **out);

/* Make a reduction by MPI_Reduce_local, for operations of users and datatypes without a kernel (a
 * user_reduction_fn). PCOLL_EINVAL if op or datatype is null, not commutative, not contiguous, or
 * not defined by MPI. */
user_reduction_fn mpi_reduction_create;
/* Give such a reduction another datatype, of the same size, and op, while no thread uses it.
 * Neither is copied: both must live until that reduction is complete. PCOLL_EINVAL as above. */
int mpi_reduction_set(struct user_reduction *user, const void *mpi_type,
                      const void *mpi_op, int index);

/* Hold this lock to search for a state and create a missing one in one step. */
extern struct lock mpi_states;

/* States attached to an MPI communicator: the runtime's communicator of each kind of on_failure
 * (enum pcoll_failure), and the drop-ins' record of its calls. Comm NULL has the runtime's process.
 * gone(), the same for each `which`, is called with the state when the communicator is freed,
 * or at the beginning of MPI_Finalize. */
enum {
    MPI_STATE_OF_CALLS = PCOLL_FAILURE_CONTINUE + 1,
    MPI_STATE_OF_PROCESS,
    MPI_STATES
};
/* Return a state, or NULL. */
void *mpi_state(const void *comm, int which);
int mpi_set_state(const void *comm, int which, void *state, void (*gone)(void *));
/* End the states of a communicator now, the calls' first, instead of with it. */
void mpi_comm_part(const void *comm);

static inline void *mpi_process_state(void)
{
    return mpi_state(NULL, MPI_STATE_OF_PROCESS);
}

/*
 * MPI functions for continuing without dead ranks (mpi_internal.h).
 *
 * These functions are for one thread besides the driver, which must be kept away from the
 * transport meanwhile. Those that are collective are so over the living ranks of the transport,
 * and wait for these without burning a core.
 *
 * Ranks keep their numbers: a transport that follows another one has its rank and size, and
 * translates what it tells MPI.
 */

/* Keep other threads of the library out of MPI, where ranks may die (mpi_internal.h). `waits`: what
 * follows waits for other ranks. Pass the result to exclusion_end, on the same thread. */
bool exclusion_begin(bool waits);
void exclusion_end(bool begun);

/* Return whether every rank of this MPI_Comm has rc = PCOLL_OK. The answer is the same on all:
 * PCOLL_OK, or an error on each. Collective. */
int mpi_all_have(const void *comm, struct watch *watch, int rc);
/* Return whether every rank of this MPI_Comm lives, as far as any of them knows. The answer is
 * the same on all that do: PCOLL_OK or PCOLL_EFAILED. Collective. */
int mpi_all_live(const void *comm);

/* Tell all ranks not to use this communicator any more. Local. */
void mpi_revoke(struct transport *t);
void mpi_revoke_comm(void *comm);
/* PCOLL_EFAILED if the host of one of its ranks is lost, with the ranks there. Local. */
int mpi_check_hosts(const struct transport *t);
/* PCOLL_EFAILED also if a rank has died, or the communicator was revoked. Local. */
int mpi_check_damage(const struct transport *t);
/* PCOLL_EFAILED if a host is lost; `count` becomes the number of all ranks on lost hosts, `first` the lowest
 * of them. PCOLL_OK: there is none. Local. */
int mpi_count_lost(const struct transport *t, uint32_t *count, uint32_t *first);
/* Wait until MPI knows that the ranks on lost hosts have died. PCOLL_EFAILED: it does not find
 * out. */
int mpi_await_deaths(const struct transport *t);

/* Compute the bits that are set on every living rank. The answer is the same on all that are
 * left, even if some die meanwhile. PCOLL_EFAILED: MPI goes on waiting for ranks on a lost host; or
 * this rank has no answer because another rank has died meanwhile, and other ranks may have one.
 * Collective. */
int mpi_agree_bits(const struct transport *t, int *bits);
/* Make a transport of the ranks that are left. If that fails on one rank, all ranks must try again,
 * from *out: it is not NULL if only its making failed. Collective. */
int mpi_shrink(struct transport *old, const struct doorbell *own,
               struct transport **out);
/* Make a transport of all ranks in `members`, an MPI_Comm that is not damaged. Its rank i has
 * number numbers[i] among `ranks`. Numbers that no rank has count as dead. Errors are as in
 * mpi_shrink: without *out they are on all that live, or on none. Collective. */
int mpi_regroup(const void *members, const uint32_t *numbers, uint32_t ranks,
                const struct doorbell *own, struct watch *watch,
                struct transport **out);
/* Send the bytes of a rank, a multiple of 64, to all. Collective. */
int mpi_share(struct transport *t, uint32_t rank, void *data, size_t bytes);
/* Make a communicator of the ranks that are left, for the program: *comm is an MPI_Comm.
 * Collective. */
int mpi_give_comm(struct transport *t, void *comm);
/* Free a revoked transport that is no longer used. Return false if MPI may still write to the
 * memory that it was given: the memory and the transport stay, try again. Local. */
bool mpi_abandon(struct transport *t);

/*
 * Let MPI_Finalize, which must follow, return although ranks have died or were spawned.
 * Open MPI 5.0 waits there for two things that may never happen:
 *
 * - The launcher's barrier over all processes of the job. After a death it sometimes
 *   does not complete, in programs without this library as well.
 * - A barrier on each communicator that spans several jobs, if this process holds two
 *   or more of them. A spawned process holds the intercommunicator to its parents
 *   besides the merged communicator; its peers need not hold two, and the dead never
 *   arrive.
 *
 * Neither is needed: before that MPI_Finalize synchronizes the living ranks of
 * MPI_COMM_WORLD, and this library those of its own communicators. No effect without ULFM.
 */
void mpi_prepare_finalize(void);

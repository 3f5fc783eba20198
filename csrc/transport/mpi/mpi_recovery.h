/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What going on without the dead asks of MPI (mpi_calls.h). All of it is for
 * one thread beside the driver, which must be kept away from the transport meanwhile; all
 * but `revoke` and `abandon` are collective over the living ranks of the transport, and wait
 * for them without burning a core.
 *
 * Ranks keep their numbers: a transport that follows another one has its rank and size, and
 * translates what it tells MPI.
 */
#ifndef PCOLL_TRANSPORT_MPI_MPI_RECOVERY_H
#define PCOLL_TRANSPORT_MPI_MPI_RECOVERY_H

#include <stdbool.h>

#include "base/doorbell.h"
#include "transport/transport.h"

struct watch; /* watch/watch.h */

/* Has every rank of this MPI_Comm got as far, rc = PCOLL_OK? The same answer on all:
 * PCOLL_OK, or an error on each. Collective. */
int mpi_all_have(const void *comm, struct watch *watch, int rc);

/* Does every rank of this MPI_Comm live, as far as any of them knows? The same answer on all
 * that do: PCOLL_OK or PCOLL_EFAILED. Collective. */
int mpi_all_live(const void *comm);

/* Tell all ranks that this communicator is not to be used any more. Local. */
void mpi_revoke(struct transport *t);
void mpi_revoke_comm(void *comm);
/* Is the host of one of its ranks lost? fail_last_ranks() are they. Local. */
bool mpi_has_lost_hosts(struct transport *t);
/* Wait a moment until MPI knows that these have died. PCOLL_EFAILED: it does not. */
int mpi_await_deaths(const struct transport *t);
/* Has a rank died, or has it been revoked? Local. */
bool mpi_is_damaged(struct transport *t);
/* The bits that are set on every living rank. The answer is the same on all that are left,
 * even if some die meanwhile. PCOLL_EFAILED: MPI goes on waiting for those on a lost host; or
 * there is no answer here, since somebody has died meanwhile, and may be one on others. */
int mpi_agree_bits(const struct transport *t, int *bits);
/* A transport of those who are left. If it fails there on one rank, all have to try again,
 * from what comes back in *out, which is not NULL if only its making failed. */
int mpi_shrink(struct transport *old, const struct doorbell *own,
               struct transport **out);
/* A transport of all in `members`, an MPI_Comm, which is not damaged: its rank i has number
 * numbers[i] among so many, and those that nobody has count as dead. Errors as in mpi_shrink:
 * without *out on all that live, or on nobody. */
int mpi_regroup(const void *members, const uint32_t *numbers, uint32_t ranks,
                const struct doorbell *own, struct watch *watch,
                struct transport **out);
/* The bytes of rank `root` for all. */
int mpi_share(struct transport *t, uint32_t root, void *data, size_t bytes);
/* A communicator of those who are left, for the program: *comm is an MPI_Comm. */
int mpi_give_comm(struct transport *t, void *comm);
/* Nobody uses it any more. False: MPI may still write to what it was given, so that and
 * this stay; try again. */
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
 * Neither is needed: MPI_Finalize synchronizes those of MPI_COMM_WORLD that live before
 * that, and this library the ranks of its own communicators. Does nothing without ULFM.
 */
void mpi_prepare_finalize(void);

/*
 * One thread in MPI at a time, where ranks may die.
 *
 * Open MPI (5.0 at least) has a lock around its agreements, which MPIX_Comm_iagree and
 * MPIX_Comm_shrink take. A message for an agreement that another thread receives meanwhile,
 * in any call that makes progress, is put off, and what it carries is overwritten by the
 * addresses of its copy: the outcome is arbitrary, ranks that live count as dead, or the
 * process ends. So what makes progress here (mpi_calls.h) and what begins an agreement
 * (mpi_recovery.c) exclude each other. Calls of the program's own threads are beyond our
 * reach: docs/faults.md.
 *
 * To shrink waits for others, and theirs may wait for ours: who has waited for 200 ms goes
 * on without. Where MPI tells nothing of failures there are no agreements and no lock.
 */

/* What comes back belongs into `exclusion_end`, by the same thread. */
bool exclusion_begin(void);
void exclusion_end(bool begun);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May this call be taken over, and by which handle?
 *
 * The ranks of a call decide each for itself, so they must decide alike: the answer
 * depends on what MPI demands to be the same on all ranks (count, datatype, op,
 * communicator, the sequence of calls on it) and on what the ranks have compared (the
 * policy, the thread level). Arguments that MPI would refuse are left to MPI.
 */
#ifndef PCOLL_PMPI_TAKEOVER_H
#define PCOLL_PMPI_TAKEOVER_H

#include <mpi.h>
#include <stdbool.h>

#include "../dropin/cache.h"
#include "report.h"

struct call {
    const void *send;
    void *recv;
    int64_t count;
    MPI_Datatype type;
    MPI_Op op;
    MPI_Comm comm;
    const void *site; /* where the program made it */
};

/* What a call needs: TAKEN fills in record and key. Collective the first time on a
 * communicator. */
enum outcome takeover_plan(const struct call *call, struct record **record,
                           struct cache_key *key);

/* A blocking call. TAKEN: it is done, *error is MPI's code for it. */
enum outcome takeover_run(const struct call *call, int *error);

/* The program gives a communicator a policy, or takes it back (""). Every rank calls it
 * before its next allreduce there. */
void takeover_set_quorum(MPI_Comm comm, const char *text);

/* MPI's error code for a failure of the core, after the error handler has seen it. */
int takeover_raise(MPI_Comm comm, int rc);

/* In the core: what the program's callbacks call meanwhile is not taken. Returns what
 * to give back. */
bool takeover_enter(void);
void takeover_leave(bool before);

#endif

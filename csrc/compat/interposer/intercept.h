/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May this call be taken over, and by which handle?
 *
 * The ranks of a call decide each for itself, so they must decide alike: the answer
 * depends on what MPI demands to be the same on all ranks (count, datatype, op,
 * communicator, the sequence of calls on it) and on what the ranks have compared: the
 * environment and the thread level in MPI_Init (full.h), the info of a communicator when
 * it is given (comm_policy.h). Arguments that MPI would refuse are left to MPI.
 */
#ifndef PCOLL_COMPAT_INTERPOSER_INTERCEPT_H
#define PCOLL_COMPAT_INTERPOSER_INTERCEPT_H

#include <mpi.h>
#include <stdbool.h>

#include "compat/mpi_shaped/cache.h"
#include "compat/interposer/report.h"

struct call {
    const void *send;
    void *recv;
    int64_t count;
    MPI_Datatype type;
    MPI_Op op;
    MPI_Comm comm;
    const void *call_site; /* where the program made it */
};

/* What a call needs: TAKEN fills in record and key. */
enum outcome intercept_plan(const struct call *call, struct record **record,
                            struct cache_key *key);

/* May the communicator have a duplicate, for handles? Its ranks agree once. Collective. */
bool intercept_admit(struct record *record, MPI_Comm comm);

/* A blocking call. TAKEN: it is done, *error is MPI's code for it. */
enum outcome intercept_run(const struct call *call, int *error);

#endif

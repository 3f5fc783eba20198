/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Complete rounds: does MPI do a call, or do we?
 *
 * A call that waits for all ranks is MPI's own allreduce, so it goes to MPI unless our
 * rounds are faster for its size, number of ranks and placement. All ranks must decide
 * alike, without a message on the way:
 *
 *   - MPI_Init compares what the ranks of MPI_COMM_WORLD know: their settings, the node
 *     they run on, the cores they may use, their table of `bench tune`. The facts never
 *     change after that. pcoll_full_from and pcoll_full_pays decide by them.
 *   - Each call decides by these facts, by what MPI demands to be the same on all ranks
 *     (count, datatype, op, communicator), and by the calls before it on the same
 *     communicator.
 *   - A communicator with processes of another MPI_COMM_WORLD has other facts on each side.
 *     Its calls are always MPI's.
 *
 * The first call of a signature is MPI's also where rounds are partial: the call that makes a
 * handle waits for all ranks anyway.
 *
 * PARTIALCOLL_ALGORITHM and PARTIALCOLL_DOMAIN ask for rounds of ours: then all complete
 * rounds are.
 */
#ifndef PCOLL_COMPAT_INTERPOSER_FULL_H
#define PCOLL_COMPAT_INTERPOSER_FULL_H

#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "compat/mpi_shaped/cache.h"

/* What the ranks of MPI_COMM_WORLD share. Written by full_begin alone. */
struct full_facts {
    struct quorum quorum; /* of communicators without the info key */
    bool alike;           /* all ranks have the same algorithm and domain */
    bool asked;           /* ... and ask for one: complete rounds are ours */
    pcoll_full_facts full;
    int level;            /* the lowest thread level of a rank */
    uint64_t short_bytes; /* complete rounds of fewer bytes are always MPI's, ... */
    uint64_t few;         /* ... and those of fewer elements */
    MPI_Group all;        /* the processes of MPI_COMM_WORLD */
};

/* Collective over MPI_COMM_WORLD. */
void full_begin(void);
void full_end(void);
const struct full_facts *full_facts(void);

/* Some call may be no plain complete round, from now on (+1) or no longer (-1): each call is
 * then looked at. Any thread. */
void full_watch(int change);

/* The number of reasons to look at each call. */
extern _Atomic int full_reasons;

/* Is a call of this many elements MPI's, whatever the communicator? The quick way for
 * programs in which all rounds are complete. */
static inline bool full_is_mpis(int64_t count)
{
    return !atomic_load_explicit(&full_reasons, memory_order_relaxed) &&
           (uint64_t)count < full_facts()->few;
}

/* The same for a communicator of so many ranks and a payload of so many bytes. */
bool full_is_faster(int ranks, uint64_t bytes);

/* Count one more call of this signature: is it to be ours? */
bool full_pays(struct record *r, const struct cache_key *key, uint64_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interposer: a library that a program preloads, and that takes over its allreduces.
 *
 *   startup.c      MPI_Init and MPI_Finalize, the environment, the report
 *   mpi_entries.c  the functions of MPI that are replaced
 *   fortran.c      the same for Fortran
 *   intercept.c    whether a call is taken over, and by which handle; persistent allreduces
 *
 * The ranks of a call must decide alike, without a message (docs/interposer.md):
 *
 *   - MPI_Init compares the settings, thread levels, nodes, cores and tables of `bench tune` of the
 *     ranks of MPI_COMM_WORLD. These facts never change. The call that gives a communicator info
 *     compares the info key, on that communicator.
 *   - Each call decides by these facts, by what MPI requires to be the same on all ranks (count,
 *     datatype, op, communicator), and by the calls before it on the same communicator. Arguments
 *     that MPI would refuse are left to MPI.
 *   - A communicator with processes of another MPI_COMM_WORLD has other facts on each side. Its
 *     calls are always MPI's.
 */
#pragma once

#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "compat/mpi_shaped/cache.h"

/* startup.c */

/* The environment, read once. Ranks compare what must be the same on all of them. */
struct settings {
    struct choice choice;
    bool all;    /* PARTIALCOLL_ALL=1: the quorum is that of every communicator. */
    bool report; /* PARTIALCOLL_REPORT=1 */
    char complaint[512]; /* About values that were ignored, or "". */
};

const struct settings *settings(void);

/* Return whether the interposer has seen MPI begin, and not end. */
bool startup_is_running(void);
/* Return the function of this name that the program would call without us; NULL: MPI's own. */
void *startup_next(const char *name);
/* Return whether MPI communicates elements of this datatype: not if it is uncommitted. */
bool startup_type_works(MPI_Datatype type);

/* This thread is in the core: calls of the program's callbacks are not taken over meanwhile. */
extern _Thread_local bool core_inside;
/* Call the error handler for a failure of the core, and return MPI's error code for it. */
int core_raise(MPI_Comm comm, int rc);

/* The outcome of a call: TAKEN is what we want; the others are why MPI did it. */
#define OUTCOME_REASONS(X)                                                             \
    X(TAKEN, "taken over")                                                             \
    X(PASSED_FULL, "complete round, MPI is faster")                                    \
    X(PASSED_FIRST, "first call of its kind, partial")                                 \
    X(PASSED_OUTSIDE, "before MPI_Init or inside MPI_Finalize")                        \
    X(PASSED_OTHER_WORLD, "processes of another MPI_COMM_WORLD")                       \
    X(PASSED_NO_ELEMENTS, "no elements")                                               \
    X(PASSED_ARGUMENTS, "arguments for MPI to judge")                                  \
    X(PASSED_ORDERED, "operation that does not commute")                               \
    X(PASSED_GAPS, "datatype with gaps")                                               \
    X(PASSED_OP_OF_USER, "operation of the user, partial or persistent")               \
    X(PASSED_INTERCOMM, "inter-communicator")                                          \
    X(PASSED_THREADS, "needs MPI_THREAD_MULTIPLE")                                     \
    X(PASSED_CACHE, "too many or too large signatures to keep")                        \
    X(PASSED_LIMIT, "too many communicators")                                          \
    X(PASSED_REFUSED, "no handle could be made")                                       \
    X(PASSED_NESTED, "called from inside another one")

enum outcome {
#define OUTCOME_NAME(outcome, reason) outcome,
    OUTCOME_REASONS(OUTCOME_NAME) OUTCOMES
};

extern _Atomic uint64_t report_counts[OUTCOMES];
/* True until MPI has begun, and afterwards if a rank asks for the report. */
extern bool report_wanted;

/* Inline: a call that is handed to MPI has to cost nanoseconds. */
static inline void report_count(enum outcome outcome)
{
    if (report_wanted)
        atomic_fetch_add_explicit(&report_counts[outcome], 1, memory_order_relaxed);
}

/* Print a line on standard error. */
void report_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* intercept.c */

/* Facts that the ranks of MPI_COMM_WORLD share. Written by full_begin alone. */
struct full_facts {
    struct choice choice; /* Of communicators without the info key. */
    bool alike;           /* All ranks have the same algorithm and domain. */
    pcoll_full_facts full;
    int level;            /* The lowest thread level of a rank. */
    uint64_t short_bytes; /* Complete rounds of fewer bytes are always MPI's, … */
    uint64_t few;         /* … and those of fewer elements. */
    MPI_Group all;        /* The processes of MPI_COMM_WORLD. */
};
extern struct full_facts full_facts;
/* The number of reasons to examine each call: some call may be no plain complete round. */
extern _Atomic int full_reasons;

/* Collective over MPI_COMM_WORLD. */
void full_begin(void);
/* Add a reason to examine each call (+1), or remove one (-1). Any thread. */
void full_watch(int change);

/* Return whether a call of this many elements is MPI's, whatever the communicator: the quick
 * way for programs in which all rounds are complete. */
static inline bool full_is_mpis(int64_t count)
{
    return !atomic_load_explicit(&full_reasons, memory_order_relaxed) &&
           (uint64_t)count < full_facts.few;
}

/* Adopt the policy `text` for a communicator to which the program gives info. NULL is for ranks
 * whose info has no policy. Collective over comm. */
void comm_policy_agree(MPI_Comm comm, const char *text);

struct call {
    const void *send;
    void *recv;
    int64_t count;
    MPI_Datatype type;
    MPI_Op op;
    MPI_Comm comm;
    const void *call_site; /* in the program */
};

/* Execute a blocking call if this library serves it. TAKEN: *error is MPI's code for it. */
enum outcome intercept_run(const struct call *call, int *error);

/* MPI_Allreduce_init. TAKEN: *request is an inactive request, *error MPI's code. */
enum outcome persistent_init(const struct call *call, MPI_Request *request, int *error);
/* Start the rounds of those requests that are ours. MPI has started the requests. */
int persistent_started(int count, const MPI_Request *requests);
/* Forget a request that the program is about to free. */
void persistent_forget(MPI_Request request);
/* End the thread that completes requests. No request may be active. */
void persistent_stop(void);

/* mpi_entries.c */

/* Let the calls of this thread count as made at this site, or where they return to (NULL).
 * Return the site from before. */
const void *entries_announce(const void *call_site);
/* Apply the info that MPI_Comm_idup_with_info gave to a communicator, now that it is used. */
void info_arrived(MPI_Comm comm);

/* Functions of MPI that are newer than MPI 3.0: weak, so NULL where the MPI that is loaded does
 * not have them. Our replacements are always there, and a program that looks for them (mpi4py
 * does) calls them: older functions do it then, as far as they can. The header may not declare the
 * replacements. */
#define NEWER __attribute__((weak))
int PMPI_Allreduce_init(const void *sendbuf, void *recvbuf, int count,
                        MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                        MPI_Request *request) NEWER;
int PMPI_Allreduce_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                     MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) NEWER;
int PMPI_Allreduce_init_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                          MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                          MPI_Info info, MPI_Request *request) NEWER;
int PMPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm,
                             MPI_Request *request) NEWER;
#undef NEWER

int MPI_Allreduce_init(const void *sendbuf, void *recvbuf, int count,
                       MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                       MPI_Request *request);

/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment asks of the interposer. Read once; the same on all ranks, which
 * is checked where it matters. */
#ifndef PCOLL_COMPAT_INTERPOSER_INTERPOSER_H
#define PCOLL_COMPAT_INTERPOSER_INTERPOSER_H

#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "compat/mpi_shaped/cache.h"
#include "compat/mpi_shaped/quorum.h"

struct settings {
    struct quorum quorum; /* PARTIALCOLL_QUORUM, or full */
    int32_t algorithm;    /* PARTIALCOLL_ALGORITHM, or auto */
    int32_t domain;       /* PARTIALCOLL_DOMAIN, or the node */
    uint32_t domain_ranks;
    bool asked;          /* PARTIALCOLL_ALGORITHM or PARTIALCOLL_DOMAIN is set */
    bool all;            /* PARTIALCOLL_ALL=1: of every communicator */
    bool report;         /* PARTIALCOLL_REPORT=1 */
    char complaint[512]; /* about values that were ignored, or "" */
};

const struct settings *settings(void);

/* A line on standard error. */
void report_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What became of the program's calls, counted, and told at the end of MPI. */

/* The first is what we want; the others say why MPI did it. */
enum outcome {
    TAKEN,
    PASSED_FULL,
    PASSED_FIRST,
    PASSED_OUTSIDE,
    PASSED_OTHER_WORLD,
    PASSED_NO_ELEMENTS,
    PASSED_ARGUMENTS,
    PASSED_ORDERED,
    PASSED_GAPS,
    PASSED_OP_OF_USER,
    PASSED_INTERCOMM,
    PASSED_THREADS,
    PASSED_CACHE,
    PASSED_LIMIT,
    PASSED_REFUSED,
    PASSED_NESTED,
    OUTCOMES
};

extern _Atomic uint64_t report_counts[OUTCOMES];
extern bool
    report_wanted; /* until MPI has begun, and where a rank asks for the report */

/* Inline: a call that is handed to MPI has to cost nanoseconds. */
static inline void report_count(enum outcome outcome)
{
    if (report_wanted)
        atomic_fetch_add_explicit(&report_counts[outcome], 1, memory_order_relaxed);
}

/* The calls counted on this rank. */
uint64_t report_calls(void);

/* Add up over all ranks; rank 0 prints. Collective over MPI_COMM_WORLD. */
void report_print(void);

/* Beginning and end of MPI in this process, as the interposer sees them. */

/* Has the interposer seen MPI begin, so that it will see the end? */
bool startup_is_running(void);

/* The function of this name that the program would call without us; NULL: MPI's own. */
void *startup_next(const char *name);

/* Does MPI communicate elements of this datatype? No, if it has not been committed. */
bool startup_type_works(MPI_Datatype type);

/* Around a call of the core that the program does not know of: what it calls back, and
 * how it learns of a failure. */

/* In the core: what the program's callbacks call meanwhile is not taken. Returns what
 * to give back. */
bool core_enter(void);
void core_leave(bool before);
/* In the core? */
bool core_is_inside(void);

/* MPI's error code for a failure of the core, after the error handler has seen it. */
int core_raise(MPI_Comm comm, int rc);

/*
 * The place of a call, and those of MPI's own functions that are newer than MPI 3.0:
 * weak, so NULL where the MPI that is loaded does not have them. What replaces them is
 * always there, and a program that looks for it (mpi4py does) calls it: older functions
 * do it then, as far as they can.
 */

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

/* The same of what replaces them, which the header may not know. */
int MPI_Allreduce_init(const void *sendbuf, void *recvbuf, int count,
                       MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                       MPI_Request *request);
int MPI_Allreduce_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                    MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);
int MPI_Allreduce_init_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                         MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                         MPI_Request *request);
int MPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm,
                            MPI_Request *request);

/* The calls that this thread makes from now on stand at this place in the program;
 * NULL: where they return to. Returns what it was before. */
const void *entries_announce(const void *call_site);

int pmpi_private_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request);
int pmpi_private_type_dup(MPI_Datatype type, MPI_Datatype *copy);

/*
 * Finding what MPI's Fortran library has. It is among the files that all of a program can
 * see; but where what uses it was loaded for itself alone, as Python loads an extension, it
 * is so as well. Then it is one of those that the caller's own file needs.
 */

/* Its function of this name, which the interposer has replaced. */
void *fortran_next(const char *name, const void *caller);

/* MPI_IN_PLACE and MPI_BOTTOM of Open MPI's Fortran are variables; a buffer that is one of
 * them becomes C's. */
void *fortran_buffer(void *address, const void *caller);

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

/*
 * The policy of a communicator: that of its info key, else that of the environment.
 *
 * The ranks compare the environment in MPI_Init (full_begin), and the key of a communicator in the
 * call that gives it info, which is collective. So an allreduce needs no comparison.
 */

/* Fill in what follows from the communicator and from full_facts. Local. */
void comm_policy_settle(struct record *r, MPI_Comm comm);

/* The program gives a communicator info, with the policy `text` or without one (NULL), perhaps
 * on some of its ranks only. Collective over comm. */
void comm_policy_agree(MPI_Comm comm, const char *text);

/* What the program's info says about a communicator. */

/* A communicator is used: what waited for it is remembered on it. */
void info_arrived(MPI_Comm comm);

/*
 * May this call be taken over, and by which handle?
 *
 * The ranks of a call decide each for itself, so they must decide alike: the answer
 * depends on what MPI demands to be the same on all ranks (count, datatype, op,
 * communicator, the sequence of calls on it) and on what the ranks have compared: the
 * environment and the thread level in MPI_Init (full_begin), the info of a communicator when
 * it is given (comm_policy_agree). Arguments that MPI would refuse are left to MPI.
 */

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

/* Persistent allreduces that were taken over: making, finding, starting, freeing. */

/* MPI_Allreduce_init. TAKEN: *request is an inactive request, *error MPI's code. */
enum outcome persistent_init(const struct call *call, MPI_Request *request, int *error);
/* The requests have been started in MPI: start the rounds of those that are ours. */
int persistent_started(int count, const MPI_Request *requests);
/* The program is about to free this request. */
void persistent_forget(MPI_Request request);

/*
 * The thread that completes persistent requests.
 *
 * A persistent allreduce that was taken over is, for the program and for MPI, a
 * persistent receive of an empty message from this very process. Starting it starts our
 * round too; when that is complete the completion thread puts the result into the
 * program's buffer and sends the message. So every function of MPI that waits for
 * requests or tests them works unchanged, on any mixture of requests, and the round
 * advances whatever the program does meanwhile. It takes MPI_THREAD_MULTIPLE.
 */

/* A persistent allreduce. The program owns it until it frees the request, the
 * completion thread from the start of a round until it is complete. */
struct token {
    struct cache_key key;
    pcoll_handle *handle;
    MPI_Request request;
    MPI_Comm comm;
    bool has_tag;
    int tag; /* of the message to ourselves */
    const void *send;
    void *recv;
    MPI_Datatype type;             /* predefined */
    struct mirror_buffers mirrors; /* where these are on a device */
    void *result;                  /* recv, or the host's in its place */
    _Atomic bool live;             /* the program has not freed it */
    _Atomic bool active;           /* a round is under way */
    struct token *next_live, *next_active;
};

/* Does this MPI notice what another thread completes? */
bool completion_thread_works(void);
/* Begin an inactive request for this token. MPI's error code. */
int completion_thread_init_request(struct token *token);
/* The token, idle, is about to go. */
void completion_thread_give_tag_back(struct token *token);
/* The request has been started: start the round. */
int completion_thread_start(struct token *token);
/* The thread ends. Nothing may be active. */
void completion_thread_stop(void);

#endif

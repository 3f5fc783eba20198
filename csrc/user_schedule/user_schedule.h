/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules of users.
 *
 * A builder (builder.c) holds what the user writes down: operations with their memory, and their
 * predecessors. From it the module makes the schedule that the engine runs, and the list of
 * messages that the ranks compare. No I/O.
 *
 * Operation i of the builder is operation i of the schedule. The schedule has one more operation
 * after them, which ends the run when all others are complete.
 *
 * Matching. Messages from one rank to another with the same tag are matched in the order in which
 * they were added: the n-th send meets the n-th receive, in whatever order they are executed. So
 * every message between a pair of ranks has a number, its edge: the position of (tag, n) among the
 * messages of the pair. If both sides have the same messages, they count the same edges. The ranks
 * compare whether they do.
 */
#pragma once

#include "kernels/reduce.h"
#include "runtime/communicator.h"
#include "schedule/sched.h"

struct builder_op {
    enum op_kind kind;
    char *label;
    const void *from; /* read: SEND, REDUCE, COPY */
    void *into;       /* written: RECV, REDUCE, COPY */
    uint64_t count;
    size_t bytes;
    int dtype;
    int op;           /* REDUCE */
    int peer, tag;    /* SEND, RECV */
    uint32_t ordinal; /* n: number among messages of the same peer, direction and tag */
    int edge;         /* number among messages of the same peer and direction */
    int partner;      /* message of this rank to itself: the other end; else -1 */
    double seconds;   /* TIMER */
    uint32_t need;    /* k of its gate: predecessors that open it; 0: all */
};

struct builder {
    uint32_t rank, size;
    struct builder_op *ops;
    uint32_t count, capacity, messages;
    struct sched_edge *edges;
    uint32_t edge_count, edge_capacity;
    uint32_t tags; /* most edges of a pair that this rank is part of */
};

/* Add an operation, of which what its kind needs is set, and return its number in *id.
 * PCOLL_EINVAL names the argument; nothing is added then. shape: of its memory, or NULL. The label
 * is copied; NULL: a default. */
int builder_add(struct builder *builder, struct builder_op op,
                const pcoll_buffer *shape, const char *label, int *id);
/* Add predecessors. k: how many of all predecessors open the gate; 0: unchanged. */
int builder_after(struct builder *builder, int op, const int32_t *predecessors,
                  int count, uint32_t k);

/* Build the schedule of what was added so far, uncommitted; NULL without memory. The builder keeps
 * ownership of the labels. */
struct sched *builder_build(struct builder *builder);
/* Build and commit the schedule. Checks gates, cycles (including messages of a rank to itself) and
 * races (operations that use the same memory without an order). */
int builder_commit(struct builder *builder, struct sched **out);

void builder_destroy(struct builder *builder);

/* Compute ordinal, edge and partner of the operations, and `tags`. PCOLL_ENOMEM. */
int builder_number_messages(struct builder *builder);

/* Compute this rank's digest of its messages. The sum of the digests of all ranks is zero if every
 * send has a receive of the same size and dtype. Otherwise it is zero with probability 2^-128. */
enum { DIGEST_WORDS = 2 };
void builder_digest_messages(const struct builder *builder,
                             uint64_t digest[DIGEST_WORDS]);

/* All messages as words, to find out which of them do not match. */
enum { MESSAGE_WORDS = 4 };
/* Compute the number of messages of lower ranks and of all ranks from the counts, which other
 * ranks have sent. PCOLL_EPROTOCOL if a count is impossible. */
int builder_place_messages(const struct builder *builder, const uint64_t *counts,
                           uint64_t *before, uint64_t *total);
void builder_write_messages(const struct builder *builder, uint64_t *words);
/* Compare the messages of all ranks. PCOLL_EMISMATCH names both sides of the first one that does
 * not match. `words` gets sorted. */
int builder_compare_messages(uint64_t *words, uint64_t count);

/*
 * A run (schedule_run.c) is a committed schedule: its engine and the memory of its operations. One
 * thread at a time drives it. The application only calls schedule_run_start and reads the counters
 * `started` and `finished`.
 *
 * A run is over when all its operations are complete. The next run begins after that, so messages
 * need no run number. Another rank may already be in run t + 1: its messages wait in the
 * transport, in order, after those of run t.
 *
 * Closing is collective:
 *   QUEUED    another object of this communicator closes first. Runs continue.
 *   AGREEING  ranks agree on the largest number of started runs. Runs continue.
 *   DRAINING  complete that number of runs. Those that this rank has not started are
 *             empty: their messages use stand-in memory, so that other ranks do not
 *             wait forever and the user's memory is not touched.
 *   CLOSED    no message can arrive any more: every one had its receive.
 */
enum schedule_run_closing {
    RUN_OPEN,
    RUN_QUEUED,
    RUN_AGREEING,
    RUN_DRAINING,
    RUN_CLOSED
};

/* State of an operation during a run. */
struct schedule_run_op {
    void *stand_in; /* memory of a message in place of the user's, or NULL */
    int64_t due;    /* TIMER: when it expires */
};

struct schedule_run {
    struct object base; /* first: found again from it */
    struct communicator *communicator;
    const struct builder *builder;
    struct sched *sched;
    struct engine engine;
    struct schedule_run_op *ops;
    uint32_t *timers, timer_count; /* numbers of the TIMER operations */

    _Atomic uint64_t started;  /* runs asked for; written by the application */
    _Atomic uint64_t finished; /* runs that are over; written by the driver */

    _Atomic int closing; /* enum schedule_run_closing */
    struct agreement agreement;
    uint64_t closing_runs;
};

/* Make a run of a builder, which must outlive it, and its committed schedule, which it takes over
 * in any case. The builder's `tags` must be the largest of all ranks, so that all use the same
 * slots. */
int schedule_run_create(struct communicator *communicator,
                        const struct builder *builder, struct sched *s,
                        struct schedule_run **out);
/* Must not be called during a run. */
void schedule_run_destroy(struct schedule_run **run);

/* Application: start another run. */
void schedule_run_start(struct schedule_run *run);

/* Driver: close, after the objects of this communicator that close already, on all ranks in the
 * same order. Complete when `closing` is RUN_CLOSED. Idempotent. */
int schedule_run_close(struct schedule_run *run);

/* Driver: describe what the current run waits for. */
void schedule_run_pending(const struct schedule_run *run, char *text, size_t capacity);

/* Commit a builder, which must outlive the run. Collective: every rank checks its own builder, then
 * all ranks compare their messages, agree on slots, and register the run. A rank that has failed so
 * far passes its error as `local` and takes part, so that the commit fails on every rank. */
int schedule_run_commit(struct communicator *communicator, int local,
                        struct builder *builder, struct schedule_run **out);

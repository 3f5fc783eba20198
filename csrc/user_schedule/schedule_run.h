/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user's committed schedule: its engine and the memory of its operations. One thread
 * at a time drives it. The application only calls schedule_run_start and reads the
 * counters `started` and `finished`.
 *
 * A run is over when all its operations are complete. The next run begins after that,
 * so messages need no run number. Another rank may already be in run t + 1: its
 * messages wait in the transport, in order, after those of run t.
 *
 * Closing is collective:
 *   QUEUED    another object of this communicator closes first. Runs continue.
 *   AGREEING  ranks agree on the largest number of started runs. Runs continue.
 *   DRAINING  complete that number of runs. Those that this rank has not started are
 *             empty: their messages use stand-in memory, so that other ranks do not
 *             wait forever and the user's memory is not touched.
 *   CLOSED    no message can arrive any more: every one had its receive.
 */
#pragma once

#include "runtime/communicator.h"
#include "schedule/sched.h"
#include "user_schedule/builder.h"

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
    struct builder builder;
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

/* Take over the builder and its committed schedule s; both stay with the caller on an
 * error. The builder's `tags` must be the largest of all ranks, so that all use the
 * same slots. */
int schedule_run_create(struct communicator *communicator, struct builder *builder,
                        struct sched *s, struct schedule_run **out);
/* Must not be called during a run. */
void schedule_run_destroy(struct schedule_run **run);

/* Application: start another run. */
void schedule_run_start(struct schedule_run *run);

/* Driver: close, after the objects of this communicator that close already, on all
 * ranks in the same order. Complete when `closing` is RUN_CLOSED. Idempotent. */
int schedule_run_close(struct schedule_run *run);

/* Driver: describe what the current run waits for. */
void schedule_run_pending(const struct schedule_run *run, char *text, size_t capacity);

/*
 * Commit a builder. Collective: every rank checks its own builder, then all ranks
 * compare their messages, agree on slots, and register the run. A rank that has failed
 * so far passes its error as `local` and takes part, so that the commit fails on every
 * rank. The run takes the builder over on success only.
 */
int schedule_run_commit(struct communicator *communicator, int local,
                        struct builder *builder, struct schedule_run **out);

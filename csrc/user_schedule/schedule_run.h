/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user's schedule that runs: the committed schedule, its engine, and the memory of
 * its operations. Driven by one thread at a time; the application reaches it through
 * schedule_run_start and the two counters only.
 *
 * A run is over when all operations are done, so that nothing of it is left when the
 * next one begins: no message needs a number. Run t+1 of another rank may be ahead of
 * ours; its messages wait in the transport, in order behind those of run t.
 *
 * Closing (a collective):
 *   QUEUED    another handle of this communicator closes first: as OPEN.
 *   AGREEING  on the most runs that any rank has started. As OPEN.
 *   DRAINING  bring all of these to their end. Runs that this rank has not started are
 *             empty ones: their messages carry nothing and end nowhere, so that nobody
 *             else waits for ever and the user's memory is not touched.
 *   CLOSED    nothing can come any more: every message had its receive.
 */
#ifndef PCOLL_USER_SCHEDULE_SCHEDULE_RUN_H
#define PCOLL_USER_SCHEDULE_SCHEDULE_RUN_H

#include "runtime/communicator.h"
#include "schedule/engine.h"
#include "user_schedule/builder.h"

enum schedule_run_closing {
    RUN_OPEN,
    RUN_QUEUED,
    RUN_AGREEING,
    RUN_DRAINING,
    RUN_CLOSED
};

/* What an operation has while it runs. */
struct schedule_run_op {
    void *stand_in; /* memory of a message that is not the user's, or NULL */
    int64_t due;    /* TIMER */
};

struct schedule_run {
    struct object base; /* first: found again from it */
    struct communicator *communicator;
    struct builder builder;
    struct sched *sched;
    struct engine engine;
    struct schedule_run_op *ops;
    uint32_t *timers, timer_count; /* operations */

    _Atomic uint64_t started;  /* runs asked for; the application's */
    _Atomic uint64_t finished; /* runs that are over; the driver's */

    _Atomic int closing; /* enum schedule_run_closing */
    struct agreement agreement;
    uint64_t closing_runs;
};

/* Takes the builder, whose schedule is `s`, and s; leaves both alone if it fails. The
 * builder's `tags` must be the most that any rank has: all have the same slots. */
int schedule_run_create(struct communicator *communicator, struct builder *builder,
                        struct sched *s, struct schedule_run **out);
/* Not while it runs. */
void schedule_run_destroy(struct schedule_run **run);

/* Application: ask for one more run. */
void schedule_run_start(struct schedule_run *run);

/* Driver: close, after those of this communicator that close already; on all ranks in
 * the same order. Over when closing is RUN_CLOSED. Idempotent. */
int schedule_run_close(struct schedule_run *run);

/* Driver: what the current run waits for, in words. */
void schedule_run_pending(const struct schedule_run *run, char *text, size_t capacity);

/*
 * Committing a builder: every rank checks its own, then all compare their messages,
 * agree on slots, and enter the program in their tables. A rank that fails takes part
 * all the same, so that it fails on every rank. Collective.
 */

/* local: this rank's own decision so far. The builder is taken if all is well, and
 * stays as it is if not. */
int schedule_run_commit(struct communicator *communicator, int local,
                        struct builder *builder, struct schedule_run **out);

#endif

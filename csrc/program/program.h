/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user's schedule that runs: the committed schedule, its engine, and the memory of
 * its operations. Driven by one thread at a time; the application reaches it through
 * program_start and the two counters only.
 *
 * A run is over when all operations are done, so that nothing of it is left when the
 * next one begins: no message needs a number. Run t+1 of another rank may be ahead of
 * ours; its messages wait in the transport, in order behind those of run t.
 *
 * Closing (a collective):
 *   QUEUED    another handle of this communicator closes first: as OPEN.
 *   AGREEING  on the most runs that any rank has started. As OPEN.
 *   DRAINING  bring all of these to their end. Runs that this rank has not started are
 * empty ones: their messages carry nothing and end nowhere, so that nobody else waits
 * for ever and the user's memory is not touched.
 *   CLOSED    nothing can come any more: every message had its receive.
 */
#ifndef PCOLL_PROGRAM_H
#define PCOLL_PROGRAM_H

#include "../allreduce/context.h"
#include "../schedule/engine.h"
#include "draft.h"

enum program_closing {
    PROGRAM_OPEN,
    PROGRAM_QUEUED,
    PROGRAM_AGREEING,
    PROGRAM_DRAINING,
    PROGRAM_CLOSED
};

/* What an operation has while it runs. */
struct program_op {
    void *stand_in; /* memory of a message that is not the user's, or NULL */
    int64_t due;    /* TIMER */
};

struct program {
    struct participant base; /* first: found again from it */
    struct context *context;
    struct draft draft;
    struct sched *sched;
    struct engine engine;
    struct program_op *ops;
    uint32_t *timers, timer_count; /* operations */

    _Atomic uint64_t started;  /* runs asked for; the application's */
    _Atomic uint64_t finished; /* runs that are over; the driver's */

    _Atomic int closing; /* enum program_closing */
    struct agreement agreement;
    uint64_t closing_runs;
};

/* Takes the draft, whose schedule is `s`, and s; leaves both alone if it fails. The
 * draft's `tags` must be the most that any rank has: all have the same slots. */
int program_create(struct context *c, struct draft *d, struct sched *s,
                   struct program **out);
/* Not while it runs. */
void program_destroy(struct program **p);

/* Application: ask for one more run. */
void program_start(struct program *p);

/* Driver: close, after those of this communicator that close already; on all ranks in
 * the same order. Over when closing is PROGRAM_CLOSED. Idempotent. */
int program_close(struct program *p);

/* Driver: what the current run waits for, in words. */
void program_pending(const struct program *p, char *text, size_t capacity);

#endif

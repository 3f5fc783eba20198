/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the progress engine (progress.h), for its files. */
#ifndef PCOLL_RUNTIME_PROGRESS_STATE_H
#define PCOLL_RUNTIME_PROGRESS_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/thread.h"
#include "runtime/progress.h"

struct progress {
    struct doorbell doorbell;
    _Atomic uint32_t driving; /* the drive lock */
    _Atomic uint32_t notifications;
    _Atomic uint32_t polled;         /* the doorbell's count before the last poll, see
                                progress_wake_waiters */
    _Atomic int rounds;              /* in progress */
    _Atomic int unrung;              /* messages under way that come without a ring */
    _Atomic int64_t alarm_us;        /* the earliest of the sources'; the driver's */
    struct contention contention[2]; /* see progress_contention */
    _Atomic uint32_t vain; /* polls by threads that do not wait; see poll_in_vain */
    _Atomic int64_t idle_poll_ns; /* usual time of a poll in which nothing happens; 0:
                                     not known. Any waiter writes it; a stale or lost
                                     value costs a few polls */
    _Atomic bool stop;
    _Atomic bool has_agent, spins;
    pthread_t agent;
    struct progress_source *sources; /* under the drive lock */
    _Atomic int off_node;
};

/* The agent's yields are its own: what it meets on a core of this process alone is the
 * thread that is to wait next. */
static inline struct contention *progress_contention(struct progress *p,
                                                     enum doorbell_sleeper who)
{
    return &p->contention[who == DOORBELL_AGENT];
}

/* Something may come without a ring. */
static inline bool progress_must_poll(const struct progress *p)
{
    return atomic_load(&p->unrung) || atomic_load(&p->off_node);
}

/* progress.c: try to drive. What happened, or PROGRESS_BUSY if somebody else does. */
enum { PROGRESS_BUSY = -1 };
int progress_drive(struct progress *p);
/* The same; if somebody else does, it looks once more. */
int progress_drive_next(struct progress *p);
/* Drive, or have the one who does look once more: what we know of may have come after
 * it looked, and we are about to sleep. */
int progress_drive_or_notify(struct progress *p);

/* progress_rest.c */

/* Polls before the first sleep, each followed by a yield of the core: many for a
 * waiter, which is about to be needed; few for an agent, and after MPI has moved data. */
enum { WAITER_LOOKS = 60, AGENT_LOOKS = 4, MOVED_LOOKS = 8 };

/*
 * The longest sleep before the next poll, in microseconds. It starts at `first` and grows
 * to `last`, by one part in `growth` each time. Messages that ring the doorbell end the
 * sleep early. The limit exists for what does not ring: messages from other nodes
 * (`unrung`), and the application's own MPI traffic, which moves only while somebody
 * polls MPI.
 */
struct backoff {
    int64_t first, last, growth;
};

/* The state of a thread that finds no work. */
struct rest {
    int looks;       /* polls since something happened */
    int64_t backoff; /* the last sleep's limit, in microseconds; 0: none yet */
    bool moved;      /* MPI has moved data lately: sleep for short times only */
};

/* Does the next poll come before a sleep whose length depends on whether MPI moves data? Not
 * while an alarm is set: somebody polls at that time anyway. */
static inline bool progress_rest_asks(const struct progress *p, const struct rest *r,
                                      int looks)
{
    return r->looks >= looks - 1 && atomic_load(&p->alarm_us) == INT64_MAX;
}

/*
 * Drive like progress_drive_or_notify. Set *moved if MPI seems to have moved data.
 * Nobody can ask MPI whether it has work for the application: an idle poll of it takes
 * some 0.2 us and one that moves data takes longer, so the time tells. It is the time
 * that this thread has had a core: with more ranks than cores, other threads run in the
 * middle of many polls. The comparison is with the usual time of an idle poll,
 * p->idle_poll_ns. A wrong answer costs a few polls, or one sleep.
 */
int progress_drive_timed(struct progress *p, bool *moved);

/* Yield, or sleep for at most limit_us. */
void progress_take_rest(struct progress *p, struct rest *r, uint32_t seen,
                        enum doorbell_sleeper who, int looks, struct backoff backoff,
                        int64_t limit_us);

#endif

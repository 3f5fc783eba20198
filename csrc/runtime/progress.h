/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who drives the communication, and how everybody else sleeps.
 *
 * There is one drive lock in a process. Whoever holds it polls the sources (one for
 * each communicator) and runs what has become ready. It is only ever tried, so nobody
 * waits for it:
 *   - a thread of the application that waits for a round drives, then sleeps on the
 *     doorbell;
 *   - one that has started a round drives once;
 *   - the agent drives while no thread waits.
 *
 * Work is never left lying: who has work for the driver counts `notifications` up and
 * tries the lock; if that fails, the holder has not yet released it, and it compares
 * `notifications` after the release (all of that sequentially consistent), so it sees
 * the new value and goes round again.
 *
 * Sources are added and removed under the lock. A source that is polled may remove others.
 */
#ifndef PCOLL_RUNTIME_PROGRESS_H
#define PCOLL_RUNTIME_PROGRESS_H

#include <stddef.h>

#include "base/doorbell.h"
#include "include/partialcoll.h"

struct progress;

struct progress_source {
    /* Poll and run; the number of things that happened. Never fails: a source keeps its
     * failure for those who wait for it. */
    int (*poll)(struct progress_source *source);
    bool off_node;    /* some message can come without a ring */
    int64_t alarm_us; /* poll at that time (base/clock.h) at the latest; INT64_MAX */
    struct progress_source *next;
};

/* PCOLL_ENOMEM. */
int progress_create(struct progress **out);
/* Stops the agent. No thread may be waiting. */
void progress_destroy(struct progress **p);

/* Start the agent if it is not running. It sleeps while there is nothing to do, … */
int progress_start_agent(struct progress *p);
/* … or polls without end, from now on or no longer. */
void progress_spin(struct progress *p, bool spins);

/* End it; whoever waits drives. One thread at a time. */
void progress_stop_agent(struct progress *p);

void progress_add(struct progress *p, struct progress_source *source);
void progress_remove(struct progress *p, struct progress_source *source);
/* Driver: remove it. */
void progress_drop(struct progress *p, struct progress_source *source);

/* This process's doorbell. */
const struct doorbell *progress_doorbell(const struct progress *p);

/* Hold the drive lock (rarely: to begin and end things). Nothing is done for NULL, which
 * a simulation has: there one thread does everything. */
void progress_lock(struct progress *p);
void progress_unlock(struct progress *p);

/* Does anybody hold it? What only the driver may do can check. */
bool progress_is_driven(const struct progress *p);

/* There is work for the driver: see that somebody drives. */
void progress_notify(struct progress *p);

/* The same for a thread that asks again and again: sometimes it yields. */
void progress_poll(struct progress *p);

/* Where there is no agent: drive once, since the application is here. */
void progress_without_agent(struct progress *p);

/* Driver only: a round is complete, those who wait should look. */
void progress_wake_waiters(struct progress *p);
/* Driver only: a round has begun here (+1), is over (-1). */
void progress_round(struct progress *p, int change);
/* Driver only: messages are under way that come without a ring (+1), or no longer (-1).
 */
void progress_unrung(struct progress *p, int change);

/* Look a little while whether ready(arg), without driving or sleeping: for what other
 * threads on this machine are about to finish. */
bool progress_soon(struct progress *p, bool (*ready)(void *), void *arg);

/* Drive and sleep until ready(arg), at most timeout_us. PCOLL_EAGAIN. NULL: at once. */
int progress_wait(struct progress *p, bool (*ready)(void *), void *arg,
                  int64_t timeout_us);
/* The same, but sleep at once: whoever makes it ready rings, and messages have nothing
 * to do with it. */
int progress_sleep(struct progress *p, bool (*ready)(void *), void *arg,
                   int64_t timeout_us);

/* Waits in C that no caller bounds: they say on standard error what they wait for. */

/* Drive and sleep until ready(arg). After PARTIALCOLL_STALL_WARN seconds (10 by default), and
 * each time that the wait has become twice as long, print this rank of the communicator and what explain(arg) writes. */
void stall_wait(struct progress *p, uint32_t rank, bool (*ready)(void *), void *arg,
                void (*explain)(void *arg, char *text, size_t capacity));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which thread drives the communication, and how the others sleep.
 *
 * A process has one drive lock. The thread that holds it, the driver, polls the sources (one for
 * each communicator) and runs what has become ready. Threads only try the lock, so that none
 * waits for it:
 *   - a thread of the application that waits for a round drives, then sleeps on the doorbell;
 *   - a thread that has started a round drives once;
 *   - the agent drives while no thread waits.
 *
 * No work is left undone: a thread that has work for the driver increments `notifications` and
 * tries the lock. If that fails, the holder has not released it yet. The holder compares
 * `notifications` after the release, sees the new value and drives again. All of these accesses
 * are sequentially consistent.
 *
 * Sources are added and removed under the lock. A source that is polled may remove others.
 */
#pragma once

#include <stddef.h>

#include "base/doorbell.h"
#include "include/partialcoll.h"

struct progress;

struct progress_source {
    /* Poll and run; return how much has happened. A source keeps its failure for waiters. */
    int (*poll)(struct progress_source *source);
    bool off_node;    /* Some messages arrive without a ring of the doorbell. */
    int64_t alarm_us; /* When to poll at the latest (clock_us); INT64_MAX: none. */
    struct progress_source *next;
};

/* PCOLL_ENOMEM. */
int progress_create(struct progress **out);
/* Stop the agent, too. No thread may be waiting. */
void progress_destroy(struct progress **p);

/* Start the agent if it does not run. */
int progress_start_agent(struct progress *p);
/* Let the agent sleep while there is nothing to do, or poll without end. */
void progress_spin(struct progress *p, bool spins);
/* End the agent; threads that wait drive. One thread at a time may call this. */
void progress_stop_agent(struct progress *p);

void progress_add(struct progress *p, struct progress_source *source);
void progress_remove(struct progress *p, struct progress_source *source);
/* Driver: remove it. */
void progress_drop(struct progress *p, struct progress_source *source);

const struct doorbell *progress_doorbell(const struct progress *p);

/* Hold the drive lock (rarely: to begin and end things). NULL, as in a simulation: do nothing. */
void progress_lock(struct progress *p);
void progress_unlock(struct progress *p);
/* Return whether some thread holds it. Functions for the driver check this. */
bool progress_is_driven(const struct progress *p);

/* There is work for the driver: drive, or make the thread that drives poll once more. Return how
 * much has happened here, or -1 if another thread drives. */
int progress_notify(struct progress *p);
/* The same for a thread that asks again and again: sometimes it yields. */
void progress_poll(struct progress *p);
/* Drive once if there is no agent. */
void progress_without_agent(struct progress *p);

/* Driver: a round is complete. Wake the threads that wait. */
void progress_wake_waiters(struct progress *p);
/* Driver: a round has begun here (+1), or is complete (-1). */
void progress_round(struct progress *p, int change);
/* Driver: messages that arrive without a wake-up are under way (+1), or no longer (-1). */
void progress_unrung(struct progress *p, int change);

/* Check for a short while whether ready(arg), without driving or sleeping: for what other
 * threads on this machine are about to finish. */
bool progress_soon(struct progress *p, bool (*ready)(void *), void *arg);
/* Drive and sleep until ready(arg), for timeout_us at most: then PCOLL_EAGAIN. NULL: only ask. */
int progress_wait(struct progress *p, bool (*ready)(void *), void *arg,
                  int64_t timeout_us);
/* The same, but poll once and sleep. For conditions that another process of the node makes
 * true, and rings for. Until then the thread polls MPI whenever it wakes, at least every 4 ms. */
int progress_sleep(struct progress *p, bool (*ready)(void *), void *arg,
                   int64_t timeout_us);
/* Wait without a limit. After PARTIALCOLL_STALL_WARN seconds (by default 10), and whenever the wait
 * has doubled, print this rank and what explain(arg) writes on standard error. */
void progress_wait_or_warn(struct progress *p, uint32_t rank, bool (*ready)(void *),
                           void *arg,
                           void (*explain)(void *arg, char *text, size_t capacity));

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one process: start a thread of the library, yield the core, sleep until another
 * thread has changed something.
 */
#ifndef PCOLL_BASE_THREAD_H
#define PCOLL_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

/* Start a thread as pthread_create does, with all signals blocked that are meant for the
 * application. Faults of the thread itself are not blocked: otherwise the process would die
 * without a message, whatever handler the application or MPI has installed. */
static inline int thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t kept, old;
    sigfillset(&kept);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&kept, faults[i]);
    pthread_sigmask(SIG_SETMASK, &kept, &old);
    int rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

/*
 * Contention for cores: should a waiting thread yield its core or sleep?
 *
 * If the other threads wait, too, a yield takes microseconds. If one of them computes, a yield
 * takes its whole time slice, whatever message arrives meanwhile, and the kernel counts the rest
 * of our slice as used: some twenty milliseconds where there are many threads. A thread that
 * sleeps instead gets the core as soon as a ring wakes it. So after a yield that took long, the
 * cores count as crowded, and threads that would yield sleep for a while.
 *
 * Any number of threads may share one struct. Each writes what it has measured; a value that is
 * wrong for another thread costs it one yield or one sleep.
 */

/* The time until which the cores count as crowded, and the length of the last such period,
 * which each fast yield halves. Begins as zeros. */
struct contention {
    _Atomic int64_t until_us, lasting_us;
};

/* Return whether other threads need the cores for longer than a yield, so that this thread
 * should sleep. */
bool contention_is_high(const struct contention *c);

/* Yield, and measure how long that takes. */
void contention_yield(struct contention *c);

/*
 * Threads that sleep until a condition holds. The thread that makes it hold wakes all of them,
 * and each checks again.
 *
 * A sleeper checks under the mutex, and a waker takes the mutex after its change. So either the
 * check sees the change, or the wake-up comes while the sleeper sleeps. The condition reads
 * atomic variables; the mutex protects nothing else.
 */

struct sleepers {
    struct lock mutex;
    pthread_cond_t changed;
};

void sleepers_init(struct sleepers *s);
/* No thread sleeps any more, or wakes others. */
void sleepers_destroy(struct sleepers *s);
/* Sleep until so(arg) is true; it must take no locks. */
void sleepers_await(struct sleepers *s, bool (*so)(void *arg), void *arg);
void sleepers_wake(struct sleepers *s);

#endif

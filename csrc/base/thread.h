/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one process: starting one of the library's own, yielding the core, sleeping
 * until another thread has changed something.
 */
#ifndef PCOLL_BASE_THREAD_H
#define PCOLL_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

/* As pthread_create. Faults of the thread itself are not kept from it: were they, the process would
 * be gone without a word, whatever handler the application or MPI has for them. */
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
 * Yielding the core, and whether that is wise.
 *
 * Among threads that wait as well, a yield takes microseconds. Beside one that computes
 * it takes its time slice, whatever comes meanwhile, and the kernel counts the rest of
 * ours as used: some twenty milliseconds where threads are many. One that sleeps
 * instead has the core as soon as a ring wakes it. So a yield that took long says that
 * the cores are crowded, and whoever would yield sleeps for a while.
 *
 * Any number of threads may use one at the same time: what one of them writes
 * is right for it, and what is wrong for another costs a yield or a sleep that it would
 * have been spared.
 */

/* Until when the cores are taken to be crowded, and for how long they were the last
 * time, halved by each fast yield since. Begins as zeros. */
struct contention {
    _Atomic int64_t until_us, lasting_us;
};

/* Others want the cores for longer than a yield: sleep instead. */
bool contended(const struct contention *c);

/* Yield, and take note of how long that takes. */
void contention_yield(struct contention *c);

/*
 * Threads of one process that sleep until something is so. Whoever has made it so wakes
 * all of them, and each looks again.
 *
 * Sleepers look under the mutex, wakers take it after their change: so a change is either
 * seen by the look, or its wake-up comes when the sleeper sleeps already. What is looked
 * at is atomic; the mutex protects nothing else.
 */

struct sleepers {
    struct lock mutex;
    pthread_cond_t changed;
};

void sleepers_init(struct sleepers *s);
/* Nobody sleeps, or wakes, any more. */
void sleepers_destroy(struct sleepers *s);
/* Sleep until it is so; `so` takes no locks. */
void sleepers_await(struct sleepers *s, bool (*so)(void *arg), void *arg);
void sleepers_wake(struct sleepers *s);

#endif

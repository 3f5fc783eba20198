/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one process that sleep until something is so. Whoever has made it so wakes
 * all of them, and each looks again.
 *
 * Sleepers look under the mutex, wakers take it after their change: so a change is either
 * seen by the look, or its wake-up comes when the sleeper sleeps already. What is looked
 * at is atomic; the mutex protects nothing else.
 */
#ifndef PCOLL_BASE_SLEEPERS_H
#define PCOLL_BASE_SLEEPERS_H

#include <pthread.h>
#include <stdbool.h>

#include "base/lock.h"

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

/* SPDX-License-Identifier: Apache-2.0 */
/* See turn.h. */
#include "runtime/turn.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/lock.h"

enum { PATIENCE_NS = 500000000 };

static struct lock mutex = LOCK_INIT(LOCK_TURN);
static pthread_cond_t changed; /* waits by the monotonic clock */
static pthread_once_t made = PTHREAD_ONCE_INIT;
static struct turn *announced;
static uint64_t numbers;

static void make_condition(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void turn_init(struct turn *t)
{
    CHECK(t);
    pthread_once(&made, make_condition);
    lock_take(&mutex);
    *t = (struct turn){.number = ++numbers};
    lock_release(&mutex);
}

void turn_announce(struct turn *t)
{
    CHECK(t->number);
    lock_take(&mutex);
    t->next = announced;
    announced = t;
    lock_release(&mutex);
}

static bool comes_next(const struct turn *t)
{
    for (const struct turn *other = announced; other; other = other->next)
        if (other != t && (other->held || other->number < t->number))
            return false;
    return true;
}

void turn_take(struct turn *t)
{
    CHECK(!t->held);
    struct timespec until = clock_until(PATIENCE_NS);
    lock_take(&mutex);
    int rc = 0;
    while (rc != ETIMEDOUT && !comes_next(t))
        rc = pthread_cond_timedwait(&changed, &mutex.mutex, &until);
    t->held = true;
    lock_release(&mutex);
}

void turn_give(struct turn *t)
{
    lock_take(&mutex);
    struct turn **at = &announced;
    while (*at && *at != t)
        at = &(*at)->next;
    CHECK(*at);
    *at = t->next;
    t->held = false;
    pthread_cond_broadcast(&changed);
    lock_release(&mutex);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See lock.h. */
#include "base/lock.h"

#include <stdio.h>

#include "base/check.h"

#if defined(PCOLL_CHECKS) && !defined(PCOLL_TEST_INTERLEAVE)

/* How many locks of each rank this thread holds. */
static _Thread_local unsigned char held[LOCK_COUNT];

static const char *const lock_name[] = {
#define LOCK_RANK(rank, name) name,
    LOCK_RANKS(LOCK_RANK)
#undef LOCK_RANK
};

/* Fail if this thread holds a lock of rank `first` or later. */
static void lock_check_order(enum lock_rank rank, int first)
{
    for (int inner = first; inner < LOCK_COUNT; inner++)
        if (held[inner]) {
            char text[160];
            snprintf(text, sizeof text,
                     "lock order: this thread waits for \"%s\" and holds \"%s\"",
                     lock_name[rank], lock_name[inner]);
            check_broken(__FILE__, __LINE__, text);
        }
}

void lock_waits(enum lock_rank rank)
{
    lock_check_order(rank, rank);
}

void lock_waits_shared(enum lock_rank rank)
{
    lock_check_order(rank, rank + 1);
}

void lock_held(enum lock_rank rank)
{
    held[rank]++;
}

void lock_released(enum lock_rank rank)
{
    CHECK(held[rank]);
    held[rank]--;
}

#endif

void lock_init(struct lock *lock, enum lock_rank rank)
{
    CHECK(rank < LOCK_COUNT);
    pthread_mutex_init(&lock->mutex, NULL);
    lock->rank = rank;
}

void lock_destroy(struct lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

void lock_take(struct lock *lock)
{
    lock_waits(lock->rank);
    pthread_mutex_lock(&lock->mutex);
    lock_held(lock->rank);
}

bool lock_try(struct lock *lock)
{
    bool taken = pthread_mutex_trylock(&lock->mutex) == 0;
    if (taken)
        lock_held(lock->rank);
    return taken;
}

void lock_release(struct lock *lock)
{
    lock_released(lock->rank);
    pthread_mutex_unlock(&lock->mutex);
}

void lock_sleep(struct lock *lock, pthread_cond_t *changed)
{
    pthread_cond_wait(changed, &lock->mutex);
}

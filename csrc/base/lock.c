/* SPDX-License-Identifier: Apache-2.0 */
/* See lock.h. */
#include "base/lock.h"

#include <sched.h>
#include <stdio.h>

#include "base/check.h"
#include "base/clock.h"

#if defined(PCOLL_CHECKS) && !defined(PCOLL_TEST_INTERLEAVE)

/* How many locks of each rank this thread holds. */
static _Thread_local unsigned char held[LOCK_COUNT];

static const char *const lock_name[] = {
#define LOCK_RANK(rank, name) name,
    LOCK_RANKS(LOCK_RANK)
#undef LOCK_RANK
};

void lock_check_order(enum lock_rank rank, int first)
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

/* Contention. */

/*
 * A yield that takes longer than CROWDED_US has waited for a thread that computes. For as long
 * as it took no thread yields, and for twice as long each time that the next yield is slow, too.
 * So a computing thread that appears for a moment changes little, and where such threads stay,
 * few waiting threads try at the same time.
 */
enum { CROWDED_US = 1000, CONTENDED_MAX_US = 1000000 };

bool contention_is_high(const struct contention *c)
{
    int64_t until = atomic_load(&c->until_us);
    return until && clock_us() < until;
}

void contention_yield(struct contention *c)
{
    int64_t before = clock_us();
    sched_yield();
    int64_t now = clock_us(), took = now - before;
    int64_t lasting = atomic_load(&c->lasting_us);
    if (took < CROWDED_US) {
        if (lasting)
            atomic_store(&c->lasting_us, lasting / 2);
        return;
    }
    lasting = 2 * lasting > took ? 2 * lasting : took;
    lasting = lasting < CONTENDED_MAX_US ? lasting : CONTENDED_MAX_US;
    atomic_store(&c->lasting_us, lasting);
    atomic_store(&c->until_us, now + lasting);
}

/* Sleepers. */

void sleepers_init(struct sleepers *s)
{
    CHECK(s);
    lock_init(&s->mutex, LOCK_SLEEPERS);
    pthread_cond_init(&s->changed, NULL);
}

void sleepers_destroy(struct sleepers *s)
{
    CHECK(s);
    pthread_cond_destroy(&s->changed);
    lock_destroy(&s->mutex);
}

void sleepers_await(struct sleepers *s, bool (*so)(void *arg), void *arg)
{
    CHECK(so);
    lock_take(&s->mutex);
    while (!so(arg))
        pthread_cond_wait(&s->changed, &s->mutex.mutex);
    lock_release(&s->mutex);
}

void sleepers_wake(struct sleepers *s)
{
    CHECK(s);
    lock_take(&s->mutex);
    pthread_cond_broadcast(&s->changed);
    lock_release(&s->mutex);
}

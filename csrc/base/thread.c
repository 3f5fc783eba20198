/* SPDX-License-Identifier: Apache-2.0 */
/* See thread.h. */
#include "base/thread.h"

#include <sched.h>

#include "base/check.h"
#include "base/clock.h"

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
        lock_sleep(&s->mutex, &s->changed);
    lock_release(&s->mutex);
}

void sleepers_wake(struct sleepers *s)
{
    CHECK(s);
    lock_take(&s->mutex);
    pthread_cond_broadcast(&s->changed);
    lock_release(&s->mutex);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See sleepers.h. */
#include "base/sleepers.h"

#include "base/check.h"

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

/* SPDX-License-Identifier: Apache-2.0 */
/* See sleepers.h. */
#include "base/sleepers.h"

#include "base/check.h"

void sleepers_init(struct sleepers *s)
{
    CHECK(s);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
}

void sleepers_destroy(struct sleepers *s)
{
    CHECK(s);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
}

void sleepers_await(struct sleepers *s, bool (*so)(void *arg), void *arg)
{
    CHECK(so);
    pthread_mutex_lock(&s->mutex);
    while (!so(arg))
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

void sleepers_wake(struct sleepers *s)
{
    CHECK(s);
    pthread_mutex_lock(&s->mutex);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

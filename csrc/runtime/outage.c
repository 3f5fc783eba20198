/* SPDX-License-Identifier: Apache-2.0 */
/* See outage.h. */
#include "runtime/outage.h"

#include "base/check.h"
#include "base/clock.h"

void outage_init(struct outage *o)
{
    CHECK(o);
    *o = (struct outage){0};
    pthread_mutex_init(&o->mutex, NULL);
    pthread_cond_init(&o->changed, NULL);
    turn_init(&o->turn);
}

void outage_destroy(struct outage *o)
{
    CHECK(!o->calls);
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->mutex);
}

bool outage_begin(struct outage *o, const struct failed_ranks *who)
{
    CHECK(who);
    pthread_mutex_lock(&o->mutex);
    bool recovers = !o->ends;
    if (recovers && !atomic_load(&o->stopped)) {
        o->who = *who;
        o->began = clock_ns();
        turn_announce(&o->turn);
        atomic_store(&o->stopped, true);
        pthread_cond_broadcast(&o->changed);
    }
    pthread_mutex_unlock(&o->mutex);
    return recovers;
}

bool outage_now(struct outage *o)
{
    return o && atomic_load(&o->stopped);
}

bool outage_since(struct outage *o, uint32_t epoch)
{
    CHECK(o || !epoch);
    return o && (atomic_load(&o->stopped) || atomic_load(&o->epoch) != epoch);
}

uint32_t outage_epoch(struct outage *o)
{
    return o ? atomic_load(&o->epoch) : 0;
}

void outage_enter(struct outage *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->mutex);
    while (atomic_load(&o->stopped))
        pthread_cond_wait(&o->changed, &o->mutex);
    CHECK(o->calls < UINT32_MAX);
    o->calls++;
    pthread_mutex_unlock(&o->mutex);
}

bool outage_try_enter(struct outage *o)
{
    CHECK(o);
    pthread_mutex_lock(&o->mutex);
    bool enters = !atomic_load(&o->stopped);
    o->calls += enters;
    pthread_mutex_unlock(&o->mutex);
    return enters;
}

void outage_leave(struct outage *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->mutex);
    CHECK(o->calls > 0);
    o->calls--;
    if (atomic_load(
            &o->stopped)) /* else nobody waits for it, and the recovery sleeps on */
        pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->mutex);
}

int outage_error(struct outage *o)
{
    CHECK(o);
    pthread_mutex_lock(&o->mutex);
    struct failed_ranks who = o->who;
    pthread_mutex_unlock(&o->mutex);
    return fail_ranks(&who);
}

uint32_t outage_times(struct outage *o, int64_t *began, int64_t *ended)
{
    CHECK(o);
    pthread_mutex_lock(&o->mutex);
    uint32_t epoch = atomic_load(&o->epoch);
    *began = o->began;
    *ended = o->ended;
    pthread_mutex_unlock(&o->mutex);
    return epoch;
}

bool outage_await(struct outage *o)
{
    CHECK(o);
    pthread_mutex_lock(&o->mutex);
    while (!atomic_load(&o->stopped) && !o->ends)
        pthread_cond_wait(&o->changed, &o->mutex);
    bool stopped = atomic_load(&o->stopped);
    pthread_mutex_unlock(&o->mutex);
    return stopped;
}

void outage_await_calls(struct outage *o)
{
    CHECK(atomic_load(&o->stopped));
    pthread_mutex_lock(&o->mutex);
    while (o->calls)
        pthread_cond_wait(&o->changed, &o->mutex);
    pthread_mutex_unlock(&o->mutex);
}

void outage_take_turn(struct outage *o)
{
    CHECK(atomic_load(&o->stopped));
    turn_take(&o->turn);
}

void outage_end(struct outage *o)
{
    CHECK(atomic_load(&o->stopped));
    turn_give(&o->turn);
    pthread_mutex_lock(&o->mutex);
    atomic_fetch_add(&o->epoch, 1);
    o->ended = clock_ns();
    atomic_store(&o->stopped, false);
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->mutex);
}

void outage_cease(struct outage *o)
{
    CHECK(o);
    pthread_mutex_lock(&o->mutex);
    while (atomic_load(&o->stopped))
        pthread_cond_wait(&o->changed, &o->mutex);
    o->ends = true;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->mutex);
}

void outage_give_up(struct outage *o)
{
    CHECK(atomic_load(&o->stopped));
    pthread_mutex_lock(&o->mutex);
    o->ends = true;
    pthread_mutex_unlock(&o->mutex);
}

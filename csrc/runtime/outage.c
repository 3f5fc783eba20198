/* SPDX-License-Identifier: Apache-2.0 */
/* See outage.h. */
#include "runtime/outage.h"

#include <errno.h>

#include "base/check.h"
#include "base/clock.h"

enum { OUTAGE_PATIENCE_NS = 500000000 };

static struct lock outage_mutex = LOCK_INIT(LOCK_FAILURE);
static pthread_cond_t outage_changed; /* Its clock is the monotonic one. */
static pthread_once_t outage_once = PTHREAD_ONCE_INIT;
static struct outage *outage_begun; /* The outages that have begun and not ended. */
static uint64_t outage_numbers;

static void outage_make_condition(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&outage_changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void outage_init(struct outage *o)
{
    pthread_once(&outage_once, outage_make_condition);
    lock_take(&outage_mutex);
    *o = (struct outage){.number = ++outage_numbers};
    lock_release(&outage_mutex);
    gate_init(&o->gate, LOCK_COMMUNICATOR);
}

void outage_destroy(struct outage *o)
{
    gate_destroy(&o->gate);
}

bool outage_begin(struct outage *o, const struct failed_ranks *who)
{
    lock_take(&outage_mutex);
    bool recovers = !o->ceased;
    if (recovers && !gate_is_closed(&o->gate)) {
        o->who = *who;
        o->began = clock_ns();
        o->next = outage_begun;
        outage_begun = o;
        gate_close(&o->gate);
        pthread_cond_broadcast(&outage_changed);
    }
    lock_release(&outage_mutex);
    return recovers;
}

bool outage_now(struct outage *o)
{
    return o && gate_is_closed(&o->gate);
}

bool outage_since(struct outage *o, uint32_t epoch)
{
    CHECK(o || !epoch);
    return o && (gate_is_closed(&o->gate) || atomic_load(&o->epoch) != epoch);
}

uint32_t outage_epoch(struct outage *o)
{
    return o ? atomic_load(&o->epoch) : 0;
}

void outage_enter(struct outage *o)
{
    if (o)
        gate_enter(&o->gate);
}

bool outage_try_enter(struct outage *o)
{
    return !o || gate_try_enter(&o->gate);
}

void outage_leave(struct outage *o)
{
    if (o)
        gate_leave(&o->gate);
}

int outage_error(struct outage *o)
{
    lock_take(&outage_mutex);
    struct failed_ranks who = o->who;
    lock_release(&outage_mutex);
    return fail_ranks(&who);
}

uint32_t outage_times(struct outage *o, int64_t *began, int64_t *ended)
{
    lock_take(&outage_mutex);
    uint32_t epoch = atomic_load(&o->epoch);
    *began = o->began;
    *ended = o->ended;
    lock_release(&outage_mutex);
    return epoch;
}

bool outage_await(struct outage *o)
{
    lock_take(&outage_mutex);
    while (!gate_is_closed(&o->gate) && !o->ceased)
        lock_sleep(&outage_mutex, &outage_changed);
    bool begun = gate_is_closed(&o->gate);
    lock_release(&outage_mutex);
    return begun;
}

void outage_await_calls(struct outage *o)
{
    CHECK(outage_now(o));
    gate_await_empty(&o->gate);
}

static bool outage_is_next(const struct outage *o)
{
    for (const struct outage *other = outage_begun; other; other = other->next)
        if (other != o && (other->has_turn || other->number < o->number))
            return false;
    return true;
}

void outage_take_turn(struct outage *o)
{
    CHECK(outage_now(o) && !o->has_turn);
    struct timespec until = clock_until(OUTAGE_PATIENCE_NS);
    lock_take(&outage_mutex);
    for (int rc = 0; rc != ETIMEDOUT && !outage_is_next(o);)
        rc = pthread_cond_timedwait(&outage_changed, &outage_mutex.mutex, &until);
    o->has_turn = true;
    lock_release(&outage_mutex);
}

void outage_end(struct outage *o)
{
    CHECK(outage_now(o));
    lock_take(&outage_mutex);
    struct outage **at = &outage_begun;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    o->has_turn = false;
    o->ended = clock_ns();
    atomic_fetch_add(&o->epoch, 1);
    gate_open(&o->gate);
    pthread_cond_broadcast(&outage_changed);
    lock_release(&outage_mutex);
}

void outage_cease(struct outage *o)
{
    lock_take(&outage_mutex);
    while (gate_is_closed(&o->gate))
        lock_sleep(&outage_mutex, &outage_changed);
    o->ceased = true;
    pthread_cond_broadcast(&outage_changed);
    lock_release(&outage_mutex);
}

void outage_give_up(struct outage *o)
{
    CHECK(outage_now(o));
    lock_take(&outage_mutex);
    o->ceased = true;
    lock_release(&outage_mutex);
}

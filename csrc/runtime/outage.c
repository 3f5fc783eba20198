/* SPDX-License-Identifier: Apache-2.0 */
/* See outage.h. */
#include "runtime/outage.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/lock.h"

enum { PATIENCE_NS = 500000000 };

static struct lock turn_mutex = LOCK_INIT(LOCK_TURN);
static pthread_cond_t turn_changed; /* waits by the monotonic clock */
static pthread_once_t turn_made = PTHREAD_ONCE_INIT;
static struct turn *turn_announced;
static uint64_t turn_numbers;

static void turn_make_condition(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&turn_changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void turn_init(struct turn *t)
{
    CHECK(t);
    pthread_once(&turn_made, turn_make_condition);
    lock_take(&turn_mutex);
    *t = (struct turn){.number = ++turn_numbers};
    lock_release(&turn_mutex);
}

void turn_announce(struct turn *t)
{
    CHECK(t->number);
    lock_take(&turn_mutex);
    t->next = turn_announced;
    turn_announced = t;
    lock_release(&turn_mutex);
}

static bool turn_comes_next(const struct turn *t)
{
    for (const struct turn *other = turn_announced; other; other = other->next)
        if (other != t && (other->held || other->number < t->number))
            return false;
    return true;
}

void turn_take(struct turn *t)
{
    CHECK(!t->held);
    struct timespec until = clock_until(PATIENCE_NS);
    lock_take(&turn_mutex);
    int rc = 0;
    while (rc != ETIMEDOUT && !turn_comes_next(t))
        rc = pthread_cond_timedwait(&turn_changed, &turn_mutex.mutex, &until);
    t->held = true;
    lock_release(&turn_mutex);
}

void turn_give(struct turn *t)
{
    lock_take(&turn_mutex);
    struct turn **at = &turn_announced;
    while (*at && *at != t)
        at = &(*at)->next;
    CHECK(*at);
    *at = t->next;
    t->held = false;
    pthread_cond_broadcast(&turn_changed);
    lock_release(&turn_mutex);
}

void outage_init(struct outage *o)
{
    CHECK(o);
    *o = (struct outage){0};
    lock_init(&o->mutex, LOCK_FAILURE);
    pthread_cond_init(&o->changed, NULL);
    gate_init(&o->gate, LOCK_COMMUNICATOR);
    turn_init(&o->turn);
}

void outage_destroy(struct outage *o)
{
    CHECK(o);
    gate_destroy(&o->gate);
    pthread_cond_destroy(&o->changed);
    lock_destroy(&o->mutex);
}

bool outage_begin(struct outage *o, const struct failed_ranks *who)
{
    CHECK(who);
    lock_take(&o->mutex);
    bool recovers = !o->ends;
    if (recovers && !gate_is_closed(&o->gate)) {
        o->who = *who;
        o->began = clock_ns();
        turn_announce(&o->turn);
        gate_close(&o->gate);
        pthread_cond_broadcast(&o->changed);
    }
    lock_release(&o->mutex);
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
    CHECK(o);
    return gate_try_enter(&o->gate);
}

void outage_leave(struct outage *o)
{
    if (o)
        gate_leave(&o->gate);
}

int outage_error(struct outage *o)
{
    CHECK(o);
    lock_take(&o->mutex);
    struct failed_ranks who = o->who;
    lock_release(&o->mutex);
    return fail_ranks(&who);
}

uint32_t outage_times(struct outage *o, int64_t *began, int64_t *ended)
{
    CHECK(o);
    lock_take(&o->mutex);
    uint32_t epoch = atomic_load(&o->epoch);
    *began = o->began;
    *ended = o->ended;
    lock_release(&o->mutex);
    return epoch;
}

bool outage_await(struct outage *o)
{
    CHECK(o);
    lock_take(&o->mutex);
    while (!gate_is_closed(&o->gate) && !o->ends)
        lock_sleep(&o->mutex, &o->changed);
    bool stopped = gate_is_closed(&o->gate);
    lock_release(&o->mutex);
    return stopped;
}

void outage_await_calls(struct outage *o)
{
    CHECK(outage_now(o));
    gate_await_empty(&o->gate);
}

void outage_take_turn(struct outage *o)
{
    CHECK(outage_now(o));
    turn_take(&o->turn);
}

void outage_end(struct outage *o)
{
    CHECK(outage_now(o));
    turn_give(&o->turn);
    lock_take(&o->mutex);
    atomic_fetch_add(&o->epoch, 1);
    o->ended = clock_ns();
    gate_open(&o->gate);
    pthread_cond_broadcast(&o->changed);
    lock_release(&o->mutex);
}

void outage_cease(struct outage *o)
{
    CHECK(o);
    lock_take(&o->mutex);
    while (gate_is_closed(&o->gate))
        lock_sleep(&o->mutex, &o->changed);
    o->ends = true;
    pthread_cond_broadcast(&o->changed);
    lock_release(&o->mutex);
}

void outage_give_up(struct outage *o)
{
    CHECK(outage_now(o));
    lock_take(&o->mutex);
    o->ends = true;
    lock_release(&o->mutex);
}

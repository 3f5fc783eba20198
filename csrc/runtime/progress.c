/* SPDX-License-Identifier: Apache-2.0 */
/* The drive lock, who holds it, and what is driven; the rules are in progress.h and
 * doorbell.h. */
#include "runtime/progress_state.h"

#include <time.h>

#include "base/check.h"
#include "base/lock.h"

static bool try_lock(struct progress *p)
{
    bool taken = !atomic_load(&p->driving) && !atomic_exchange(&p->driving, 1);
    if (taken)
        lock_held(LOCK_DRIVE);
    return taken;
}

static void unlock(struct progress *p)
{
    CHECK(progress_is_driven(p));
    lock_released(LOCK_DRIVE);
    atomic_store(&p->driving, 0);
}

bool progress_is_driven(const struct progress *p)
{
    return atomic_load(&p->driving);
}

static void pause_us(int64_t us)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

void progress_lock(struct progress *p)
{
    if (!p)
        return;
    lock_waits(LOCK_DRIVE);
    struct contention *contention = progress_contention(p, DOORBELL_WAITER);
    for (int spins = 0; !try_lock(p); spins++) {
        if (spins < WAITER_LOOKS && !contended(contention))
            contention_yield(contention);
        else
            pause_us(50);
    }
    CHECK(progress_is_driven(p));
}

static int poll_sources(struct progress *p)
{
    CHECK(progress_is_driven(p));
    int happened = 0;
    int64_t alarm = INT64_MAX, before = atomic_load(&p->alarm_us);
    atomic_store(&p->polled, atomic_load(&p->doorbell.page->count));
    for (struct progress_source *s = p->sources; s; s = s->next)
        happened += s->poll(s);
    for (struct progress_source *s = p->sources; s; s = s->next)
        alarm = s->alarm_us < alarm ? s->alarm_us : alarm;
    atomic_store(&p->alarm_us, alarm);
    if (alarm < before) { /* others may be about to sleep for longer than that */
        doorbell_wake_waiters(p->doorbell.page);
        doorbell_wake_agent(p->doorbell.page);
    }
    return happened;
}

int progress_drive(struct progress *p)
{
    CHECK(p);
    int happened = 0;
    uint32_t notifications;
    do {
        notifications = atomic_load(&p->notifications);
        if (!try_lock(p))
            return PROGRESS_BUSY;
        happened += poll_sources(p);
        unlock(p);
    } while (atomic_load(&p->notifications) != notifications);
    return happened;
}

int progress_drive_next(struct progress *p)
{
    CHECK(p);
    atomic_fetch_add(&p->notifications, 1);
    return progress_drive(p);
}

int progress_drive_or_notify(struct progress *p)
{
    CHECK(p);
    int happened = progress_drive(p);
    return happened == PROGRESS_BUSY ? progress_drive_next(p) : happened;
}

/* Kicks that came while the lock was held for something else have found it taken. */
void progress_unlock(struct progress *p)
{
    if (!p)
        return;
    unlock(p);
    progress_drive(p);
}

void progress_notify(struct progress *p)
{
    progress_drive_next(p);
}

/* The ring is ours, not a message: it must not look like one to those who compare. In
 * this order, one who compares in between wakes the agent for nothing; in the other, a
 * message could be overlooked. */
void progress_wake_waiters(struct progress *p)
{
    CHECK(p->doorbell.page);
    doorbell_wake_waiters(p->doorbell.page);
    atomic_fetch_add(&p->polled, 1);
}

void progress_unrung(struct progress *p, int change)
{
    CHECK(change == 1 || change == -1);
    CHECK(change == 1 || atomic_load(&p->unrung) > 0);
    atomic_fetch_add(&p->unrung, change);
}

void progress_round(struct progress *p, int change)
{
    CHECK(change == 1 || change == -1);
    CHECK(change == 1 || atomic_load(&p->rounds) > 0);
    atomic_fetch_add(&p->rounds, change);
}

void progress_add(struct progress *p, struct progress_source *source)
{
    CHECK(source->poll);
    progress_lock(p);
    for (struct progress_source *at = p->sources; at; at = at->next)
        CHECK(at != source);
    source->next = p->sources;
    p->sources = source;
    atomic_fetch_add(&p->off_node, source->off_node);
    progress_unlock(p);
}

void progress_drop(struct progress *p, struct progress_source *source)
{
    CHECK(progress_is_driven(p));
    struct progress_source **at = &p->sources;
    while (*at && *at != source)
        at = &(*at)->next;
    if (*at) {
        *at = source->next;
        atomic_fetch_sub(&p->off_node, source->off_node);
    }
}

void progress_remove(struct progress *p, struct progress_source *source)
{
    CHECK(source->poll);
    progress_lock(p);
    progress_drop(p, source);
    progress_unlock(p);
}

const struct doorbell *progress_doorbell(const struct progress *p)
{
    CHECK(p);
    return &p->doorbell;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the application that wait, or poll; the rules are in progress.h and
 * doorbell.h. */
#include "runtime/progress_state.h"

#include <sched.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"

enum { SOON_SPINS = 100, SOON_YIELDS = 20 };
enum { POLLS_A_YIELD = 64 };

static const struct backoff waiter_rung = {1000, 4000, 1},
                            waiter_unrung = {20, 1000, 16};

static const int64_t longest_wait_us = (int64_t)1 << 50;

/*
 * A thread leaves a wait. Rings from now on wake the agent; for those that came before,
 * since the last look, one more look does: cheaper than a wake-up, and often this
 * thread is back at once. What has to be looked after without a ring is the agent's.
 */
static void hand_over(struct progress *p)
{
    struct doorbell_page *page = p->doorbell.page;
    atomic_fetch_sub(&page->waiters, 1);
    if (atomic_load(&page->count) != atomic_load(&p->polled))
        progress_drive_or_notify(p);
    if (atomic_load(&page->waiters_asleep))
        doorbell_wake_waiters(page);
    else if (atomic_load(&p->unrung) || atomic_load(&p->alarm_us) != INT64_MAX)
        doorbell_wake_agent(page);
}

void progress_without_agent(struct progress *p)
{
    if (!atomic_load(&p->has_agent))
        progress_drive(p);
}

/* A thread polls in a loop of its own: now and then others have the core, whoever they
 * are, for what it waits for may need it. */
static void poll_in_vain(struct progress *p)
{
    if (atomic_fetch_add(&p->vain, 1) % POLLS_A_YIELD == POLLS_A_YIELD - 1)
        sched_yield();
}

void progress_poll(struct progress *p)
{
    if (progress_drive_next(p) <= 0)
        poll_in_vain(p);
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

bool progress_soon(struct progress *p, bool (*ready)(void *), void *arg)
{
    CHECK(ready);
    for (int i = 0; i < SOON_SPINS; i++) {
        if (ready(arg))
            return true;
        relax();
    }
    struct contention *contention = progress_contention(p, DOORBELL_WAITER);
    for (int i = 0; i < SOON_YIELDS && !contended(contention); i++) {
        contention_yield(contention);
        if (ready(arg))
            return true;
    }
    return false;
}

static int wait_for(struct progress *p, bool (*ready)(void *), void *arg,
                    int64_t timeout_us, int looked)
{
    struct doorbell_page *page = p->doorbell.page;
    int64_t deadline =
        clock_us() + (timeout_us < longest_wait_us ? timeout_us : longest_wait_us);
    struct rest rest = {.looks = looked};
    int rc = PCOLL_OK;
    atomic_fetch_add(&page->waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(&page->count);
        bool moved = false;
        int happened = progress_rest_asks(p, &rest, WAITER_LOOKS)
                           ? progress_drive_timed(p, &moved)
                           : progress_drive_or_notify(p);
        if (ready(arg))
            break;
        int64_t left = deadline - clock_us();
        if (left <= 0) {
            rc = PCOLL_EAGAIN;
            break;
        }
        if (happened > 0)
            rest = (struct rest){0};
        else if (moved)
            rest = (struct rest){.looks = WAITER_LOOKS - MOVED_LOOKS, .moved = true};
        else
            progress_take_rest(p, &rest, seen, DOORBELL_WAITER, WAITER_LOOKS,
                               progress_must_poll(p) || rest.moved ? waiter_unrung
                                                                   : waiter_rung,
                               left);
    }
    hand_over(p);
    if (rc == PCOLL_EAGAIN && timeout_us <= 0)
        poll_in_vain(p);
    return rc;
}

int progress_wait(struct progress *p, bool (*ready)(void *), void *arg,
                  int64_t timeout_us)
{
    CHECK(ready);
    if (!p)
        return ready(arg) ? PCOLL_OK : PCOLL_EAGAIN;
    progress_without_agent(p);
    return ready(arg) ? PCOLL_OK : wait_for(p, ready, arg, timeout_us, 0);
}

int progress_sleep(struct progress *p, bool (*ready)(void *), void *arg,
                   int64_t timeout_us)
{
    CHECK(ready);
    return ready(arg) ? PCOLL_OK : wait_for(p, ready, arg, timeout_us, WAITER_LOOKS);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The drive lock, the agent and the waiting; the rules are in progress.h and
 * doorbell.h. */
#include "runtime/progress.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/contention.h"

struct progress {
    struct doorbell doorbell;
    _Atomic uint32_t driving; /* the drive lock */
    _Atomic uint32_t notifications;
    _Atomic uint32_t polled;         /* the doorbell's count before the last poll, see
                                progress_wake_waiters */
    _Atomic int rounds;              /* in progress */
    _Atomic int unrung;              /* messages under way that come without a ring */
    _Atomic int64_t alarm_us;        /* the earliest of the sources'; the driver's */
    struct contention contention[2]; /* see contention_of */
    _Atomic uint32_t vain; /* polls by threads that do not wait; see poll_in_vain */
    _Atomic bool stop;
    _Atomic bool has_agent, spins;
    pthread_t agent;
    struct progress_source *sources; /* under the drive lock */
    _Atomic int off_node;
};

/*
 * Looks in vain before sleeping, each followed by a yield of the core: many for a
 * waiter, which is about to be needed; few for an agent. After waking a few again: a
 * ring can be ahead of its message, and some MPIs move a message in one test and report
 * it in the next.
 */
enum { SOON_SPINS = 100, SOON_YIELDS = 20 };
enum { WAITER_LOOKS = 60, AGENT_LOOKS = 4, LOOKS_AWOKEN = 3 };

enum { POLLS_A_YIELD = 64 };

/*
 * How long to sleep at most before looking again, in microseconds, growing from the
 * first time to the last, by one part in so many each time. Messages that ring need no
 * looking: for them the sleep only bounds the damage of a ring that came before MPI had
 * delivered. `unrung` ones have to be looked for, and some MPIs move them only while
 * somebody looks: a sleep is then a sixteenth of the time waited so far, which bounds
 * what it adds.
 */
struct backoff {
    int64_t first, last, growth;
};
static const struct backoff waiter_rung = {200, 4000, 1},
                            waiter_unrung = {20, 1000, 16},
                            sleeper_rung = {1000, 100000, 1},
                            agent_busy_rung = {200, 4000, 1},
                            agent_busy_unrung = {50, 1000, 16},
                            agent_idle_rung = {1000, 100000, 1},
                            agent_idle_unrung = {1000, 5000, 1};

static const int64_t longest_wait_us = (int64_t)1 << 50;

static bool try_lock(struct progress *p)
{
    return !atomic_load(&p->driving) && !atomic_exchange(&p->driving, 1);
}

bool progress_is_driven(const struct progress *p)
{
    return atomic_load(&p->driving);
}

static void pause_us(int64_t us)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

/* The agent's yields are its own: what it meets on a core of this process alone is the
 * thread that is to wait next. */
static struct contention *contention_of(struct progress *p, enum doorbell_sleeper who)
{
    return &p->contention[who == DOORBELL_AGENT];
}

void progress_lock(struct progress *p)
{
    if (!p)
        return;
    struct contention *contention = contention_of(p, DOORBELL_WAITER);
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
    for (struct progress_source *s = p->sources, *next; s; s = next) {
        next = s->next;
        happened += s->poll(s);
    }
    for (struct progress_source *s = p->sources; s; s = s->next)
        alarm = s->alarm_us < alarm ? s->alarm_us : alarm;
    atomic_store(&p->alarm_us, alarm);
    if (alarm < before) { /* others may be about to sleep for longer than that */
        doorbell_wake_waiters(p->doorbell.page);
        doorbell_wake_agent(p->doorbell.page);
    }
    return happened;
}

enum { BUSY = -1 };

/* Try to drive. What happened, or BUSY if somebody else does. */
static int drive(struct progress *p)
{
    int happened = 0;
    uint32_t notifications;
    do {
        notifications = atomic_load(&p->notifications);
        if (!try_lock(p))
            return BUSY;
        happened += poll_sources(p);
        atomic_store(&p->driving, 0);
    } while (atomic_load(&p->notifications) != notifications);
    return happened;
}

static int notify(struct progress *p)
{
    atomic_fetch_add(&p->notifications, 1);
    return drive(p);
}

/* Kicks that came while the lock was held for something else have found it taken. */
void progress_unlock(struct progress *p)
{
    if (!p)
        return;
    CHECK(progress_is_driven(p));
    atomic_store(&p->driving, 0);
    drive(p);
}

void progress_notify(struct progress *p)
{
    notify(p);
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
    source->next = p->sources;
    p->sources = source;
    atomic_fetch_add(&p->off_node, source->off_node);
    progress_unlock(p);
}

void progress_remove(struct progress *p, struct progress_source *source)
{
    CHECK(source->poll);
    progress_lock(p);
    struct progress_source **at = &p->sources;
    while (*at && *at != source)
        at = &(*at)->next;
    if (*at) {
        *at = source->next;
        atomic_fetch_sub(&p->off_node, source->off_node);
    }
    progress_unlock(p);
}

const struct doorbell *progress_doorbell(const struct progress *p)
{
    CHECK(p);
    return &p->doorbell;
}

static int64_t longer_backoff(struct backoff backoff, int64_t last)
{
    if (last < backoff.first)
        return backoff.first;
    int64_t next = last + (last + backoff.growth - 1) / backoff.growth;
    return next < backoff.last ? next : backoff.last;
}

/* Something may come without a ring. */
static bool must_poll(const struct progress *p)
{
    return atomic_load(&p->unrung) || atomic_load(&p->off_node);
}

/* Drive, or have the one who does look once more: what we know of may have come after
 * it looked, and we are about to sleep. */
static int drive_or_notify(struct progress *p)
{
    int happened = drive(p);
    return happened == BUSY ? notify(p) : happened;
}

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
        drive_or_notify(p);
    if (atomic_load(&page->waiters_asleep))
        doorbell_wake_waiters(page);
    else if (atomic_load(&p->unrung) || atomic_load(&p->alarm_us) != INT64_MAX)
        doorbell_wake_agent(page);
}

/* Microseconds until somebody has to poll because of an alarm. */
static int64_t until_alarm(const struct progress *p)
{
    int64_t alarm = atomic_load(&p->alarm_us);
    if (alarm == INT64_MAX)
        return alarm;
    int64_t left = alarm - clock_us();
    return left > 0 ? left : 0;
}

/* Of one who looks for work in vain: how often since there was some, and the last
 * backoff.
 */
struct rest {
    int looks;
    int64_t backoff;
};

/* Yield, or sleep for at most limit_us. */
static void take_rest(struct progress *p, struct rest *r, uint32_t seen,
                      enum doorbell_sleeper who, int looks, struct backoff backoff,
                      int64_t limit_us)
{
    struct contention *contention = contention_of(p, who);
    bool full = contended(contention);
    if (full && r->looks < looks - LOOKS_AWOKEN)
        r->looks = looks - LOOKS_AWOKEN;
    if (r->looks++ < looks) {
        if (!full)
            contention_yield(contention);
        return;
    }
    r->backoff = longer_backoff(backoff, r->backoff);
    int64_t alarm = until_alarm(p);
    limit_us = alarm < limit_us ? alarm : limit_us;
    doorbell_sleep(p->doorbell.page, seen, who,
                   r->backoff < limit_us ? r->backoff : limit_us);
    r->looks = looks - LOOKS_AWOKEN;
    if (atomic_load(&p->doorbell.page->count) != seen)
        r->backoff = 0;
}

void progress_without_agent(struct progress *p)
{
    if (!atomic_load(&p->has_agent))
        drive(p);
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
    if (notify(p) <= 0)
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
    struct contention *contention = contention_of(p, DOORBELL_WAITER);
    for (int i = 0; i < SOON_YIELDS && !contended(contention); i++) {
        contention_yield(contention);
        if (ready(arg))
            return true;
    }
    return false;
}

static int wait_for(struct progress *p, bool (*ready)(void *), void *arg,
                    int64_t timeout_us, int looked, struct backoff rung)
{
    struct doorbell_page *page = p->doorbell.page;
    int64_t deadline =
        clock_us() + (timeout_us < longest_wait_us ? timeout_us : longest_wait_us);
    struct rest rest = {.looks = looked};
    int rc = PCOLL_OK;
    atomic_fetch_add(&page->waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(&page->count);
        int happened = drive_or_notify(p);
        if (ready(arg))
            break;
        int64_t left = deadline - clock_us();
        if (left <= 0) {
            rc = PCOLL_EAGAIN;
            break;
        }
        if (happened > 0)
            rest = (struct rest){0};
        else
            take_rest(p, &rest, seen, DOORBELL_WAITER, WAITER_LOOKS,
                      must_poll(p) ? waiter_unrung : rung, left);
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
    return ready(arg) ? PCOLL_OK : wait_for(p, ready, arg, timeout_us, 0, waiter_rung);
}

int progress_sleep(struct progress *p, bool (*ready)(void *), void *arg,
                   int64_t timeout_us)
{
    CHECK(ready);
    return ready(arg) ? PCOLL_OK
                      : wait_for(p, ready, arg, timeout_us, WAITER_LOOKS, sleeper_rung);
}

static struct backoff agent_backoff(const struct progress *p, bool waiters)
{
    bool busy = !waiters && (atomic_load(&p->rounds) || atomic_load(&p->unrung));
    if (busy)
        return must_poll(p) ? agent_busy_unrung : agent_busy_rung;
    return must_poll(p) && !waiters ? agent_idle_unrung : agent_idle_rung;
}

static void *agent_main(void *arg)
{
    struct progress *p = arg;
    struct rest rest = {0};
    while (!atomic_load(&p->stop)) {
        uint32_t seen = atomic_load(&p->doorbell.page->count);
        bool waiters = atomic_load(&p->doorbell.page->waiters);
        if (!waiters && drive_or_notify(p) > 0)
            rest = (struct rest){0};
        else if (atomic_load(&p->spins))
            sched_yield();
        else
            take_rest(p, &rest, seen, DOORBELL_AGENT, AGENT_LOOKS,
                      agent_backoff(p, waiters), INT64_MAX);
    }
    return NULL;
}

int progress_create(struct progress **out)
{
    CHECK(out);
    struct progress *p = calloc(1, sizeof *p);
    if (!p)
        return fail(PCOLL_ENOMEM, "no memory for the progress engine");
    int rc = doorbell_create(&p->doorbell);
    if (rc != PCOLL_OK) {
        free(p);
        return rc;
    }
    atomic_store(&p->alarm_us, INT64_MAX);
    *out = p;
    return PCOLL_OK;
}

int progress_start_agent(struct progress *p)
{
    CHECK(!atomic_load(&p->stop));
    if (atomic_load(&p->has_agent))
        return PCOLL_OK;
    atomic_store(&p->has_agent, true);
    if (thread_start(&p->agent, agent_main, p) == 0)
        return PCOLL_OK;
    atomic_store(&p->has_agent, false);
    return fail(PCOLL_ENOMEM, "the agent thread could not be started");
}

void progress_spin(struct progress *p, bool spins)
{
    CHECK(p);
    if (atomic_exchange(&p->spins, spins) != spins)
        doorbell_wake_agent(p->doorbell.page);
}

void progress_stop_agent(struct progress *p)
{
    CHECK(!atomic_load(&p->stop));
    if (!atomic_load(&p->has_agent))
        return;
    atomic_store(&p->stop, true);
    doorbell_wake_agent(p->doorbell.page);
    pthread_join(p->agent, NULL);
    atomic_store(&p->has_agent, false);
    atomic_store(&p->stop, false);
}

void progress_destroy(struct progress **at)
{
    CHECK(*at);
    struct progress *p = *at;
    progress_stop_agent(p);
    doorbell_destroy(&p->doorbell);
    free(p);
    *at = NULL;
}

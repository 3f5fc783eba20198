/* SPDX-License-Identifier: Apache-2.0 */
/* See progress.h, and doorbell.h for who is woken. */
#include "runtime/progress.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/error.h"
#include "base/file.h"

struct progress {
    struct doorbell doorbell;
    _Atomic uint32_t driving; /* The drive lock. */
    _Atomic uint32_t notifications;
    /* The doorbell's count before the last poll; see progress_wake_waiters. */
    _Atomic uint32_t polled;
    _Atomic int rounds;       /* In progress. */
    _Atomic int unrung;       /* Messages under way that come without a ring. */
    _Atomic int64_t alarm_us; /* The earliest of the sources'. */
    /* The agent counts its yields apart: on this core it meets the thread that will wait next. */
    struct contention contention, agent_contention;
    _Atomic uint32_t vain; /* Polls of threads that do not wait. */
    /* The usual time of an idle poll; 0: unknown. A stale or lost value costs a few polls. */
    _Atomic int64_t idle_poll_ns;
    _Atomic bool stop;
    _Atomic bool has_agent, spins;
    pthread_t agent;
    struct progress_source *sources; /* Under the drive lock. */
    _Atomic int off_node;            /* Sources with off_node. */
};

enum { PROGRESS_BUSY = -1 };

/* Polls before the first sleep, each followed by a yield of the core: many for a waiter, which is
 * about to be needed; few for an agent, and after a slow poll. */
enum { WAITER_POLLS = 60, AGENT_POLLS = 4, SLOW_POLLS = 8 };

/* Polls after a sleep: a ring can be ahead of its message, some MPIs report a message one test
 * after they move it, and the time of a poll means something only with warm caches. */
enum { AWOKEN_POLLS = 3 };

/* A poll is slow if it took more than IDLE_POLLS times as long as an idle one, and MARGIN_NS.
 * The usual time follows idle polls by a part in IDLE_WEIGHT. */
enum { IDLE_POLLS = 4, MARGIN_NS = 1500, IDLE_WEIGHT = 8 };

/* MPI moves data if two polls were slow within this time. One alone says nothing: Open MPI asks its
 * event library every 10 ms, which takes as long as moving a few KiB. */
enum { MOVING_US = 8000 };

enum { SOON_SPINS = 100, SOON_YIELDS = 20 };
enum { POLLS_A_YIELD = 64 };

/*
 * The longest sleep before the next poll, in microseconds. It starts at `first` and grows
 * to `last`, by one part in `growth` each time. The limit exists for what does not ring: messages
 * from other nodes, and the application's own MPI traffic, which moves only while a thread polls.
 */
struct backoff {
    int64_t first, last, growth;
};

/* The second one if something may come without a ring. */
static const struct backoff waiter_backoff[2] = {{1000, 4000, 1}, {20, 1000, 16}};

enum {
    AGENT_REPLACED,
    AGENT_BUSY,
    AGENT_IDLE
}; /* Replaced: other threads wait and poll. */
static const struct backoff agent_backoff[3][2] = {
    [AGENT_REPLACED] = {{100000, 100000, 1}, {5000, 5000, 1}},
    [AGENT_BUSY] = {{200, 4000, 1}, {50, 1000, 16}},
    [AGENT_IDLE] = {{1000, 100000, 1}, {1000, 5000, 1}}};

static const int64_t longest_wait_us = (int64_t)1 << 50;

/* The state of a thread that finds no work. */
struct rest {
    int polls;       /* Since something happened. */
    int64_t backoff; /* The last sleep's limit, in microseconds; 0: none yet. */
    int64_t slow_us; /* When a poll was slow last; 0: none. */
    bool moves;      /* MPI has moved data lately: sleep for short times only. */
};

/* Return whether something may come without a ring. */
static bool progress_must_poll(const struct progress *p)
{
    return atomic_load(&p->unrung) || atomic_load(&p->off_node);
}

/* The drive lock. */

static bool progress_try_lock(struct progress *p)
{
    bool taken = !atomic_load(&p->driving) && !atomic_exchange(&p->driving, 1);
    if (taken)
        lock_held(LOCK_DRIVE);
    return taken;
}

static void progress_release(struct progress *p)
{
    CHECK(progress_is_driven(p));
    lock_released(LOCK_DRIVE);
    atomic_store(&p->driving, 0);
}

bool progress_is_driven(const struct progress *p)
{
    return atomic_load(&p->driving);
}

static int progress_poll_sources(struct progress *p)
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
    if (alarm < before) { /* Others may be about to sleep for longer than that. */
        doorbell_wake_waiters(p->doorbell.page);
        doorbell_wake_agent(p->doorbell.page);
    }
    return happened;
}

/* Try to drive. Return how much has happened, or PROGRESS_BUSY if another thread drives. */
static int progress_drive(struct progress *p)
{
    int happened = 0;
    uint32_t notifications;
    do {
        notifications = atomic_load(&p->notifications);
        if (!progress_try_lock(p))
            return PROGRESS_BUSY;
        happened += progress_poll_sources(p);
        progress_release(p);
    } while (atomic_load(&p->notifications) != notifications);
    return happened;
}

int progress_notify(struct progress *p)
{
    atomic_fetch_add(&p->notifications, 1);
    return progress_drive(p);
}

/* Drive, or make the thread that drives poll once more: this one is about to sleep. */
static int progress_drive_or_notify(struct progress *p)
{
    int happened = progress_drive(p);
    return happened == PROGRESS_BUSY ? progress_notify(p) : happened;
}

void progress_lock(struct progress *p)
{
    if (!p)
        return;
    lock_waits(LOCK_DRIVE);
    for (int spins = 0; !progress_try_lock(p); spins++) {
        if (spins < WAITER_POLLS && !contention_is_high(&p->contention))
            contention_yield(&p->contention);
        else
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    CHECK(progress_is_driven(p));
}

/* Notifications that came while the lock was held for something else found it taken. */
void progress_unlock(struct progress *p)
{
    if (!p)
        return;
    progress_release(p);
    progress_drive(p);
}

void progress_without_agent(struct progress *p)
{
    if (!atomic_load(&p->has_agent))
        progress_drive(p);
}

/* Yield at times in a thread that polls in its own loop: the thread it waits for needs a core. */
static void progress_poll_in_vain(struct progress *p)
{
    if (atomic_fetch_add(&p->vain, 1) % POLLS_A_YIELD == POLLS_A_YIELD - 1)
        sched_yield();
}

void progress_poll(struct progress *p)
{
    if (progress_notify(p) <= 0)
        progress_poll_in_vain(p);
}

/* This ring must not look like a message to threads that compare the counts. In this order a thread
 * that compares in between wakes the agent in vain; in the other it could overlook a message. */
void progress_wake_waiters(struct progress *p)
{
    doorbell_wake_waiters(p->doorbell.page);
    atomic_fetch_add(&p->polled, 1);
}

void progress_unrung(struct progress *p, int change)
{
    CHECK(change == 1 || (change == -1 && atomic_load(&p->unrung) > 0));
    atomic_fetch_add(&p->unrung, change);
}

void progress_round(struct progress *p, int change)
{
    CHECK(change == 1 || (change == -1 && atomic_load(&p->rounds) > 0));
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
    progress_lock(p);
    progress_drop(p, source);
    progress_unlock(p);
}

const struct doorbell *progress_doorbell(const struct progress *p)
{
    return &p->doorbell;
}

/* A thread that finds no work yields, then sleeps, longer each time. */

/*
 * Drive like progress_drive_or_notify. Set *slow if MPI may have moved data. MPI cannot be asked
 * whether it has work for the application. An idle poll of it takes some 0.2 us and one that moves
 * data takes longer, so the time on the core tells. An error costs a few polls, or one sleep.
 */
static int progress_drive_timed(struct progress *p, bool *slow)
{
    int64_t before = clock_thread_ns();
    int happened = progress_drive_or_notify(p);
    int64_t took = clock_thread_ns() - before, idle = atomic_load(&p->idle_poll_ns);
    *slow = idle && took > IDLE_POLLS * idle + MARGIN_NS;
    if (happened == 0) { /* By a part only, lest one slow poll hides the next. */
        int64_t next = !idle || took < idle ? took : idle + (took - idle) / IDLE_WEIGHT;
        int64_t most = idle + idle / IDLE_WEIGHT + 1;
        atomic_store(&p->idle_poll_ns, !idle || next < most ? next : most);
    }
    return happened;
}

/* Yield, or sleep for at most limit_us. */
static void progress_take_rest(struct progress *p, struct rest *r, uint32_t seen,
                               enum doorbell_sleeper who, int polls,
                               const struct backoff *backoff, int64_t limit_us)
{
    struct contention *contention =
        who == DOORBELL_AGENT ? &p->agent_contention : &p->contention;
    bool full = contention_is_high(contention);
    if (full && r->polls < polls - AWOKEN_POLLS)
        r->polls = polls - AWOKEN_POLLS;
    if (r->polls++ < polls) {
        if (!full)
            contention_yield(contention);
        return;
    }
    int64_t next = r->backoff + (r->backoff + backoff->growth - 1) / backoff->growth;
    if (r->backoff < backoff->first)
        next = backoff->first;
    r->backoff = next < backoff->last ? next : backoff->last;
    r->moves = r->moves && r->backoff < backoff->last;
    int64_t alarm = atomic_load(&p->alarm_us); /* Some thread has to poll then. */
    int64_t left = alarm == INT64_MAX ? alarm : alarm - clock_us();
    limit_us = left < 0 ? 0 : left < limit_us ? left : limit_us;
    doorbell_sleep(p->doorbell.page, seen, who,
                   r->backoff < limit_us ? r->backoff : limit_us);
    r->polls = polls - AWOKEN_POLLS;
    if (atomic_load(&p->doorbell.page->count) != seen)
        r->backoff = 0;
}

/* The agent. */

static void *progress_agent_main(void *arg)
{
    struct progress *p = arg;
    struct rest rest = {0};
    while (!atomic_load(&p->stop)) {
        uint32_t seen = atomic_load(&p->doorbell.page->count);
        bool waiters = atomic_load(&p->doorbell.page->waiters);
        if (waiters) /* They poll, and wake the agent if they leave work behind. */
            rest.polls = AGENT_POLLS;
        if (!waiters && progress_drive_or_notify(p) > 0)
            rest = (struct rest){0};
        else if (atomic_load(&p->spins))
            sched_yield();
        else {
            int state = waiters ? AGENT_REPLACED : AGENT_IDLE;
            if (!waiters && (atomic_load(&p->rounds) || atomic_load(&p->unrung)))
                state = AGENT_BUSY;
            progress_take_rest(p, &rest, seen, DOORBELL_AGENT, AGENT_POLLS,
                               &agent_backoff[state][progress_must_poll(p)], INT64_MAX);
        }
    }
    return NULL;
}

int progress_create(struct progress **out)
{
    struct progress *p = calloc(1, sizeof *p);
    int rc = p ? doorbell_create(&p->doorbell)
               : fail(PCOLL_ENOMEM, "no memory for the progress engine");
    if (rc == PCOLL_OK) {
        atomic_store(&p->alarm_us, INT64_MAX);
        *out = p;
    } else
        free(p);
    return rc;
}

int progress_start_agent(struct progress *p)
{
    CHECK(!atomic_load(&p->stop));
    if (atomic_load(&p->has_agent))
        return PCOLL_OK;
    atomic_store(&p->has_agent, true);
    if (thread_start(&p->agent, progress_agent_main, p) == 0)
        return PCOLL_OK;
    atomic_store(&p->has_agent, false);
    return fail(PCOLL_ENOMEM, "the agent thread could not be started");
}

void progress_spin(struct progress *p, bool spins)
{
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
    struct progress *p = *at;
    progress_stop_agent(p);
    doorbell_destroy(&p->doorbell);
    free(p);
    *at = NULL;
}

/* Threads of the application that wait. */

bool progress_soon(struct progress *p, bool (*ready)(void *), void *arg)
{
    for (int i = 0; i < SOON_SPINS; i++) {
        if (ready(arg))
            return true;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    for (int i = 0; i < SOON_YIELDS && !contention_is_high(&p->contention); i++) {
        contention_yield(&p->contention);
        if (ready(arg))
            return true;
    }
    return false;
}

/*
 * A thread leaves a wait. Rings from now on wake the agent. For rings that came since the last
 * poll, one more poll suffices: it is cheaper than a wake-up, and often this thread is back at
 * once. The agent takes care of what comes without a ring.
 */
static void progress_hand_over(struct progress *p)
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

static int progress_wait_for(struct progress *p, bool (*ready)(void *), void *arg,
                             int64_t timeout_us, int polls)
{
    struct doorbell_page *page = p->doorbell.page;
    int64_t deadline =
        clock_us() + (timeout_us < longest_wait_us ? timeout_us : longest_wait_us);
    struct rest rest = {.polls = polls};
    int rc = PCOLL_OK;
    atomic_fetch_add(&page->waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(&page->count);
        /* Before a sleep find out whether MPI moves data, unless an alarm ends the sleep. */
        bool timed = rest.polls >= WAITER_POLLS - 1 &&
                     atomic_load(&p->alarm_us) == INT64_MAX,
             slow = false;
        int happened =
            timed ? progress_drive_timed(p, &slow) : progress_drive_or_notify(p);
        if (ready(arg))
            break;
        int64_t now = clock_us(), left = deadline - now;
        if (left <= 0) {
            rc = PCOLL_EAGAIN;
            break;
        }
        if (happened > 0)
            rest = (struct rest){0};
        else if (slow) {
            rest.moves = now - rest.slow_us < MOVING_US;
            rest = (struct rest){.polls = WAITER_POLLS - SLOW_POLLS,
                                 .backoff = rest.moves ? 0 : rest.backoff,
                                 .slow_us = now,
                                 .moves = rest.moves};
        } else
            progress_take_rest(p, &rest, seen, DOORBELL_WAITER, WAITER_POLLS,
                               &waiter_backoff[progress_must_poll(p) || rest.moves],
                               left);
    }
    progress_hand_over(p);
    if (rc == PCOLL_EAGAIN && timeout_us <= 0)
        progress_poll_in_vain(p);
    return rc;
}

int progress_wait(struct progress *p, bool (*ready)(void *), void *arg,
                  int64_t timeout_us)
{
    if (!p)
        return ready(arg) ? PCOLL_OK : PCOLL_EAGAIN;
    progress_without_agent(p);
    return ready(arg) ? PCOLL_OK : progress_wait_for(p, ready, arg, timeout_us, 0);
}

int progress_sleep(struct progress *p, bool (*ready)(void *), void *arg,
                   int64_t timeout_us)
{
    return ready(arg) ? PCOLL_OK
                      : progress_wait_for(p, ready, arg, timeout_us, WAITER_POLLS);
}

void progress_wait_or_warn(struct progress *p, uint32_t rank, bool (*ready)(void *),
                           void *arg,
                           void (*explain)(void *arg, char *text, size_t capacity))
{
    /* Python complains about values that are not numbers (_core/settings.py). */
    const char *setting = environment_get("PARTIALCOLL_STALL_WARN");
    char text[500], *end;
    double seconds = setting ? decimal_parse(setting, &end) : 10;
    if (setting && (end == setting || *end || !(seconds > 0 && seconds < 1e9)))
        seconds = 10;
    int64_t begin = clock_us(), limit = (int64_t)(1e6 * seconds);
    while (progress_wait(p, ready, arg, begin + limit - clock_us()) == PCOLL_EAGAIN) {
        explain(arg, text, sizeof text);
        fprintf(stderr, "partialcoll: rank %u: waiting for %.1f s: %s\n", rank,
                (double)(clock_us() - begin) / 1e6, text);
        limit *= 2;
    }
}

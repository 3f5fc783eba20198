/* SPDX-License-Identifier: Apache-2.0 */
/* How a thread that finds no work rests: it yields, then sleeps, longer each time. */
#include "runtime/progress_state.h"

#include "base/check.h"
#include "base/clock.h"

/* Polls after a sleep: a ring can be ahead of its message, and some MPIs move a message
 * in one test and report it in the next. The first ones also warm the caches, so that
 * the time of the last one says something. */
enum { LOOKS_AWOKEN = 3 };

/* A poll moved data if it took more than IDLE_POLLS times as long as an idle one, and
 * MARGIN_NS. The usual time follows idle polls by a part in IDLE_WEIGHT. */
enum { IDLE_POLLS = 4, MARGIN_NS = 1500, IDLE_WEIGHT = 8 };

int progress_drive_timed(struct progress *p, bool *moved)
{
    CHECK(moved);
    int64_t before = clock_thread_ns();
    int happened = progress_drive_or_notify(p);
    int64_t took = clock_thread_ns() - before, idle = atomic_load(&p->idle_poll_ns);
    *moved = idle && took > IDLE_POLLS * idle + MARGIN_NS;
    if (happened == 0) { /* a part of what is more, lest one slow poll hides the next */
        int64_t next = !idle || took < idle ? took : idle + (took - idle) / IDLE_WEIGHT;
        int64_t most = idle + idle / IDLE_WEIGHT + 1;
        atomic_store(&p->idle_poll_ns, !idle || next < most ? next : most);
    }
    return happened;
}

static int64_t longer_backoff(struct backoff backoff, int64_t last)
{
    if (last < backoff.first)
        return backoff.first;
    int64_t next = last + (last + backoff.growth - 1) / backoff.growth;
    return next < backoff.last ? next : backoff.last;
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

void progress_take_rest(struct progress *p, struct rest *r, uint32_t seen,
                        enum doorbell_sleeper who, int looks, struct backoff backoff,
                        int64_t limit_us)
{
    CHECK(backoff.first <= backoff.last);
    struct contention *contention = progress_contention(p, who);
    bool full = contended(contention);
    if (full && r->looks < looks - LOOKS_AWOKEN)
        r->looks = looks - LOOKS_AWOKEN;
    if (r->looks++ < looks) {
        if (!full)
            contention_yield(contention);
        return;
    }
    r->backoff = longer_backoff(backoff, r->backoff);
    r->moved = r->moved && r->backoff < backoff.last;
    int64_t alarm = until_alarm(p);
    limit_us = alarm < limit_us ? alarm : limit_us;
    doorbell_sleep(p->doorbell.page, seen, who,
                   r->backoff < limit_us ? r->backoff : limit_us);
    r->looks = looks - LOOKS_AWOKEN;
    if (atomic_load(&p->doorbell.page->count) != seen)
        r->backoff = 0;
}

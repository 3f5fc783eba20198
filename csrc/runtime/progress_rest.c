/* SPDX-License-Identifier: Apache-2.0 */
/* How whoever looks for work in vain rests: yields, then sleeps, for longer each time. */
#include "runtime/progress_state.h"

#include "base/check.h"
#include "base/clock.h"

/* So many looks after waking: a ring can be ahead of its message, and some MPIs move a
 * message in one test and report it in the next. */
enum { LOOKS_AWOKEN = 3 };

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
    int64_t alarm = until_alarm(p);
    limit_us = alarm < limit_us ? alarm : limit_us;
    doorbell_sleep(p->doorbell.page, seen, who,
                   r->backoff < limit_us ? r->backoff : limit_us);
    r->looks = looks - LOOKS_AWOKEN;
    if (atomic_load(&p->doorbell.page->count) != seen)
        r->backoff = 0;
}

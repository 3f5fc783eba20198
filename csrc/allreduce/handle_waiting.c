/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for the round of a call: of one handle, or of any of several. Who drives or sleeps is
 * aside meanwhile.
 */
#include "base/error.h"
#include "allreduce/handle.h"

/* A replay that is at its end completes no more rounds. */
static bool call_is_in_vain(pcoll_handle *h)
{
    return handle_has_failed(h) || handle_replay_has_ended(h);
}

static bool look_at_call(pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    if (!staging_arrived(h->endpoint->staging) && !handle_try_arrival(h))
        return handle_has_failed(h);
    bool ready = d->ops->ready(d);
    if (!ready && d->ops->help && !h->gate.stopped) {
        endpoint_help(h->endpoint);
        ready = d->ops->ready(d);
    }
    return (ready && handle_replay_is_over(h)) || call_is_in_vain(h);
}

/* Of one who stays inside, unless it is shut. */
static bool call_is_over_soon(void *arg)
{
    handle_let_recover(arg);
    return look_at_call(arg);
}

/* Of one who sleeps or drives. */
static bool call_is_over(void *arg)
{
    handle_lock(arg);
    bool over = look_at_call(arg);
    handle_unlock(arg);
    return over;
}

/* In shared memory: wants to be woken, from before its last look on. */
static void expect_wake(pcoll_handle *h, bool asleep)
{
    struct domain *d = h->endpoint->domain;
    h->gate.asleep = asleep;
    if (d->ops->sleeps)
        d->ops->sleeps(d, asleep);
}

/* In one domain the others are microseconds away: not worth a sleep, if they run. If
 * they do not, they need the cores more than we do. */
static int sleep_until_over(pcoll_handle *h, int64_t timeout_us)
{
    struct progress *p = h->base.communicator->progress;
    bool near = h->endpoint->placement.domains == 1 && h->endpoint->domain->ops->help;
    if (near && timeout_us > 0 && progress_soon(p, call_is_over_soon, h))
        return PCOLL_OK;
    expect_wake(h, true);
    handle_unlock(h);
    int rc = near ? progress_sleep(p, call_is_over, h, timeout_us)
                  : progress_wait(p, call_is_over, h, timeout_us);
    handle_lock(h);
    expect_wake(h, false);
    return rc;
}

/* The wait has ended: is the call over, or was it in vain? */
static int check_call(pcoll_handle *h)
{
    int rc = handle_check(h);
    bool over = h->endpoint->domain->ops->ready(h->endpoint->domain) &&
                handle_replay_is_over(h);
    return rc == PCOLL_OK && !over && handle_replay_has_ended(h)
               ? event_log_end_error(handle_log(h))
               : rc;
}

int handle_wait_for_call(pcoll_handle *h, int64_t timeout_us)
{
    if (!h->started)
        return fail(PCOLL_ESTATE, "not started: there is nothing to wait for");
    int rc = sleep_until_over(h, timeout_us);
    struct domain *d = h->endpoint->domain;
    if (rc != PCOLL_OK)
        return rc;
    if (d->ops->ready(d) && !d->ops->failure && !h->endpoint->staging && !handle_log(h))
        return PCOLL_OK;
    return check_call(h);
}

int pcoll_handle_wait(pcoll_handle *h, int64_t timeout_us)
{
    int rc = handle_enter_waiting(h);
    return rc == PCOLL_OK ? handle_leave(h, handle_wait_for_call(h, timeout_us)) : rc;
}

/* Several of them. */

struct any {
    pcoll_handle *const *handles;
    int32_t count, first;
};

static bool any_is_over(void *arg)
{
    struct any *any = arg;
    for (int32_t i = 0; i < any->count; i++) {
        if (!any->handles[i] || !call_is_over(any->handles[i]))
            continue;
        any->first = i;
        return true;
    }
    return false;
}

static void leave_all(pcoll_handle *const *handles, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            handle_leave(handles[i], PCOLL_OK);
}

/* Enter all of them, or none. */
static int enter_all(pcoll_handle *const *handles, int32_t count, struct progress **p)
{
    *p = NULL;
    for (int32_t i = 0; i < count; i++) {
        if (!handles[i])
            continue;
        int rc = handle_enter_waiting(handles[i]);
        if (rc != PCOLL_OK) {
            leave_all(handles, i);
            return rc;
        }
        *p = handles[i]->base.communicator->progress;
        if (!handles[i]->started) {
            leave_all(handles, i + 1);
            return fail(PCOLL_ESTATE, "handle %d is not started", i);
        }
    }
    return *p ? PCOLL_OK : fail(PCOLL_EEMPTY, "no handle to wait for");
}

static void lock_all(pcoll_handle *const *handles, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            handle_lock(handles[i]);
}

static void unlock_all(pcoll_handle *const *handles, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            handle_unlock(handles[i]);
}

static void expect_wakes(pcoll_handle *const *handles, int32_t count, bool asleep)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            expect_wake(handles[i], asleep);
}

int pcoll_wait_any(pcoll_handle *const *handles, int32_t count, int64_t timeout_us,
                   int32_t *index)
{
    struct progress *p;
    int rc = fail_if_null(handles, index) ?: enter_all(handles, count, &p);
    if (rc != PCOLL_OK)
        return rc;
    struct any any = {.handles = handles, .count = count};
    expect_wakes(handles, count, true);
    unlock_all(handles, count);
    rc = progress_wait(p, any_is_over, &any, timeout_us);
    lock_all(handles, count);
    expect_wakes(handles, count, false);
    *index = any.first;
    if (rc == PCOLL_OK)
        rc = check_call(handles[any.first]);
    leave_all(handles, count);
    return rc;
}

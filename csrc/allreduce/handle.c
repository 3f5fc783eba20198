/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle: what the application calls (include/partialcoll.h), on top of the domain
 * for deposits and results, of the progress engine for waiting.
 *
 * Threads: one at a time on a handle. Everything that the agent shares with the application is behind the domain's
 * mutex, the drive lock or an atomic.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "allreduce/handle.h"
#include "allreduce/replay.h"

struct member handle_member(pcoll_handle *h)
{
    struct member m;
    h->endpoint->domain->ops->snapshot(h->endpoint->domain, &m);
    return m;
}

static struct event_log *log_of(const pcoll_handle *h)
{
    return h->endpoint->event_log;
}

/* PCOLL_OK, or what has failed for good: messages, or an op in another process. */
static int check(pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    int rc = communicator_check(h->base.communicator);
    if (rc == PCOLL_OK && h->gate.orphan)
        rc = outage_error(h->base.communicator->outage);
    if (rc == PCOLL_OK && d->ops->failure && (rc = d->ops->failure(d)) != PCOLL_OK)
        return fail(rc, "a reduction has failed on one of the ranks of this node");
    return rc == PCOLL_OK ? staging_failure(h->endpoint->staging) : rc;
}

static bool has_failed(const pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    return atomic_load(&h->base.communicator->failure) || h->gate.orphan ||
           (d->ops->failure && d->ops->failure(d) != PCOLL_OK) ||
           staging_failure(h->endpoint->staging) != PCOLL_OK;
}

/* The call is over: the application may start the next one. */
static int finish(pcoll_handle *h)
{
    int rc = h->endpoint->domain->ops->change(h->endpoint->domain, member_finish);
    h->started = h->started && rc != PCOLL_OK;
    if (rc == PCOLL_OK && log_of(h))
        event_log_note_call(log_of(h), handle_member(h).delivered);
    return rc;
}

/* A replay: whoever comes too early is to try again. */

static bool may_happen(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return replay_admits_event(log_of(h), &m) ||
           atomic_load(&h->base.communicator->failure);
}

static bool may_read(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return replay_admits_read(log_of(h), &m) ||
           atomic_load(&h->base.communicator->failure);
}

static int await(pcoll_handle *h, bool (*ready)(void *))
{
    enum { PATIENCE_US = 100000 };
    int rc = progress_wait(h->base.communicator->progress, ready, h, PATIENCE_US);
    return rc == PCOLL_OK ? communicator_check(h->base.communicator) : rc;
}

/* A deposit, join or leave: PCOLL_EAGAIN while it is not this rank's turn. */
static int await_turn(pcoll_handle *h)
{
    return log_of(h) ? await(h, may_happen) : PCOLL_OK;
}

/* A read up to round `last`: the same; as if no more than *horizon rounds were
 * complete. */
static int await_read(pcoll_handle *h, uint64_t last, uint64_t *horizon)
{
    if (!log_of(h))
        return PCOLL_OK;
    struct member m = handle_member(h);
    return replay_holds_read(log_of(h), &m, last, horizon) ? await(h, may_read)
                                                           : PCOLL_OK;
}

static void note_read(pcoll_handle *h)
{
    if (log_of(h) && handle_member(h).deliver == PCOLL_DELIVER_ALL)
        event_log_note_read(log_of(h), handle_member(h).seen);
}

static bool replay_is_over(pcoll_handle *h)
{
    if (!log_of(h))
        return true;
    struct member m = handle_member(h);
    return replay_call_over(log_of(h), &m) ||
           atomic_load(&h->base.communicator->failure);
}

static int check_device(const pcoll_handle *h)
{
    return h->endpoint->staging
               ? PCOLL_OK
               : fail(PCOLL_ESTATE, "the handle was made for buffers of the host");
}

/* Rounds. */

static void see_to_deposit(pcoll_handle *h, enum deposit_outcome outcome)
{
    if (h->gate.stopped) /* it is looked at when all goes on */
        return;
    endpoint_deposited(h->endpoint, outcome);
    if (outcome != DEPOSIT_ARRIVED && h->endpoint->drives)
        progress_without_agent(h->base.communicator->progress);
}

int pcoll_handle_start(pcoll_handle *h, const void *const *send)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = await_turn(h)) != PCOLL_OK)
        return handle_leave(h, rc);
    struct domain *d = h->endpoint->domain;
    enum deposit_outcome outcome;
    rc = check(h);
    if (rc == PCOLL_OK && !send && !d->ops->send_slot(d))
        rc = fail(PCOLL_EINVAL, "send: expected buffers, got NULL");
    if (rc == PCOLL_OK && h->gate.filling)
        handle_filled(h);
    if (rc == PCOLL_OK)
        rc = d->ops->deposit(d, send, &outcome);
    if (rc != PCOLL_OK)
        return handle_leave(h, rc);
    h->started = true;
    see_to_deposit(h, outcome);
    return handle_leave(h, PCOLL_OK);
}

/* What the deposit would say, which comes later. */
static int may_begin(pcoll_handle *h)
{
    struct member m = handle_member(h);
    m.started = m.started || h->started;
    return member_begin(&m);
}

/* Buffers of a device: the call counts from here on, its deposit is made when they have
 * been copied. A replay has to know when that is. */
int pcoll_handle_start_device(pcoll_handle *h, const pcoll_place *send, uint64_t stream)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = check_device(h)) == PCOLL_OK)
        rc = check(h);
    if (rc == PCOLL_OK)
        rc = may_begin(h);
    if (rc == PCOLL_OK)
        rc = staging_begin(h->endpoint->staging, h->endpoint->domain, send, stream);
    if (rc == PCOLL_OK) {
        h->started = true;
        communicator_notify(h->base.communicator, &h->endpoint->base);
    }
    return handle_leave(h, rc);
}

int pcoll_handle_fetch_device(pcoll_handle *h, const pcoll_place *recv, uint64_t stream)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = check_device(h)) == PCOLL_OK)
        rc = staging_fetch(h->endpoint->staging, h->endpoint->domain, recv, stream);
    return handle_leave(h, rc);
}

/* Has the deposit of this call been made? */
static bool try_arrival(pcoll_handle *h)
{
    struct endpoint *v = h->endpoint;
    bool made;
    enum deposit_outcome outcome;
    bool arrived = staging_try(v->staging, v->domain, &made, &outcome);
    if (made)
        see_to_deposit(h, outcome);
    return arrived;
}

static bool has_arrived(void *arg)
{
    pcoll_handle *h = arg;
    return try_arrival(h) || has_failed(h);
}

int pcoll_handle_arrive(pcoll_handle *h, int64_t timeout_us)
{
    int rc = user_object_enter(&h->base); /* also while it is being freed */
    if (rc != PCOLL_OK)
        return rc;
    handle_lock(h);
    if (!staging_arrived(h->endpoint->staging))
        rc = progress_wait(h->base.communicator->progress, has_arrived, h, timeout_us);
    return handle_leave(h, rc == PCOLL_OK ? staging_failure(h->endpoint->staging) : rc);
}

static bool look_at_call(pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    if (!staging_arrived(h->endpoint->staging) && !try_arrival(h))
        return has_failed(h);
    bool ready = d->ops->ready(d);
    if (!ready && d->ops->help && !h->gate.stopped) {
        endpoint_help(h->endpoint);
        ready = d->ops->ready(d);
    }
    return (ready && replay_is_over(h)) || has_failed(h);
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

static bool is_over_soon(pcoll_handle *h)
{
    handle_unlock(h);
    bool soon = progress_soon(h->base.communicator->progress, call_is_over, h);
    handle_lock(h);
    return soon;
}

/* In one domain the others are microseconds away: not worth a sleep, if they run. If
 * they do not, they need the cores more than we do. */
static int sleep_until_over(pcoll_handle *h, int64_t timeout_us)
{
    struct progress *p = h->base.communicator->progress;
    bool near = h->endpoint->placement.domains == 1 && h->endpoint->domain->ops->help;
    if (near && timeout_us > 0 && is_over_soon(h))
        return PCOLL_OK;
    expect_wake(h, true);
    handle_unlock(h);
    int rc = near ? progress_sleep(p, call_is_over, h, timeout_us)
                  : progress_wait(p, call_is_over, h, timeout_us);
    handle_lock(h);
    expect_wake(h, false);
    return rc;
}

static int wait_for_call(pcoll_handle *h, int64_t timeout_us)
{
    if (!h->started)
        return fail(PCOLL_ESTATE, "not started: there is nothing to wait for");
    int rc = sleep_until_over(h, timeout_us);
    struct domain *d = h->endpoint->domain;
    if (rc != PCOLL_OK ||
        (d->ops->ready(d) && !d->ops->failure && !h->endpoint->staging))
        return rc;
    return check(h);
}

static int deliver(pcoll_handle *h, uint64_t last, void *const *recv,
                   pcoll_round *round, uint64_t *masks)
{
    struct domain *d = h->endpoint->domain;
    bool moved = false;
    uint64_t horizon = UINT64_MAX;
    int rc = await_read(h, last, &horizon);
    if (rc == PCOLL_OK)
        rc = d->ops->deliver(d, last, horizon, recv, round, masks, &moved);
    if (rc == PCOLL_OK)
        note_read(h);
    if ((moved || log_of(h)) && !h->gate.stopped)
        endpoint_poll(h->endpoint, false);
    return rc;
}

int pcoll_handle_wait(pcoll_handle *h, int64_t timeout_us)
{
    int rc = handle_enter_waiting(h);
    return rc == PCOLL_OK ? handle_leave(h, wait_for_call(h, timeout_us)) : rc;
}

int pcoll_handle_take(pcoll_handle *h, int64_t timeout_us, void *const *recv,
                      pcoll_round *round, uint64_t *masks)
{
    int rc = handle_enter_waiting(h);
    if (rc != PCOLL_OK)
        return rc;
    rc = wait_for_call(h, timeout_us);
    if (rc == PCOLL_OK)
        rc = deliver(h, UINT64_MAX, recv, round, masks);
    if (rc == PCOLL_OK)
        rc = finish(h);
    return handle_leave(h, rc);
}

int pcoll_handle_measure(pcoll_handle *h, const void *const *send, void *const *recv,
                         uint64_t rounds, double *microseconds, pcoll_round *round,
                         uint64_t *masks)
{
    int64_t begin = clock_ns();
    int rc =
        rounds ? PCOLL_OK : fail(PCOLL_EINVAL, "rounds: expected at least 1, got 0");
    for (uint64_t i = 0; i < rounds && rc == PCOLL_OK; i++) {
        do
            rc = pcoll_handle_start(h, send);
        while (rc == PCOLL_EAGAIN);
        while (rc == PCOLL_OK &&
               (rc = pcoll_handle_take(h, 1000000, recv, round, masks)) == PCOLL_EAGAIN)
            rc = PCOLL_OK;
    }
    if (rc == PCOLL_OK)
        *microseconds = (double)(clock_ns() - begin) / 1e3 / (double)rounds;
    return rc;
}

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
    int rc = enter_all(handles, count, &p);
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
        rc = check(handles[any.first]);
    leave_all(handles, count);
    return rc;
}

int pcoll_handle_deliver(pcoll_handle *h, uint64_t last, void *const *recv,
                         pcoll_round *round, uint64_t *masks)
{
    int rc = handle_enter(h);
    return rc == PCOLL_OK ? handle_leave(h, deliver(h, last, recv, round, masks)) : rc;
}

int pcoll_handle_rounds(pcoll_handle *h, uint64_t *complete, uint64_t *delivered)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m = handle_member(h);
    *complete = replay_complete(log_of(h), &m);
    *delivered = m.delivered;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_finish(pcoll_handle *h)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    return handle_leave(h, finish(h));
}

int pcoll_handle_send_slot(pcoll_handle *h, int32_t buffer, void **address)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct endpoint *v = h->gate.filling ? h->gate.filling : h->endpoint;
    char *slot = v->domain->ops->send_slot(v->domain);
    const struct payload *p = &v->shape.payload;
    if (!slot)
        rc = fail(PCOLL_ESTATE, "the handle was made with send buffers of its user");
    else if (buffer < 0 || buffer >= p->parts)
        rc = fail(PCOLL_EINVAL, "buffer: expected 0 to %d, got %d", p->parts - 1,
                  buffer);
    else
        *address = slot + p->part[buffer].offset;
    return handle_leave(h, rc);
}

static int change(pcoll_handle *h, int (*step)(struct member *))
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    rc = await_turn(h);
    if (rc == PCOLL_OK)
        rc = check(h);
    if (rc == PCOLL_OK)
        rc = h->endpoint->domain->ops->change(h->endpoint->domain, step);
    h->started = h->started || (rc == PCOLL_OK && step == member_join);
    if (rc == PCOLL_OK && !h->gate.stopped)
        endpoint_poll(h->endpoint, false);
    return handle_leave(h, rc);
}

int pcoll_handle_join(pcoll_handle *h)
{
    return change(h, member_join);
}

int pcoll_handle_leave(pcoll_handle *h)
{
    return change(h, member_leave);
}

int pcoll_handle_progress(pcoll_handle *h)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    progress_poll(h->base.communicator->progress);
    return handle_leave(h, communicator_check(h->base.communicator));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle: what the application calls (include/partialcoll.h), on top of the domain for
 * deposits and results, of the progress engine for waiting. Here are rounds and what they
 * give; what is handed in and waiting come first.
 *
 * Threads: one at a time on a handle. Everything that the agent shares with the application
 * is behind the domain's mutex, the drive lock or an atomic.
 */
#include "allreduce/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "runtime/recovery.h"
#include "transport/mpi/mpi_transport.h"
#include "allreduce/control.h"
#include "allreduce/endpoint.h"
#include "allreduce/event_log.h"

/* A handle as it is: the state of this rank, and whether it has failed. */

struct member handle_member(pcoll_handle *h)
{
    struct member m;
    h->endpoint->domain->ops->snapshot(h->endpoint->domain, &m);
    return m;
}

int handle_check(pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    int rc = communicator_check(h->base.communicator);
    if (rc == PCOLL_OK && h->base.orphan)
        rc = outage_error(h->base.communicator->outage);
    if (rc == PCOLL_OK && d->ops->failure && (rc = d->ops->failure(d)) != PCOLL_OK)
        return fail(rc, "a reduction has failed on one of the ranks of this node");
    return rc == PCOLL_OK ? staging_failure(h->endpoint->staging) : rc;
}

bool handle_has_failed(const pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    return atomic_load(&h->base.communicator->failure) || h->base.orphan ||
           (d->ops->failure && d->ops->failure(d) != PCOLL_OK) ||
           staging_failure(h->endpoint->staging) != PCOLL_OK;
}

/* A handle that replays an event log (replay.h): whoever comes too early is to try again. One that
 * has none does all of this at once. */

static bool handle_may_happen(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return replay_admits_event(handle_log(h), &m) ||
           atomic_load(&h->base.communicator->failure);
}

static bool handle_may_read(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return replay_admits_read(handle_log(h), &m) ||
           event_log_has_ended(handle_log(h), m.complete) ||
           atomic_load(&h->base.communicator->failure);
}

bool handle_replay_has_ended(pcoll_handle *h)
{
    return handle_log(h) &&
           event_log_has_ended(handle_log(h), handle_member(h).complete);
}

static int handle_await_replay(pcoll_handle *h, bool (*ready)(void *))
{
    enum { PATIENCE_US = 100000 };
    int rc = progress_wait(h->base.communicator->progress, ready, h, PATIENCE_US);
    return rc == PCOLL_OK ? communicator_check(h->base.communicator) : rc;
}

int handle_await_turn(pcoll_handle *h)
{
    return handle_log(h) ? handle_await_replay(h, handle_may_happen) : PCOLL_OK;
}

int handle_await_read(pcoll_handle *h, uint64_t last, uint64_t *horizon)
{
    if (!handle_log(h))
        return PCOLL_OK;
    struct member m = handle_member(h);
    if (!replay_holds_read(handle_log(h), &m, last, horizon))
        return PCOLL_OK;
    int rc = handle_await_replay(h, handle_may_read);
    m = handle_member(h);
    return rc == PCOLL_OK && !replay_admits_read(handle_log(h), &m)
               ? event_log_end_error(handle_log(h))
               : rc;
}

void handle_note_read(pcoll_handle *h)
{
    if (handle_log(h) && handle_member(h).deliver == PCOLL_DELIVER_ALL)
        event_log_note(handle_log(h), LOGGED_READ, handle_member(h).seen);
}

bool handle_replay_is_over(pcoll_handle *h)
{
    if (!handle_log(h))
        return true;
    struct member m = handle_member(h);
    return replay_call_over(handle_log(h), &m) ||
           atomic_load(&h->base.communicator->failure);
}

/* Endpoints that others have followed, until nobody writes to them any more; see handle.h. */

void handle_end_endpoint(void *endpoint)
{
    struct endpoint *v = endpoint;
    endpoint_destroy(&v);
}

void handle_bury(pcoll_handle *h, struct endpoint *v)
{
    CHECK(h->continues && v);
    recovery_bury(h->base.communicator, handle_end_endpoint, v, false);
}

void handle_filled(pcoll_handle *h)
{
    struct endpoint *from = h->gate.filling;
    CHECK(from && from != h->endpoint);
    memcpy(h->endpoint->domain->ops->send_slot(h->endpoint->domain),
           from->domain->ops->send_slot(from->domain),
           payload_data_bytes(&from->shape.payload));
    h->gate.filling = NULL;
    handle_bury(h, from);
}

void handle_begin_recoverable(pcoll_handle *h)
{
    h->continues = true;
    gate_init(&h->gate.gate, LOCK_HANDLE);
}

void handle_end_recoverable(pcoll_handle *h)
{
    if (h->continues)
        gate_destroy(&h->gate.gate);
}

/*
 * What a call of a handle hands in: buffers of the host at once, those of a device when they
 * have been copied (staging.h). And the copy of a result to a device, which is the same
 * the other way round.
 */

static int handle_check_device(const pcoll_handle *h)
{
    return h->endpoint->staging
               ? PCOLL_OK
               : fail(PCOLL_ESTATE, "the handle was made for buffers of the host");
}

static void handle_report_deposit(pcoll_handle *h, enum deposit_outcome outcome)
{
    if (h->gate.stopped) /* it is looked at when all goes on */
        return;
    endpoint_deposited(h->endpoint, outcome);
    if (outcome != DEPOSIT_ARRIVED && h->endpoint->drives)
        progress_without_agent(h->base.communicator->progress);
}

/* What the deposit would say, which comes later. */
static int handle_check_begin(pcoll_handle *h)
{
    struct member m = handle_member(h);
    m.started = m.started || h->started;
    return member_begin(&m);
}

int handle_check_buffers(const pcoll_handle *h, const char *name,
                         const void *const *buffers)
{
    const struct payload *p = &h->endpoint->shape.payload;
    for (int i = 0; buffers && i < p->parts; i++)
        if (!buffers[i] && p->part[i].count)
            return fail(PCOLL_EINVAL, "%s[%d]: expected an address, got NULL", name, i);
    return PCOLL_OK;
}

int pcoll_handle_start(pcoll_handle *h, const void *const *send)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = handle_await_turn(h)) != PCOLL_OK)
        return handle_leave(h, rc);
    struct domain *d = h->endpoint->domain;
    enum deposit_outcome outcome;
    rc = handle_check(h);
    if (rc == PCOLL_OK && !staging_arrived(h->endpoint->staging))
        rc = handle_check_begin(h); /* which it may not: a deposit is under way */
    if (rc == PCOLL_OK && !send && !d->ops->send_slot(d))
        rc = fail_null("send", 0);
    if (rc == PCOLL_OK)
        rc = handle_check_buffers(h, "send", send);
    if (rc == PCOLL_OK && h->gate.filling)
        handle_filled(h);
    if (rc == PCOLL_OK)
        rc = d->ops->deposit(d, send, &outcome);
    if (rc != PCOLL_OK)
        return handle_leave(h, rc);
    h->started = true;
    handle_report_deposit(h, outcome);
    return handle_leave(h, PCOLL_OK);
}

/* Buffers of a device: the call counts from here on, its deposit is made when they have
 * been copied. A replay has to know when that is. */
int pcoll_handle_start_device(pcoll_handle *h, const pcoll_place *send, uint64_t stream)
{
    int rc = fail_if_null(send) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = handle_check_device(h)) == PCOLL_OK)
        rc = handle_check(h);
    if (rc == PCOLL_OK)
        rc = handle_check_begin(h);
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
    int rc = fail_if_null(recv) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = handle_check_device(h)) == PCOLL_OK)
        rc = staging_fetch(h->endpoint->staging, h->endpoint->domain, recv, stream);
    return handle_leave(h, rc);
}

bool handle_try_arrival(pcoll_handle *h)
{
    struct endpoint *v = h->endpoint;
    bool made;
    enum deposit_outcome outcome;
    bool arrived = staging_try(v->staging, v->domain, &made, &outcome);
    if (made)
        handle_report_deposit(h, outcome);
    return arrived;
}

static bool handle_has_arrived(void *arg)
{
    pcoll_handle *h = arg;
    return handle_try_arrival(h) || handle_has_failed(h);
}

int pcoll_handle_arrive(pcoll_handle *h, int64_t timeout_us)
{
    int rc = fail_if_null_as("handle", h)
                 ?: user_object_enter(&h->base); /* also while it is being freed */
    if (rc != PCOLL_OK)
        return rc;
    handle_lock(h);
    if (!staging_arrived(h->endpoint->staging))
        rc = progress_wait(h->base.communicator->progress, handle_has_arrived, h,
                           timeout_us);
    struct staging *s = h->endpoint->staging;
    if (rc == PCOLL_OK)
        rc = staging_failure(s);
    if (rc == PCOLL_OK && staging_arrived(s) && !staging_landed(s))
        rc = PCOLL_EAGAIN;
    return handle_leave(h, rc);
}

int pcoll_handle_send_slot(pcoll_handle *h, int32_t buffer, void **address)
{
    int rc = fail_if_null(address) ?: handle_enter(h);
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

/*
 * Waiting for the round of a call: of one handle, or of any of several. Who drives or sleeps is
 * aside meanwhile.
 */

/* A replay that is at its end completes no more rounds. */
static bool handle_call_is_in_vain(pcoll_handle *h)
{
    return handle_has_failed(h) || handle_replay_has_ended(h);
}

static bool handle_poll_call(pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    if (!staging_arrived(h->endpoint->staging) && !handle_try_arrival(h))
        return handle_has_failed(h);
    bool ready = d->ops->ready(d);
    if (!ready && d->ops->help && !h->gate.stopped) {
        endpoint_help(h->endpoint);
        ready = d->ops->ready(d);
    }
    return (ready && handle_replay_is_over(h)) || handle_call_is_in_vain(h);
}

/* Of one who stays inside, unless it is shut. */
static bool handle_call_is_over_inside(void *arg)
{
    handle_let_recover(arg);
    return handle_poll_call(arg);
}

/* Of one who sleeps or drives. */
static bool handle_call_is_over(void *arg)
{
    handle_lock(arg);
    bool over = handle_poll_call(arg);
    handle_unlock(arg);
    return over;
}

/* In shared memory: wants to be woken, from before its last look on. */
static void handle_expect_wake(pcoll_handle *h, bool asleep)
{
    struct domain *d = h->endpoint->domain;
    h->gate.asleep = asleep;
    if (d->ops->sleeps)
        d->ops->sleeps(d, asleep);
}

/* In one domain the others are microseconds away: not worth a sleep, if they run. If
 * they do not, they need the cores more than we do. */
static int handle_sleep(pcoll_handle *h, int64_t timeout_us)
{
    struct progress *p = h->base.communicator->progress;
    bool near = h->endpoint->placement.domains == 1 && h->endpoint->domain->ops->help;
    if (near && timeout_us > 0 && progress_soon(p, handle_call_is_over_inside, h))
        return PCOLL_OK;
    handle_expect_wake(h, true);
    handle_unlock(h);
    int rc = near ? progress_sleep(p, handle_call_is_over, h, timeout_us)
                  : progress_wait(p, handle_call_is_over, h, timeout_us);
    handle_lock(h);
    handle_expect_wake(h, false);
    return rc;
}

/* The wait has ended: is the call over, or was it in vain? */
static int handle_check_call(pcoll_handle *h)
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
    int rc = handle_sleep(h, timeout_us);
    struct domain *d = h->endpoint->domain;
    if (rc != PCOLL_OK)
        return rc;
    if (d->ops->ready(d) && !d->ops->failure && !h->endpoint->staging && !handle_log(h))
        return PCOLL_OK;
    return handle_check_call(h);
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

static bool handle_any_is_over(void *arg)
{
    struct any *any = arg;
    for (int32_t i = 0; i < any->count; i++) {
        if (!any->handles[i] || !handle_call_is_over(any->handles[i]))
            continue;
        any->first = i;
        return true;
    }
    return false;
}

static void handle_leave_all(pcoll_handle *const *handles, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            handle_leave(handles[i], PCOLL_OK);
}

/* Enter all of them, or none. */
static int handle_enter_all(pcoll_handle *const *handles, int32_t count,
                            struct progress **p)
{
    *p = NULL;
    for (int32_t i = 0; i < count; i++) {
        if (!handles[i])
            continue;
        int rc = handle_enter_waiting(handles[i]);
        if (rc != PCOLL_OK) {
            handle_leave_all(handles, i);
            return rc;
        }
        *p = handles[i]->base.communicator->progress;
        if (!handles[i]->started) {
            handle_leave_all(handles, i + 1);
            return fail(PCOLL_ESTATE, "handle %d is not started", i);
        }
    }
    return *p ? PCOLL_OK : fail(PCOLL_EEMPTY, "no handle to wait for");
}

static void handle_lock_all(pcoll_handle *const *handles, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            handle_lock(handles[i]);
}

static void handle_unlock_all(pcoll_handle *const *handles, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            handle_unlock(handles[i]);
}

static void handle_expect_wakes(pcoll_handle *const *handles, int32_t count,
                                bool asleep)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            handle_expect_wake(handles[i], asleep);
}

int pcoll_wait_any(pcoll_handle *const *handles, int32_t count, int64_t timeout_us,
                   int32_t *index)
{
    struct progress *p;
    int rc = fail_if_null(handles, index) ?: handle_enter_all(handles, count, &p);
    if (rc != PCOLL_OK)
        return rc;
    struct any any = {.handles = handles, .count = count};
    handle_expect_wakes(handles, count, true);
    handle_unlock_all(handles, count);
    rc = progress_wait(p, handle_any_is_over, &any, timeout_us);
    handle_lock_all(handles, count);
    handle_expect_wakes(handles, count, false);
    *index = any.first;
    if (rc == PCOLL_OK)
        rc = handle_check_call(handles[any.first]);
    handle_leave_all(handles, count);
    return rc;
}

/* The call is over: the application may start the next one. */
static int handle_finish(pcoll_handle *h)
{
    int rc = h->endpoint->domain->ops->change(h->endpoint->domain, member_finish);
    h->started = h->started && rc != PCOLL_OK;
    if (rc == PCOLL_OK && handle_log(h))
        event_log_note(handle_log(h), LOGGED_CALL, handle_member(h).delivered);
    return rc;
}

static int handle_deliver(pcoll_handle *h, uint64_t last, void *const *recv,
                          pcoll_round *round, uint64_t *masks)
{
    struct domain *d = h->endpoint->domain;
    bool moved = false;
    uint64_t horizon = UINT64_MAX;
    int rc = handle_check_buffers(h, "recv", (const void *const *)recv);
    if (rc == PCOLL_OK)
        rc = handle_await_read(h, last, &horizon);
    if (rc == PCOLL_OK)
        rc = d->ops->deliver(d, last, horizon, recv, round, masks, &moved);
    if (rc == PCOLL_OK)
        handle_note_read(h);
    if ((moved || handle_log(h)) && !h->gate.stopped)
        endpoint_poll(h->endpoint, false);
    return rc;
}

int pcoll_handle_take(pcoll_handle *h, int64_t timeout_us, void *const *recv,
                      pcoll_round *round, uint64_t *masks)
{
    int rc = fail_if_null(round) ?: handle_enter_waiting(h);
    if (rc != PCOLL_OK)
        return rc;
    rc = handle_wait_for_call(h, timeout_us);
    if (rc == PCOLL_OK)
        rc = handle_deliver(h, UINT64_MAX, recv, round, masks);
    if (rc == PCOLL_OK)
        rc = handle_finish(h);
    return handle_leave(h, rc);
}

int pcoll_handle_measure(pcoll_handle *h, const void *const *send, void *const *recv,
                         uint64_t rounds, double *microseconds, pcoll_round *round,
                         uint64_t *masks)
{
    int64_t begin = clock_ns();
    int rc = fail_if_null(microseconds, round)
                 ?: (rounds ? PCOLL_OK
                            : fail(PCOLL_EINVAL, "rounds: expected at least 1, got 0"));
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

int pcoll_handle_deliver(pcoll_handle *h, uint64_t last, void *const *recv,
                         pcoll_round *round, uint64_t *masks)
{
    int rc = fail_if_null(round) ?: handle_enter(h);
    return rc == PCOLL_OK ? handle_leave(h, handle_deliver(h, last, recv, round, masks))
                          : rc;
}

int pcoll_handle_rounds(pcoll_handle *h, uint64_t *complete, uint64_t *delivered)
{
    int rc = fail_if_null(complete, delivered) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m = handle_member(h);
    *complete = replay_complete(handle_log(h), &m);
    *delivered = m.delivered;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_finish(pcoll_handle *h)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    return handle_leave(h, handle_finish(h));
}

static int handle_change(pcoll_handle *h, int (*step)(struct member *))
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    rc = handle_await_turn(h);
    if (rc == PCOLL_OK)
        rc = handle_check(h);
    if (rc == PCOLL_OK && !staging_arrived(h->endpoint->staging))
        rc = fail(PCOLL_ESTATE, "wait for the round of the last start first");
    if (rc == PCOLL_OK)
        rc = h->endpoint->domain->ops->change(h->endpoint->domain, step);
    h->started = h->started || (rc == PCOLL_OK && step == member_join);
    if (rc == PCOLL_OK && !h->gate.stopped)
        endpoint_poll(h->endpoint, false);
    return handle_leave(h, rc);
}

int pcoll_handle_join(pcoll_handle *h)
{
    return handle_change(h, member_join);
}

int pcoll_handle_leave(pcoll_handle *h)
{
    return handle_change(h, member_leave);
}

int pcoll_handle_progress(pcoll_handle *h)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    progress_poll(h->base.communicator->progress);
    return handle_leave(h, communicator_check(h->base.communicator));
}

/* Looking at a handle: what it is, what it has done, whom it waits for. */

int pcoll_handle_stats(pcoll_handle *h, pcoll_stats *stats)
{
    int rc = fail_if_null(stats) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m;
    h->endpoint->domain->ops->snapshot(h->endpoint->domain, &m);
    *stats = m.stats;
    progress_lock(h->base.communicator->progress);
    stats->activations_dropped = h->endpoint->engine.dropped;
    stats->activations_early = h->endpoint->engine.early;
    progress_unlock(h->base.communicator->progress);
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_algorithm(pcoll_handle *h, int32_t *algorithm)
{
    int rc = fail_if_null(algorithm) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    *algorithm = (int32_t)h->endpoint->data.plan.algorithm;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_failed(pcoll_handle *h, uint64_t *set)
{
    int rc = fail_if_null(set) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    const struct round_shape *shape = &h->endpoint->shape;
    bitset_clear(set, bitset_words(shape->ranks));
    for (size_t i = 0; shape->failed && i < bitset_words(shape->ranks); i++)
        set[i] = shape->failed[i];
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_outages(pcoll_handle *h, uint32_t *count, int64_t *began,
                         int64_t *ended)
{
    int rc = fail_if_null(count, began, ended) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    *count = 0;
    *began = *ended = 0;
    if (h->continues)
        *count = outage_times(h->base.communicator->outage, began, ended);
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_comm(pcoll_handle *h, void *comm)
{
    int rc =
        fail_if_null_as("handle, comm", h, comm)
            ?: user_object_enter_open(&h->base); /* not inside: recovery needs it */
    if (rc != PCOLL_OK)
        return rc;
    struct outage *outage = h->base.communicator->outage;
    outage_enter(outage);
    const void *given = recovery_comm(h->base.communicator);
    if (given)
        memcpy(comm, given, pcoll_sizeof_comm());
    outage_leave(outage);
    return user_object_leave(&h->base, given ? PCOLL_OK : PCOLL_EEMPTY);
}

int pcoll_handle_domain(pcoll_handle *h, int32_t *domain, uint32_t *domains,
                        uint32_t *members)
{
    int rc = fail_if_null(domain, domains, members) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    *members = (uint32_t)h->endpoint->domain->members;
    *domains = h->endpoint->placement.domains;
    *domain =
        *domains < h->endpoint->placement.ranks ? PCOLL_DOMAIN_NODE : PCOLL_DOMAIN_RANK;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_result(pcoll_handle *h, int32_t buffer, const void **address)
{
    int rc = fail_if_null(address) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m = handle_member(h);
    struct domain *d = h->endpoint->domain;
    const struct payload *p = &h->endpoint->shape.payload;
    if (buffer < 0 || buffer >= p->parts)
        rc = fail(PCOLL_EINVAL, "buffer: expected 0 to %d, got %d", p->parts - 1,
                  buffer);
    else if (m.deliver != PCOLL_DELIVER_ONE || !m.delivered)
        rc = fail(PCOLL_ESTATE, m.delivered ? "results stay where they are with "
                                              "deliver=\"one\" only"
                                            : "no result has been delivered yet");
    else
        *address = (const char *)message_payload(d->shape,
                                                 d->ops->result(d, m.delivered - 1)) +
                   p->part[buffer].offset;
    return handle_leave(h, rc);
}

int pcoll_handle_schedule(pcoll_handle *h, const char *format, char **text)
{
    int rc = fail_if_null(format, text) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if (!strcmp(format, "text"))
        *text = sched_text(h->endpoint->sched);
    else if (!strcmp(format, "dot"))
        *text = sched_dot(h->endpoint->sched);
    else
        return handle_leave(
            h, fail(PCOLL_EINVAL, "format: expected \"text\" or \"dot\", got \"%.50s\"",
                    format));
    return handle_leave(h,
                        *text ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a text"));
}

int pcoll_handle_goal(pcoll_handle *h, double ns_per_byte, char **text)
{
    int rc = fail_if_null(text) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if (!(ns_per_byte >= 0 && ns_per_byte <= PCOLL_LONGEST_TIME))
        return handle_leave(h,
                            fail(PCOLL_EINVAL, "ns_per_byte: expected 0 to %g, got %g",
                                 PCOLL_LONGEST_TIME, ns_per_byte));
    *text = endpoint_goal(h->endpoint, ns_per_byte);
    return handle_leave(h,
                        *text ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a text"));
}

void pcoll_text_free(char *text)
{
    free(text);
}

int pcoll_handle_missing(pcoll_handle *h, int64_t patience_us, char *text,
                         uint64_t capacity)
{
    int rc = fail_if_null_as("handle, text", h, text) ?: user_object_enter(&h->base);
    if (rc != PCOLL_OK)
        return rc;
    handle_lock(h);
    staging_hold(h->endpoint->staging);
    if (h->gate.stopped) {
        snprintf(text, capacity, "ranks have died, and the others are about to go on");
        return handle_leave(h, PCOLL_OK);
    }
    return handle_leave(h, stall_report_run(h->endpoint, patience_us, text, capacity));
}

/*
 * Another op for a handle, between two rounds: for callers whose ops and datatypes come
 * and go with each call.
 *
 * Why that needs no lock: whoever drives, reduces for a round only between this rank's
 * arrival at it and its end here, if the round waits for every rank. Both are marked
 * under the domain's mutex, by which the driver of the last round has let go of the
 * reduction before we see that it is over, and the driver of the next one sees ours.
 */

static int handle_check_user_buffer(const struct payload *p, int32_t buffer)
{
    if (buffer < 0 || buffer >= p->parts)
        return fail(PCOLL_EINVAL, "buffer: expected 0 to %d, got %d", p->parts - 1,
                    buffer);
    if (!p->part[buffer].user)
        return fail(PCOLL_ESTATE,
                    "buffer %d: the handle was not made with an MPI op or "
                    "datatype for it",
                    buffer);
    return PCOLL_OK;
}

/* Is no round under way here, and can none begin? */
static int handle_check_between_rounds(pcoll_handle *h)
{
    const pcoll_policy *policy = &h->endpoint->policy;
    struct member m;
    if (policy->kind != PCOLL_FULL || policy->deadline > 0)
        return fail(PCOLL_ESTATE,
                    "quorum: expected a handle whose rounds wait for all ranks, or a "
                    "late contribution could be reduced by another op");
    h->endpoint->domain->ops->snapshot(h->endpoint->domain, &m);
    if (m.started || m.left || m.frozen > m.complete ||
        m.contribution.pending != NO_SLOT)
        return fail(PCOLL_ESTATE, "the op can be changed between two rounds only: wait "
                                  "for the one that is under way");
    return PCOLL_OK;
}

int pcoll_handle_set_reduction(pcoll_handle *h, int32_t buffer, const void *mpi_type,
                               const void *mpi_op)
{
    int rc = fail_if_null(mpi_type, mpi_op) ?: handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct payload *p = &h->endpoint->shape.payload;
    rc = handle_check_user_buffer(p, buffer);
    if (rc == PCOLL_OK)
        rc = handle_check_between_rounds(h);
    if (rc == PCOLL_OK)
        rc = mpi_reduction_set(p->part[buffer].user, mpi_type, mpi_op, buffer);
    return handle_leave(h, rc);
}

/* The end of a handle: freed by its user, or by MPI_Finalize (user_object.h). */

static int handle_close_endpoint(struct user_object *o)
{
    CHECK(((pcoll_handle *)o)->endpoint);
    return endpoint_close(((pcoll_handle *)o)->endpoint);
}

static void handle_dispose(struct user_object *o, bool healthy)
{
    pcoll_handle *h = (pcoll_handle *)o;
    if (h->gate.filling)
        handle_bury(h, h->gate.filling);
    if (h->base.orphan)
        handle_bury(h, h->endpoint);
    else if (healthy)
        endpoint_destroy(&h->endpoint);
    h->gate.filling = NULL;
    h->endpoint = NULL;
}

static void handle_explain(struct user_object *o, char *text, size_t capacity)
{
    stall_report_unfreed(((pcoll_handle *)o)->endpoint, 1000000, text, capacity);
}

const struct user_object_kind handle_kind = {
    .name = "the handle",
    .plural = "handles",
    .close = handle_close_endpoint,
    .dispose = handle_dispose,
    .explain = handle_explain,
    .recoverable = &handle_recoverable,
};

static void handle_free_shell(struct user_object *o)
{
    handle_end_recoverable((pcoll_handle *)o);
    free(o);
}

void handle_retire(pcoll_handle *h)
{
    user_object_retire(&h->base, handle_free_shell);
}

int pcoll_handle_free_begin(pcoll_handle *h)
{
    return h ? user_object_close(&h->base) : PCOLL_OK;
}

int pcoll_handle_free(pcoll_handle **at, int64_t timeout_us)
{
    pcoll_handle *h = at ? *at : NULL;
    bool over = true;
    int rc = h ? user_object_end(&h->base, timeout_us, &over) : PCOLL_OK;
    if (over && h) {
        handle_free_shell(&h->base);
        *at = NULL;
    }
    return rc;
}

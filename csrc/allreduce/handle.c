/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a handle. Deposits and results go through the domain, waiting through the progress
 * engine; see handle.h. */
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
#include "allreduce/event_log.h"

/* State. */

struct member handle_member(pcoll_handle *h)
{
    struct member m;
    node_snapshot(h->endpoint->domain, &m);
    return m;
}

/* Return PCOLL_OK, or the permanent failure of the handle that is not its communicator's: of a
 * reduction on this node, or of a copy. */
static int handle_check(pcoll_handle *h)
{
    struct endpoint *endpoint = h->endpoint;
    if (h->base.incomplete)
        return outage_error(h->base.communicator->outage);
    int rc = node_failure(endpoint->domain);
    if (rc != PCOLL_OK)
        return fail(rc, "a reduction has failed on one of the ranks of this node");
    return endpoint->staging ? staging_failure(endpoint->staging) : PCOLL_OK;
}

/* Return whether the handle or its communicator has failed, without setting a message. */
static bool handle_has_failed(const pcoll_handle *h)
{
    struct endpoint *endpoint = h->endpoint;
    return atomic_load(&h->base.communicator->failure) || h->base.incomplete ||
           node_failure(endpoint->domain) != PCOLL_OK ||
           (endpoint->staging && staging_failure(endpoint->staging) != PCOLL_OK);
}

/* Return whether the deposit of the last start still waits for its copy from a device. */
static bool handle_is_copying(const pcoll_handle *h)
{
    return h->endpoint->staging && !staging_arrived(h->endpoint->staging);
}

/* Replay: call these only if the handle has an event log. */

static bool handle_may_happen(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return event_log_admits_event(h->endpoint->event_log, &m) ||
           atomic_load(&h->base.communicator->failure);
}

static bool handle_may_read(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = handle_member(h);
    return event_log_admits_read(h->endpoint->event_log, &m) ||
           event_log_has_ended(h->endpoint->event_log, m.complete) ||
           atomic_load(&h->base.communicator->failure);
}

/* Wait for a while; PCOLL_EAGAIN: call again. */
static int handle_await_replay(pcoll_handle *h, bool (*ready)(void *))
{
    enum { PATIENCE_US = 100000 };
    int rc = progress_wait(h->base.communicator->progress, ready, h, PATIENCE_US);
    return rc == PCOLL_OK ? communicator_check(h->base.communicator) : rc;
}

/* Wait until a read up to round `last` may happen, as if no more than *horizon rounds were
 * complete. */
static int handle_await_read(pcoll_handle *h, uint64_t last, uint64_t *horizon)
{
    struct event_log *log = h->endpoint->event_log;
    struct member m = handle_member(h);
    if (!event_log_holds_read(log, &m, last, horizon))
        return PCOLL_OK;
    int rc = handle_await_replay(h, handle_may_read);
    m = handle_member(h);
    return rc == PCOLL_OK && !event_log_admits_read(log, &m) ? event_log_end_error(log)
                                                             : rc;
}

/* Return whether the replay of an incomplete record is at its end: no more rounds follow. */
static bool handle_replay_has_ended(pcoll_handle *h)
{
    return event_log_has_ended(h->endpoint->event_log, handle_member(h).complete);
}

/* Return whether the outstanding call may end, as far as the replay is concerned. */
static bool handle_replay_ends_call(pcoll_handle *h)
{
    struct member m = handle_member(h);
    return event_log_ends_call(h->endpoint->event_log, &m) ||
           atomic_load(&h->base.communicator->failure);
}

/* Starting a call. Buffers of the host are deposited at once, buffers of a device when they
 * have been copied (staging.h). */

static int handle_check_buffer(const struct payload *p, int32_t buffer)
{
    return buffer >= 0 && buffer < p->parts
               ? PCOLL_OK
               : fail(PCOLL_EINVAL, "buffer: expected 0 to %d, got %d", p->parts - 1,
                      buffer);
}

/* Check that no buffer with elements is NULL. `buffers` itself may be NULL. */
static int handle_check_buffers(const pcoll_handle *h, const char *name,
                                const void *const *buffers)
{
    const struct payload *p = &h->endpoint->shape.payload;
    for (int i = 0; buffers && i < p->parts; i++)
        if (!buffers[i] && p->part[i].count)
            return fail(PCOLL_EINVAL, "%s[%d]: expected an address, got NULL", name, i);
    return PCOLL_OK;
}

/* Check early what the deposit will check. */
static int handle_check_begin(pcoll_handle *h)
{
    struct member m = handle_member(h);
    m.started = m.started || h->started;
    return member_begin(&m);
}

/* Notify the driver of a deposit. During a recovery no driver is notified; all
 * endpoints are polled when it ends. */
static void handle_report_deposit(pcoll_handle *h, enum deposit_outcome outcome)
{
    if (h->gate.stopped)
        return;
    endpoint_deposited(h->endpoint, outcome);
    if (outcome != DEPOSIT_ARRIVED && h->endpoint->drives)
        progress_without_agent(h->base.communicator->progress);
}

/* Make the deposit of a call on device buffers, if its copy is complete. Return whether the
 * deposit has been made, now or before. */
static bool handle_try_arrival(pcoll_handle *h)
{
    bool made;
    enum deposit_outcome outcome;
    bool arrived =
        staging_try(h->endpoint->staging, h->endpoint->domain, &made, &outcome);
    if (made)
        handle_report_deposit(h, outcome);
    return arrived;
}

/* Release the lock of the event log, and count the events of the step. */
static void handle_leave_log(pcoll_handle *h)
{
    event_log_leave(h->endpoint->event_log, handle_member(h).events);
}

int pcoll_handle_start(pcoll_handle *h, const void *const *send)
{
    HANDLE_ENTER(h);
    struct event_log *log = h->endpoint->event_log;
    struct domain *d = h->endpoint->domain;
    enum deposit_outcome outcome;
    int rc = log ? handle_await_replay(h, handle_may_happen) : PCOLL_OK;
    rc = rc ?: handle_check(h);
    if (rc == PCOLL_OK && handle_is_copying(h))
        rc = handle_check_begin(h); /* fails: a deposit is under way */
    if (rc == PCOLL_OK && !send && !node_send_slot(d))
        rc = fail_null("send", 0);
    rc = rc ?: handle_check_buffers(h, "send", send);
    if (rc != PCOLL_OK)
        return handle_leave(h, rc);
    if (h->gate.filling)
        handle_end_filling(h);
    if (log)
        event_log_enter(log);
    rc = d->ops->deposit(d, send, &outcome);
    if (log)
        handle_leave_log(h);
    if (rc == PCOLL_OK) {
        h->started = true;
        handle_report_deposit(h, outcome);
    }
    return handle_leave(h, rc);
}

static int handle_check_device(const pcoll_handle *h)
{
    return h->endpoint->staging
               ? PCOLL_OK
               : fail(PCOLL_ESTATE, "the handle was made for buffers of the host");
}

/* The call counts as started from here on. It waits for no replay: handles with device buffers
 * are neither recorded nor replayed. */
int pcoll_handle_start_device(pcoll_handle *h, const pcoll_place *send, uint64_t stream)
{
    HANDLE_ENTER(h, send);
    struct endpoint *endpoint = h->endpoint;
    int rc = handle_check_device(h)
                 ?: handle_check(h)
                 ?: handle_check_begin(h)
                 ?: staging_begin(endpoint->staging, endpoint->domain, send, stream);
    if (rc == PCOLL_OK) {
        h->started = true;
        communicator_notify(h->base.communicator, &endpoint->base);
    }
    return handle_leave(h, rc);
}

int pcoll_handle_fetch_device(pcoll_handle *h, const pcoll_place *recv, uint64_t stream)
{
    HANDLE_ENTER(h, recv);
    struct endpoint *endpoint = h->endpoint;
    return handle_leave(
        h, handle_check_device(h)
               ?: staging_fetch(endpoint->staging, endpoint->domain, recv, stream));
}

static bool handle_has_arrived(void *arg)
{
    pcoll_handle *h = arg;
    return handle_try_arrival(h) || handle_has_failed(h);
}

/* This call is also allowed while the handle is being freed. */
int pcoll_handle_arrive(pcoll_handle *h, int64_t timeout_us)
{
    int rc = handle_enter(h, 0);
    if (rc != PCOLL_OK)
        return rc;
    if (handle_is_copying(h))
        rc = progress_wait(h->base.communicator->progress, handle_has_arrived, h,
                           timeout_us);
    struct staging *s = h->endpoint->staging;
    if (rc == PCOLL_OK && s)
        rc = staging_failure(s);
    if (rc == PCOLL_OK && s && staging_arrived(s) && !staging_landed(s))
        rc = PCOLL_EAGAIN;
    return handle_leave(h, rc);
}

int pcoll_handle_send_slot(pcoll_handle *h, int32_t buffer, void **address)
{
    HANDLE_ENTER(h, address);
    struct endpoint *endpoint = h->gate.filling ? h->gate.filling : h->endpoint;
    char *slot = node_send_slot(endpoint->domain);
    const struct payload *p = &endpoint->shape.payload;
    int rc =
        slot ? handle_check_buffer(p, buffer)
             : fail(PCOLL_ESTATE, "the handle was made with send buffers of its user");
    if (rc == PCOLL_OK)
        *address = slot + p->part[buffer].offset;
    return handle_leave(h, rc);
}

/* This call is also allowed after a failure. */
int pcoll_handle_pending(pcoll_handle *h, void *const *buffers)
{
    int rc = fail_if_null(buffers) ?: handle_enter(h, HANDLE_ALONE);
    return rc ?: handle_leave(h, node_pending(h->endpoint->domain, buffers));
}

/* Change the state of this rank: join or leave. */
static int handle_change(pcoll_handle *h, int (*step)(struct member *))
{
    struct event_log *log = h->endpoint->event_log;
    struct domain *d = h->endpoint->domain;
    int rc = log ? handle_await_replay(h, handle_may_happen) : PCOLL_OK;
    rc = rc ?: handle_check(h);
    if (rc == PCOLL_OK && h->endpoint->shape.described)
        rc = fail(PCOLL_ESTATE,
                  "every rank takes part in every round of a handle that was "
                  "made with options.described");
    if (rc == PCOLL_OK && handle_is_copying(h))
        rc = fail(PCOLL_ESTATE, "wait for the round of the last start first");
    if (rc != PCOLL_OK)
        return rc;
    if (log)
        event_log_enter(log);
    rc = d->ops->change(d, step);
    if (log)
        handle_leave_log(h);
    if (rc != PCOLL_OK)
        return rc;
    h->started = h->started || step == member_join;
    if (!h->gate.stopped)
        endpoint_poll(h->endpoint, false);
    return PCOLL_OK;
}

int pcoll_handle_join(pcoll_handle *h)
{
    HANDLE_ENTER(h);
    return handle_leave(h, handle_change(h, member_join));
}

int pcoll_handle_leave(pcoll_handle *h)
{
    HANDLE_ENTER(h);
    return handle_leave(h, handle_change(h, member_leave));
}

/* Waiting for the round of a call, of one handle or of any of several. A thread that drives or
 * sleeps is outside the gate meanwhile. */

/* Return whether the call is complete, or can never be: the handle has failed, or a replay has
 * ended. Help with the round. */
static bool handle_poll_call(pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    bool replays = h->endpoint->event_log;
    if (handle_is_copying(h) && !handle_try_arrival(h))
        return handle_has_failed(h);
    bool ready = d->ops->ready(d);
    if (!ready && d->members > 1 && !h->gate.stopped) {
        endpoint_help(h->endpoint);
        ready = d->ops->ready(d);
    }
    return (ready && (!replays || handle_replay_ends_call(h))) ||
           handle_has_failed(h) || (replays && handle_replay_has_ended(h));
}

/* Predicate for a thread inside the gate. Leave and enter again if a recovery waits. */
static bool handle_call_is_over_inside(void *arg)
{
    pcoll_handle *h = arg;
    if (h->continues && gate_is_closed(&h->gate.gate)) {
        handle_unlock(h);
        handle_lock(h);
    }
    return handle_poll_call(h);
}

/* For a thread outside the gate. */
static bool handle_call_is_over(void *arg)
{
    handle_lock(arg);
    bool over = handle_poll_call(arg);
    handle_unlock(arg);
    return over;
}

/* Ask to be woken before the last poll, then leave the gate; and the other way round. */
static void handle_set_asleep(pcoll_handle *h, bool asleep)
{
    if (!asleep)
        handle_lock(h);
    struct domain *d = h->endpoint->domain;
    h->gate.asleep = asleep;
    node_sleeps(d, asleep);
    if (asleep)
        handle_unlock(h);
}

/* The wait has ended: return PCOLL_OK if the call is complete, else why it can never be. */
static int handle_check_call(pcoll_handle *h)
{
    struct domain *d = h->endpoint->domain;
    int rc = communicator_check(h->base.communicator) ?: handle_check(h);
    if (rc == PCOLL_OK && h->endpoint->event_log &&
        !(d->ops->ready(d) && handle_replay_ends_call(h)) && handle_replay_has_ended(h))
        rc = event_log_end_error(h->endpoint->event_log);
    return rc;
}

/* In one domain the other ranks need microseconds if they have cores: poll first. If they have
 * none, sleep, so that they get this one. */
static int handle_wait_for_call(pcoll_handle *h, int64_t timeout_us)
{
    struct progress *p = h->base.communicator->progress;
    bool near = h->endpoint->placement.domains == 1 && h->endpoint->domain->members > 1;
    if (!h->started)
        return fail(PCOLL_ESTATE, "not started: there is nothing to wait for");
    if (!near || timeout_us <= 0 || !progress_soon(p, handle_call_is_over_inside, h)) {
        handle_set_asleep(h, true);
        int rc = near ? progress_sleep(p, handle_call_is_over, h, timeout_us)
                      : progress_wait(p, handle_call_is_over, h, timeout_us);
        handle_set_asleep(h, false);
        if (rc != PCOLL_OK)
            return rc;
    }
    struct domain *d = h->endpoint->domain; /* A recovery may have replaced it. */
    if (d->members == 1 && !h->endpoint->staging && !h->endpoint->event_log &&
        d->ops->ready(d))
        return PCOLL_OK;
    return handle_check_call(h);
}

int pcoll_handle_wait(pcoll_handle *h, int64_t timeout_us)
{
    int rc = handle_enter(h, HANDLE_OPEN);
    return rc ?: handle_leave(h, handle_wait_for_call(h, timeout_us));
}

struct handle_any {
    pcoll_handle *const *handles;
    int32_t count, first;
};

static bool handle_any_is_over(void *arg)
{
    struct handle_any *any = arg;
    for (int32_t i = 0; i < any->count; i++) {
        if (!any->handles[i] || !handle_call_is_over(any->handles[i]))
            continue;
        any->first = i;
        return true;
    }
    return false;
}

static void handle_set_all_asleep(pcoll_handle *const *handles, int32_t count,
                                  bool asleep)
{
    for (int32_t i = 0; i < count; i++)
        if (handles[i])
            handle_set_asleep(handles[i], asleep);
}

/* Enter every handle before waiting for any. */
int pcoll_wait_any(pcoll_handle *const *handles, int32_t count, int64_t timeout_us,
                   int32_t *index)
{
    struct handle_any any = {.handles = handles, .count = count};
    struct progress *p = NULL;
    int32_t entered = 0;
    int rc = fail_if_null(handles, index);
    for (; rc == PCOLL_OK && entered < count; entered++) {
        pcoll_handle *h = handles[entered];
        if (!h)
            continue;
        if ((rc = handle_enter(h, HANDLE_OPEN)) != PCOLL_OK)
            break;
        p = h->base.communicator->progress;
        if (!h->started)
            rc = fail(PCOLL_ESTATE, "handle %d is not started", entered);
    }
    if (rc == PCOLL_OK && !p)
        rc = fail(PCOLL_EEMPTY, "no handle to wait for");
    if (rc == PCOLL_OK) {
        handle_set_all_asleep(handles, count, true);
        rc = progress_wait(p, handle_any_is_over, &any, timeout_us);
        handle_set_all_asleep(handles, count, false);
        *index = any.first;
        rc = rc ?: handle_check_call(handles[any.first]);
    }
    for (int32_t i = 0; i < entered; i++)
        if (handles[i])
            handle_leave(handles[i], rc);
    return rc;
}

/* Results. */

static int handle_deliver(pcoll_handle *h, uint64_t last, void *const *recv,
                          pcoll_round *round, uint64_t *masks)
{
    struct domain *d = h->endpoint->domain;
    struct event_log *log = h->endpoint->event_log;
    bool moved = false;
    uint64_t horizon = UINT64_MAX;
    int rc = handle_check_buffers(h, "recv", (const void *const *)recv);
    if (rc == PCOLL_OK && log)
        rc = handle_await_read(h, last, &horizon);
    if (rc == PCOLL_OK) {
        if (log)
            event_log_enter(log);
        rc = d->ops->deliver(d, last, horizon, recv, round, masks, &moved);
        if (log)
            handle_leave_log(h);
    }
    if (rc == PCOLL_OK && round->differ)
        rc = fail(PCOLL_EMISMATCH, "the ranks differ in what they call in round %llu",
                  (unsigned long long)round->index);
    if (rc == PCOLL_OK && log && handle_member(h).deliver == PCOLL_DELIVER_ALL)
        event_log_note(log, LOGGED_READ, handle_member(h).seen);
    if ((moved || log) && !h->gate.stopped)
        endpoint_poll(h->endpoint, false);
    return rc;
}

/* The call is complete: the application may start the next one. */
static int handle_finish(pcoll_handle *h)
{
    struct endpoint *endpoint = h->endpoint;
    int rc = endpoint->domain->ops->change(endpoint->domain, member_finish);
    if (rc != PCOLL_OK)
        return rc;
    h->started = false;
    if (endpoint->event_log)
        event_log_note(endpoint->event_log, LOGGED_CALL, handle_member(h).delivered);
    return PCOLL_OK;
}

int pcoll_handle_take(pcoll_handle *h, int64_t timeout_us, void *const *recv,
                      pcoll_round *round, uint64_t *masks)
{
    int rc = fail_if_null(round) ?: handle_enter(h, HANDLE_OPEN);
    if (rc != PCOLL_OK)
        return rc;
    rc = handle_wait_for_call(h, timeout_us)
             ?: handle_deliver(h, UINT64_MAX, recv, round, masks);
    if (rc == PCOLL_OK)
        rc = handle_finish(h);
    else if (rc == PCOLL_EMISMATCH) /* The call is over; keep the message. */
        handle_finish(h);
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
    HANDLE_ENTER(h, round);
    return handle_leave(h, handle_deliver(h, last, recv, round, masks));
}

int pcoll_handle_finish(pcoll_handle *h)
{
    HANDLE_ENTER(h);
    return handle_leave(h, handle_finish(h));
}

int pcoll_handle_progress(pcoll_handle *h)
{
    HANDLE_ENTER(h);
    progress_poll(h->base.communicator->progress);
    return handle_leave(h, communicator_check(h->base.communicator));
}

/* Queries. */

int pcoll_handle_rounds(pcoll_handle *h, uint64_t *complete, uint64_t *delivered)
{
    HANDLE_ENTER(h, complete, delivered);
    struct member m = handle_member(h);
    *complete = event_log_visible_rounds(h->endpoint->event_log, &m);
    *delivered = m.delivered;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_stats(pcoll_handle *h, pcoll_stats *stats)
{
    HANDLE_ENTER(h, stats);
    *stats = handle_member(h).stats;
    progress_lock(h->base.communicator->progress);
    stats->activations_dropped = h->endpoint->engine.dropped;
    stats->activations_early = h->endpoint->engine.early;
    progress_unlock(h->base.communicator->progress);
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_algorithm(pcoll_handle *h, int32_t *algorithm)
{
    HANDLE_ENTER(h, algorithm);
    *algorithm = (int32_t)h->endpoint->data.plan.algorithm;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_failed(pcoll_handle *h, uint64_t *set)
{
    HANDLE_ENTER(h, set);
    const struct round_shape *shape = &h->endpoint->shape;
    size_t words = bitset_words(shape->ranks);
    bitset_clear(set, words);
    if (shape->failed)
        memcpy(set, shape->failed, words * sizeof *set);
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_outages(pcoll_handle *h, uint32_t *count, int64_t *began,
                         int64_t *ended)
{
    HANDLE_ENTER(h, count, began, ended);
    *count = 0;
    *began = *ended = 0;
    if (h->continues)
        *count = outage_times(h->base.communicator->outage, began, ended);
    return handle_leave(h, PCOLL_OK);
}

/* Stay outside the handle's gate: a recovery, for whose end this call waits, has to close it. */
int pcoll_handle_comm(pcoll_handle *h, void *comm)
{
    int rc =
        fail_if_null_as("handle, comm", h, comm) ?: user_object_enter_open(&h->base);
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
    HANDLE_ENTER(h, domain, domains, members);
    const struct placement *p = &h->endpoint->placement;
    *members = (uint32_t)h->endpoint->domain->members;
    *domains = p->domains;
    *domain = p->domains < p->ranks ? PCOLL_DOMAIN_NODE : PCOLL_DOMAIN_RANK;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_result(pcoll_handle *h, int32_t buffer, const void **address)
{
    HANDLE_ENTER(h, address);
    struct member m = handle_member(h);
    struct domain *d = h->endpoint->domain;
    const struct payload *p = &d->shape->payload;
    int rc = handle_check_buffer(p, buffer);
    if (rc == PCOLL_OK && (m.deliver != PCOLL_DELIVER_ONE || !m.delivered))
        rc = fail(PCOLL_ESTATE, m.delivered ? "results stay where they are with "
                                              "deliver=\"one\" only"
                                            : "no result has been delivered yet");
    if (rc == PCOLL_OK)
        *address = (const char *)message_payload(node_result(d, m.delivered - 1)) +
                   p->part[buffer].offset;
    return handle_leave(h, rc);
}

int pcoll_handle_schedule(pcoll_handle *h, const char *format, char **text)
{
    HANDLE_ENTER(h, format, text);
    return handle_leave(h, sched_print(h->endpoint->sched, format, text));
}

int pcoll_handle_goal(pcoll_handle *h, double ns_per_byte, char **text)
{
    HANDLE_ENTER(h, text);
    return handle_leave(h, endpoint_goal(h->endpoint, ns_per_byte, text));
}

void pcoll_text_free(char *text)
{
    free(text);
}

int pcoll_handle_missing(pcoll_handle *h, int64_t patience_us, char *text,
                         uint64_t capacity)
{
    int rc = fail_if_null(text) ?: handle_enter(h, HANDLE_ALONE);
    if (rc != PCOLL_OK)
        return rc;
    if (h->gate.stopped)
        snprintf(text, capacity, "ranks have died, and the others are about to go on");
    else
        rc = stall_report(h->endpoint, false, patience_us, text, capacity);
    return handle_leave(h, rc);
}

/*
 * Another op, form or intent for a handle, between two rounds: for callers whose ops, datatypes
 * and sizes come and go with each call.
 *
 * No lock is needed. If every round waits for every rank, the driver reduces for a round only
 * after this rank's arrival at it and before the end of the round here. The domain orders both:
 * the driver of the last round has released the reduction before this thread sees that the round
 * is over, and the driver of the next round sees what this thread wrote before its arrival.
 */

/* Check that no round is under way here, and that none can begin. */
static int handle_check_between_rounds(pcoll_handle *h)
{
    const pcoll_policy *policy = &h->endpoint->options.policy;
    if (policy->kind != PCOLL_FULL || policy->deadline > 0)
        return fail(PCOLL_ESTATE,
                    "quorum: expected a handle whose rounds wait for all ranks, or a "
                    "late contribution could be reduced by another op");
    struct member m = handle_member(h);
    if (m.started || m.left || m.frozen > m.complete ||
        m.contribution.pending != NO_SLOT)
        return fail(PCOLL_ESTATE,
                    "what a handle reduces can be changed between two rounds "
                    "only: wait for the one that is under way");
    return PCOLL_OK;
}

int pcoll_handle_describe(pcoll_handle *h, const pcoll_buffer *form, uint64_t intent)
{
    HANDLE_ENTER(h);
    struct round_shape *shape = &h->endpoint->shape;
    int rc = handle_check_between_rounds(h);
    if (rc == PCOLL_OK && form && !shape->described)
        rc = fail(PCOLL_ESTATE, "form: the handle was made without options.described");
    if (rc == PCOLL_OK && form)
        rc = round_shape_describe(shape, form);
    if (rc == PCOLL_OK)
        round_shape_call(shape, intent);
    return handle_leave(h, rc);
}

int pcoll_handle_set_reduction(pcoll_handle *h, int32_t buffer, const void *mpi_type,
                               const void *mpi_op)
{
    HANDLE_ENTER(h, mpi_type, mpi_op);
    struct payload *p = &h->endpoint->shape.payload;
    int rc = handle_check_buffer(p, buffer);
    if (rc == PCOLL_OK && !p->part[buffer].user)
        rc = fail(PCOLL_ESTATE,
                  "buffer %d: the handle was not made with an MPI op or datatype for "
                  "it",
                  buffer);
    if (rc == PCOLL_OK)
        rc = handle_check_between_rounds(h);
    if (rc == PCOLL_OK)
        rc = mpi_reduction_set(p->part[buffer].user, mpi_type, mpi_op, buffer);
    return handle_leave(h, rc);
}

/* The end: by the user, or by MPI_Finalize (user_object.h). */

static int handle_close_endpoint(struct user_object *o)
{
    CHECK(((pcoll_handle *)o)->endpoint);
    return endpoint_close(((pcoll_handle *)o)->endpoint);
}

static void handle_dispose(struct user_object *o, bool healthy)
{
    pcoll_handle *h = (pcoll_handle *)o;
    handle_retire_endpoint(o->communicator, h->gate.filling, false);
    if (h->base.incomplete)
        handle_retire_endpoint(o->communicator, h->endpoint, false);
    else if (healthy)
        endpoint_destroy(&h->endpoint);
    h->gate.filling = NULL;
    h->endpoint = NULL;
}

static void handle_explain(struct user_object *o, char *text, size_t capacity)
{
    stall_report(((pcoll_handle *)o)->endpoint, true, 1000000, text, capacity);
}

const struct user_object_kind handle_kind = {
    .name = "the handle",
    .plural = "handles",
    .close = handle_close_endpoint,
    .dispose = handle_dispose,
    .explain = handle_explain,
    .recoverable = &handle_recoverable,
};

pcoll_handle *handle_new(bool continues)
{
    pcoll_handle *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    user_object_init(&h->base, &handle_kind);
    h->continues = continues;
    if (continues)
        gate_init(&h->gate.gate, LOCK_HANDLE);
    return h;
}

void handle_free_shell(struct user_object *o)
{
    pcoll_handle *h = (pcoll_handle *)o;
    if (h->continues)
        gate_destroy(&h->gate.gate);
    free(h);
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
    bool over;
    if (!h)
        return PCOLL_OK;
    int rc = user_object_end(&h->base, timeout_us, &over);
    if (over) {
        handle_free_shell(&h->base);
        *at = NULL;
    }
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle: what the application calls (include/partialcoll.h), on top of the domain
 * for deposits and results, of the progress engine for waiting.
 *
 * Threads: one at a time on a handle. `busy` turns a second one away; it does not make
 * it wait. Everything that the agent shares with the application is behind the domain's
 * mutex, the drive lock or an atomic.
 */
#include <stdlib.h>
#include <string.h>

#include "../base/clock.h"
#include "../base/error.h"
#include "goal.h"
#include "handle.h"
#include "survey.h"

/* Entering and leaving a call. */

static int enter_any(pcoll_handle *h)
{
    if (runtime_forked())
        return fail(
            PCOLL_ESTATE,
            "this process was forked from the one that made the handle: handles "
            "work in that one only");
    if (atomic_exchange(&h->busy, true))
        return fail(PCOLL_ESTATE, "the handle is in use by another thread");
    if (!h->vertex) {
        atomic_store(&h->busy, false);
        return fail(PCOLL_ESTATE, "the handle has been freed");
    }
    return PCOLL_OK;
}

int handle_enter(pcoll_handle *h)
{
    int rc = enter_any(h);
    if (rc != PCOLL_OK || atomic_load(&h->vertex->closing) == OPEN)
        return rc;
    atomic_store(&h->busy, false);
    return fail(PCOLL_ESTATE, "the handle is being freed");
}

int handle_leave(pcoll_handle *h, int rc)
{
    atomic_store(&h->busy, false);
    return rc;
}

/* A replay: each event of this rank has its place in the order of the record. */

static struct member state_of(pcoll_handle *h)
{
    struct member m;
    h->vertex->domain->ops->snapshot(h->vertex->domain, 0, &m);
    return m;
}

static bool may_happen(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = state_of(h);
    return arrivals_admit_event(h->vertex->arrivals, m.events + 1, m.frozen) ||
           atomic_load(&h->context->failure);
}

static int await(pcoll_handle *h, bool (*ready)(void *))
{
    enum { PATIENCE_US = 100000 };
    int rc = progress_wait(h->context->progress, ready, h, PATIENCE_US);
    return rc == PCOLL_OK ? context_check(h->context) : rc;
}

/* PCOLL_EAGAIN while it is not this rank's turn. */
static int await_turn(pcoll_handle *h)
{
    return h->vertex->arrivals ? await(h, may_happen) : PCOLL_OK;
}

/* Rounds complete that the outstanding call is to know of, and no more. */
static uint64_t complete_for(pcoll_handle *h, const struct member *m)
{
    uint64_t most = arrivals_delivered(h->vertex->arrivals, m->calls);
    return m->complete < most ? m->complete : most;
}

/* deliver="all": are as many rounds complete as there were at this read? */
static bool may_read(void *arg)
{
    pcoll_handle *h = arg;
    struct member m = state_of(h);
    uint64_t least = arrivals_complete(h->vertex->arrivals, m.stats.delivered);
    return least == UINT64_MAX || m.complete >= least ||
           atomic_load(&h->context->failure);
}

static bool is_as_recorded(pcoll_handle *h)
{
    struct member m = state_of(h);
    uint64_t least = arrivals_delivered(h->vertex->arrivals, m.calls);
    bool one = m.deliver == PCOLL_DELIVER_ONE;
    return (one || may_read(h)) &&
           (m.joining || least == UINT64_MAX || m.complete >= least);
}

/* PCOLL_EAGAIN while it is not yet the turn of this read, if it is to be one. */
static int read_turn(pcoll_handle *h, uint64_t last, uint64_t *horizon)
{
    struct arrivals *a = h->vertex->arrivals;
    if (!a || state_of(h).deliver == PCOLL_DELIVER_ONE || state_of(h).delivered > last)
        return PCOLL_OK;
    *horizon = arrivals_complete(a, state_of(h).stats.delivered);
    return await(h, may_read);
}

static void note_read(pcoll_handle *h)
{
    if (h->vertex->arrivals && state_of(h).deliver == PCOLL_DELIVER_ALL)
        arrivals_note_read(h->vertex->arrivals, state_of(h).seen);
}

/* The call is over: the application may start the next one. */
static int finish(pcoll_handle *h)
{
    int rc = h->vertex->domain->ops->change(h->vertex->domain, 0, member_finish);
    if (rc == PCOLL_OK && h->vertex->arrivals)
        arrivals_note_call(h->vertex->arrivals, state_of(h).delivered);
    return rc;
}

/* Rounds. */

int pcoll_handle_start(pcoll_handle *h, const void *const *send)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = await_turn(h)) != PCOLL_OK)
        return handle_leave(h, rc);
    struct domain *d = h->vertex->domain;
    enum deposit_outcome outcome;
    rc = context_check(h->context);
    if (rc == PCOLL_OK && !send && !d->ops->send_slot(d, 0))
        rc = fail(PCOLL_EINVAL, "send: expected buffers, got NULL");
    if (rc == PCOLL_OK)
        rc = d->ops->deposit(d, 0, send, &outcome);
    if (rc != PCOLL_OK)
        return handle_leave(h, rc);
    vertex_deposited(h->vertex, outcome);
    if (outcome != DEPOSIT_ARRIVED)
        progress_without_agent(h->context->progress);
    return handle_leave(h, PCOLL_OK);
}

static bool call_is_over(void *arg)
{
    pcoll_handle *h = arg;
    bool ready = h->vertex->domain->ops->ready(h->vertex->domain, 0) &&
                 (!h->vertex->arrivals || is_as_recorded(h));
    return ready || atomic_load(&h->context->failure);
}

static bool is_started(pcoll_handle *h)
{
    return state_of(h).started;
}

static int wait_for_call(pcoll_handle *h, int64_t timeout_us)
{
    if (!is_started(h))
        return fail(PCOLL_ESTATE, "not started: there is nothing to wait for");
    int rc = progress_wait(h->context->progress, call_is_over, h, timeout_us);
    if (rc == PCOLL_OK && !h->vertex->domain->ops->ready(h->vertex->domain, 0))
        rc = context_check(h->context);
    return rc;
}

static int deliver(pcoll_handle *h, uint64_t last, void *const *recv,
                   pcoll_round *round, uint64_t *masks)
{
    struct domain *d = h->vertex->domain;
    bool moved = false;
    uint64_t horizon = UINT64_MAX;
    int rc = read_turn(h, last, &horizon);
    if (rc == PCOLL_OK)
        rc = d->ops->deliver(d, 0, last, horizon, recv, round, masks, &moved);
    if (rc == PCOLL_OK)
        note_read(h);
    if (moved || h->vertex->arrivals)
        context_kick(h->context, &h->vertex->base);
    return rc;
}

int pcoll_handle_wait(pcoll_handle *h, int64_t timeout_us)
{
    int rc = handle_enter(h);
    return rc == PCOLL_OK ? handle_leave(h, wait_for_call(h, timeout_us)) : rc;
}

int pcoll_handle_take(pcoll_handle *h, int64_t timeout_us, void *const *recv,
                      pcoll_round *round, uint64_t *masks)
{
    int rc = handle_enter(h);
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
                         uint64_t rounds, double *microseconds)
{
    pcoll_round round;
    int64_t begin = clock_ns();
    int rc = PCOLL_OK;
    for (uint64_t i = 0; i < rounds && rc == PCOLL_OK; i++) {
        do
            rc = pcoll_handle_start(h, send);
        while (rc == PCOLL_EAGAIN);
        while (rc == PCOLL_OK &&
               (rc = pcoll_handle_take(h, 1000000, recv, &round, NULL)) == PCOLL_EAGAIN)
            rc = PCOLL_OK;
    }
    *microseconds = rounds ? (double)(clock_ns() - begin) / 1e3 / (double)rounds : 0;
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
        int rc = handle_enter(handles[i]);
        if (rc != PCOLL_OK) {
            leave_all(handles, i);
            return rc;
        }
        *p = handles[i]->context->progress;
        if (!is_started(handles[i])) {
            leave_all(handles, i + 1);
            return fail(PCOLL_ESTATE, "handle %d is not started", i);
        }
    }
    return *p ? PCOLL_OK : fail(PCOLL_EEMPTY, "no handle to wait for");
}

int pcoll_wait_any(pcoll_handle *const *handles, int32_t count, int64_t timeout_us,
                   int32_t *index)
{
    struct progress *p;
    int rc = enter_all(handles, count, &p);
    if (rc != PCOLL_OK)
        return rc;
    struct any any = {.handles = handles, .count = count};
    rc = progress_wait(p, any_is_over, &any, timeout_us);
    *index = any.first;
    if (rc == PCOLL_OK)
        rc = context_check(handles[any.first]->context);
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
    struct member m = state_of(h);
    *complete = complete_for(h, &m);
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
    char *slot = h->vertex->domain->ops->send_slot(h->vertex->domain, 0);
    const struct payload *p = &h->vertex->shape.payload;
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
        rc = h->vertex->domain->ops->change(h->vertex->domain, 0, step);
    if (rc == PCOLL_OK)
        context_kick(h->context, &h->vertex->base);
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
    progress_kick(h->context->progress);
    return handle_leave(h, context_check(h->context));
}

/* Looking at it. */

int pcoll_handle_stats(pcoll_handle *h, pcoll_stats *stats)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m;
    h->vertex->domain->ops->snapshot(h->vertex->domain, 0, &m);
    *stats = m.stats;
    progress_lock(h->context->progress);
    stats->activations_dropped = h->vertex->engine.dropped;
    stats->activations_early = h->vertex->engine.early;
    progress_unlock(h->context->progress);
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_algorithm(pcoll_handle *h, int32_t *algorithm)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    *algorithm = (int32_t)h->vertex->data.plan.algorithm;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_domain(pcoll_handle *h, int32_t *domain, uint32_t *domains,
                        uint32_t *members)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    *members = (uint32_t)h->vertex->domain->members;
    *domains = h->vertex->plane.domains;
    *domain = *domains < h->vertex->plane.ranks ? PCOLL_DOMAIN_NODE : PCOLL_DOMAIN_RANK;
    return handle_leave(h, PCOLL_OK);
}

int pcoll_handle_result(pcoll_handle *h, int32_t buffer, const void **address)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    struct member m = state_of(h);
    struct domain *d = h->vertex->domain;
    const struct payload *p = &h->vertex->shape.payload;
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
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if (!strcmp(format, "text"))
        *text = sched_text(h->vertex->sched);
    else if (!strcmp(format, "dot"))
        *text = sched_dot(h->vertex->sched);
    else
        return handle_leave(
            h, fail(PCOLL_EINVAL, "format: expected \"text\" or \"dot\", got \"%.50s\"",
                    format));
    return handle_leave(h,
                        *text ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a text"));
}

int pcoll_handle_goal(pcoll_handle *h, double ns_per_byte, char **text)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if (!(ns_per_byte >= 0 && ns_per_byte <= PCOLL_LONGEST_TIME))
        return handle_leave(h,
                            fail(PCOLL_EINVAL, "ns_per_byte: expected 0 to %g, got %g",
                                 PCOLL_LONGEST_TIME, ns_per_byte));
    *text = vertex_goal(h->vertex, ns_per_byte);
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
    int rc = enter_any(h);
    if (rc != PCOLL_OK)
        return rc;
    return handle_leave(h, survey_run(h->vertex, patience_us, text, capacity));
}

/* The end. */

static int close_vertex(pcoll_handle *h)
{
    progress_lock(h->context->progress);
    int rc = vertex_close(h->vertex);
    if (rc != PCOLL_OK)
        context_fail(h->context, rc);
    progress_unlock(h->context->progress);
    return rc;
}

static bool is_closed(void *arg)
{
    pcoll_handle *h = arg;
    return atomic_load(&h->vertex->closing) == CLOSED ||
           atomic_load(&h->context->failure);
}

/* After a failure of the transport its requests may still point into the buffers: they
 * are better lost than overwritten. */
static void dispose(pcoll_handle *h)
{
    bool healthy = atomic_load(&h->context->failure) == PCOLL_OK;
    progress_lock(h->context->progress);
    context_unregister(h->context, h->vertex->base.slot);
    progress_unlock(h->context->progress);
    if (healthy)
        vertex_destroy(&h->vertex);
    h->vertex = NULL;
}

int pcoll_handle_free_begin(pcoll_handle *h)
{
    if (!h || !h->vertex)
        return PCOLL_OK;
    int rc = enter_any(h);
    if (rc != PCOLL_OK)
        return rc;
    return handle_leave(h, close_vertex(h));
}

int pcoll_handle_free(pcoll_handle **at, int64_t timeout_us)
{
    pcoll_handle *h = *at;
    int rc = PCOLL_OK;
    if (!h)
        return PCOLL_OK;
    if (h->vertex) {
        if ((rc = enter_any(h)) != PCOLL_OK)
            return rc;
        close_vertex(h); /* a failure shows below, as the context's */
        if (progress_wait(h->context->progress, is_closed, h, timeout_us) ==
            PCOLL_EAGAIN)
            return handle_leave(h, PCOLL_EAGAIN);
        rc = context_check(h->context);
        runtime_remove(&h->entry);
        dispose(h);
        runtime_release(h->context);
    }
    free(h);
    *at = NULL;
    return rc;
}

/* At MPI_Finalize. The application still has the handle and may free it later: it
 * stays, empty. */

void handle_begin_end(struct runtime_entry *entry)
{
    close_vertex((pcoll_handle *)entry);
}

void handle_end(struct runtime_entry *entry)
{
    pcoll_handle *h = (pcoll_handle *)entry;
    while (progress_wait(h->context->progress, is_closed, h, 1000000) == PCOLL_EAGAIN)
        ;
    dispose(h);
}

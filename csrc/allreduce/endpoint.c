/* SPDX-License-Identifier: Apache-2.0 */
/* One handle on one domain; see endpoint.h. */
#include "allreduce/endpoint.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "allreduce/control.h"
#include "allreduce/endpoint_parts.h"
#include "allreduce/staging.h"
#include "allreduce/stall_answer.h"
#include "runtime/closing.h"

static struct endpoint *of(struct object *p)
{
    return (struct endpoint *)p;
}

static uint32_t tag_of(const struct endpoint *v, int edge)
{
    return v->base.slot * DATA_EDGES + (uint32_t)edge;
}

static uint64_t cookie_of(const struct endpoint *v, int op)
{
    return object_cookie(&v->base, op);
}

/* Events come before or after an activation; this one saw those that it counted. */
static void note_round(struct endpoint *v)
{
    struct member m;
    v->domain->ops->snapshot(v->domain, &m);
    event_log_note(v->event_log, LOGGED_ROUND, m.frozen_events);
}

static bool replay_admits(struct endpoint *v)
{
    struct member m;
    if (!v->event_log)
        return true;
    v->domain->ops->snapshot(v->domain, &m);
    return event_log_admit_round(v->event_log, v->engine.current, m.events);
}

static void freeze(struct endpoint *v)
{
    struct domain *d = v->domain;
    uint64_t round = v->engine.current;
    struct round_header *contribution = d->ops->freeze(d, round);
    CHECK(!v->frozen && contribution->round == round);
    contribution->initiator = v->initiator;
    data_begin(&v->data, contribution, d->ops->result(d, round));
    if (v->event_log)
        note_round(v);
    v->frozen = true;
    MOMENT("frozen");
    if (v->communicator->progress)
        progress_round(v->communicator->progress, 1);
}

/* False while other members are adding this part up: the domain calls us when they have.
 */
static bool is_gathered(struct endpoint *v, const struct op *op)
{
    struct domain *d = v->domain;
    const struct payload *p = &v->shape.payload;
    const struct slice *s = &op->slice;
    return !d->ops->gather ||
           d->ops->gather(d, v->engine.current,
                          s->of ? payload_cut(p, s->begin, s->of) : 0,
                          s->of ? payload_cut(p, s->end, s->of) : p->bytes);
}

/* The first one of a round freezes the deposits. */
static int gather(struct endpoint *v, const struct op *op, bool *finished)
{
    if (!v->frozen)
        freeze(v);
    *finished = is_gathered(v, op);
    v->gathering += !*finished;
    return PCOLL_OK;
}

/* Carry an operation out, or begin to. *finished: it needs no event to be complete. */
static int issue(struct endpoint *v, int id, bool *finished)
{
    const struct op *op = &v->sched->ops[id];
    struct transport *t = v->communicator->transport;
    struct message m;
    struct native_call call;
    *finished = true;
    switch (op->kind) {
    case OP_SEND:
        if (op->class == OP_CONTROL)
            MOMENT("activating");
        if (op->class == OP_CONTROL)
            return control_send(v, (uint32_t)op->peer, CONTROL_ACTIVATE, op->edge);
        *finished = false;
        MOMENT("sending");
        m = data_outgoing(&v->data, op);
        return t->ops->send(t, (uint32_t)op->peer, tag_of(v, op->edge), m.at, m.bytes,
                            cookie_of(v, id));
    case OP_RECV:
        *finished = false;
        m = data_incoming(&v->data, op);
        return t->ops->recv(t, (uint32_t)op->peer, tag_of(v, op->edge), m.at, m.bytes,
                            cookie_of(v, id));
    case OP_REDUCE:
        MOMENT("reducing");
        return data_reduce(&v->data, op);
    case OP_COPY:
        if (op->a == BUFFER_DEPOSIT)
            return gather(v, op, finished);
        data_copy(&v->data, op);
        return PCOLL_OK;
    case OP_NATIVE:
        *finished = false;
        call = data_native(&v->data, op);
        return t->ops->native(t, v->channel, &call, cookie_of(v, id));
    case OP_NOP:
    case OP_TIMER:
        break;
    }
    return fail(PCOLL_EPROTOCOL, "operation %d (%s) cannot be executed here", id,
                op->label);
}

const uint64_t *endpoint_awaited(struct endpoint *v)
{
    return v->frozen ? NULL : endpoint_trigger_awaited(v);
}

/* Start the current round, if it is time to. */
static int start_round(struct endpoint *v)
{
    struct engine *e = &v->engine;
    struct activation *a = &v->activation;
    int closing = atomic_load(&v->closing);
    bool start = closing == DRAINING && e->current < v->closing_rounds;
    int rc = PCOLL_OK;
    bool idle = engine_state(e, e->current, a->active) == OP_WAITING &&
                engine_state(e, e->current, a->start) == OP_WAITING;
    if (idle && closing <= ENTERING)
        rc = endpoint_trigger_evaluate(v, &start);
    if (idle && start)
        engine_complete(e, e->current, a->start);
    bool forced = engine_state(e, e->current, a->force) != OP_WAITING;
    if (rc == PCOLL_OK && !forced && (idle || a->force != a->start) &&
        closing <= ENTERING && endpoint_trigger_deadline(v))
        engine_complete(e, e->current, a->force);
    return rc;
}

static void finish_round(struct endpoint *v)
{
    CHECK(v->drives && engine_over(&v->engine) && !v->gathering);
    struct round_header *result = v->domain->ops->result(v->domain, v->engine.current);
    MOMENT("round over");
    endpoint_trigger_finish(v, result);
    round_live(result, v->shape.ranks, v->live);
    CHECK(v->frozen && result->round == v->engine.current);
    v->domain->ops->publish(v->domain, v->engine.current);
    MOMENT("round published");
    v->frozen = false;
    v->initiator = ROUND_NOBODY;
    engine_advance(&v->engine);
    if (v->communicator->progress) {
        progress_round(v->communicator->progress, -1);
        progress_wake_waiters(v->communicator->progress);
    }
}

static int run_operations(struct endpoint *v)
{
    for (int op; (op = engine_next(&v->engine)) >= 0;) {
        bool finished;
        int rc = issue(v, op, &finished);
        if (rc != PCOLL_OK)
            return rc;
        if (finished)
            engine_complete(&v->engine, v->engine.current, op);
    }
    return PCOLL_OK;
}

static void release(struct endpoint *v)
{
    bool closing = atomic_load(&v->closing) != OPEN; /* a replay is over */
    if (!v->engine.released && v->domain->ops->admits(v->domain) &&
        (closing || replay_admits(v)))
        engine_release(&v->engine);
}

/* Complete the operations whose part of the sum the members have reduced by now. */
static void poll_gathering(struct endpoint *v)
{
    uint64_t round = v->engine.current;
    for (uint32_t i = 0; v->gathering && i < v->sched->count; i++) {
        const struct op *op = &v->sched->ops[i];
        if (op->kind != OP_COPY || op->a != BUFFER_DEPOSIT ||
            engine_state(&v->engine, round, (int)i) != OP_RUNNING ||
            !is_gathered(v, op))
            continue;
        v->gathering--;
        engine_complete(&v->engine, round, (int)i);
    }
}

/* Rounds are driven in shared memory, by whoever is there, or by another rank: help
 * when a timer asks for it. */
static int run_member(struct endpoint *v)
{
    int closing = atomic_load(&v->closing);
    int64_t alarm = INT64_MAX;
    if (closing <= ENTERING)
        v->domain->ops->help(v->domain, true, &alarm);
    if (alarm != INT64_MAX)
        communicator_alarm(v->communicator, &v->base, alarm);
    return closing == DRAINING ? endpoint_drain(v) : PCOLL_OK;
}

/* A deposit of this rank waits for its copy from a device: make it, or look again. */
static void drive_staging(struct endpoint *v)
{
    bool made;
    enum deposit_outcome outcome;
    if (!staging_try(v->staging, v->domain, &made, &outcome)) {
        communicator_alarm(v->communicator, &v->base, staging_next_look(v->staging));
        v->base.in_vain = true;
    } else if (made)
        endpoint_poll(v, true);
    else
        progress_wake_waiters(v->communicator->progress); /* it has failed */
}

/* No round follows that this rank takes part in, whatever has come for one. */
static bool has_ended(const struct endpoint *v)
{
    return atomic_load(&v->closing) >= REPORTS &&
           v->engine.current >= v->closing_rounds;
}

int endpoint_run(struct endpoint *v)
{
    struct engine *e = &v->engine;
    if (!staging_arrived(v->staging) && atomic_load(&v->closing) == OPEN)
        drive_staging(v);
    int closed = endpoint_continue_closing(v);
    if (closed != PCOLL_OK)
        return closed;
    if (!v->drives)
        return run_member(v);
    poll_gathering(v);
    while (!has_ended(v)) {
        release(v);
        if (!e->released)
            return PCOLL_OK;
        int rc = start_round(v);
        if (rc == PCOLL_OK)
            rc = run_operations(v);
        if (rc != PCOLL_OK)
            return rc;
        if (!engine_over(e))
            break;
        finish_round(v);
    }
    return has_ended(v) && atomic_load(&v->closing) == DRAINING ? endpoint_drain(v)
                                                                : PCOLL_OK;
}

static int object_run(struct object *p)
{
    return endpoint_run(of(p));
}

static int object_done(struct object *p, int op, size_t bytes)
{
    struct endpoint *v = of(p);
    const struct op *o = &v->sched->ops[op];
    int rc = PCOLL_OK;
    if (o->kind == OP_RECV)
        rc = data_received(&v->data, o, bytes, v->engine.current);
    else if (o->kind == OP_NATIVE)
        rc = data_native_over(&v->data, o);
    if (rc != PCOLL_OK)
        return rc;
    engine_complete(&v->engine, v->engine.current, op);
    return endpoint_run(v);
}

/* Who has taken part in counting the rounds begins none beyond them. */
static int take_activation(struct endpoint *v, const struct control_message *m)
{
    bool beyond = atomic_load(&v->closing) >= REPORTS && m->round >= v->closing_rounds;
    if (beyond || engine_complete(&v->engine, m->round, v->activation.from[m->edge]) ==
                      ENGINE_IMPOSSIBLE)
        return fail(PCOLL_EPROTOCOL, "rank %u activates round %llu in round %llu",
                    m->source, (unsigned long long)m->round,
                    (unsigned long long)v->engine.current);
    return endpoint_run(v);
}

static int take_last(struct endpoint *v, const struct control_message *m)
{
    uint32_t edge = (uint32_t)1 << m->edge;
    if (v->last_received & edge)
        return fail(PCOLL_EPROTOCOL, "rank %u ended twice", m->source);
    v->last_received |= edge;
    return endpoint_run(v);
}

static int object_control(struct object *p, uint32_t source,
                          const struct control *message)
{
    struct endpoint *v = of(p);
    struct control_message m;
    int rc = control_decode(v, source, message, &m);
    if (rc != PCOLL_OK)
        return rc;
    switch (m.kind) {
    case CONTROL_ACTIVATE:
        return take_activation(v, &m);
    case CONTROL_LAST:
        return take_last(v, &m);
    case CONTROL_REPORT:
        endpoint_trigger_take(v, &m);
        return endpoint_run(v);
    case CONTROL_ASK:
        return stall_answer_send(v, source);
    case CONTROL_ANSWER:
        stall_answer_take(v, m.rank, &m.answer);
        break;
    }
    return PCOLL_OK;
}

static int object_begin_close(struct object *p)
{
    struct endpoint *v = of(p);
    int rc = endpoint_run(v);
    return rc == PCOLL_OK ? endpoint_enter_closing(v) : rc;
}

static bool object_attention(struct object *p)
{
    struct domain *d = of(p)->domain;
    return d->ops->attention(d);
}

const struct object_ops endpoint_ops = {
    .run = object_run,
    .done = object_done,
    .control = object_control,
    .begin_close = object_begin_close,
    .attention = object_attention,
};

void endpoint_help(struct endpoint *v)
{
    CHECK(v->domain->ops->help);
    int64_t alarm;
    v->domain->ops->help(v->domain, false, &alarm);
    if (alarm == INT64_MAX || alarm == v->told)
        return;
    v->told = alarm;
    communicator_notify(v->communicator, &v->base);
}

int endpoint_poll(struct endpoint *v, bool driver)
{
    struct domain *d = v->domain;
    int64_t alarm = INT64_MAX;
    if (d->ops->help && v->placement.domains == 1)
        d->ops->help(d, driver, &alarm);
    else if (d->ops->alert)
        d->ops->alert(d);
    if (!driver)
        v->told = alarm;
    if (!d->ops->help || alarm != INT64_MAX)
        communicator_notify(v->communicator, &v->base);
    return PCOLL_OK;
}

/* A stored deposit starts nothing, but a round may wait for one of an overdue rank. */
void endpoint_deposited(struct endpoint *v, enum deposit_outcome outcome)
{
    CHECK(outcome <= DEPOSIT_DROPPED);
    if (outcome == DEPOSIT_ARRIVED || v->event_log ||
        (outcome == DEPOSIT_STORED && v->policy.max_staleness))
        endpoint_poll(v, false);
}

int endpoint_close(struct endpoint *v)
{
    if (atomic_load(&v->closing) != OPEN)
        return PCOLL_OK;
    atomic_store(&v->closing, QUEUED);
    v->domain->ops->retire(v->domain);
    int rc = endpoint_poll(v, true);
    return rc == PCOLL_OK ? communicator_close(v->communicator, &v->base) : rc;
}

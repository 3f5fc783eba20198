/* SPDX-License-Identifier: Apache-2.0 */
/* One handle on one domain; see vertex.h. */
#include "vertex.h"

#include <stdlib.h>

#include "../base/error.h"
#include "../base/splitmix.h"
#include "survey.h"
#include "vertex_parts.h"

static struct vertex *of(struct participant *p)
{
    return (struct vertex *)p;
}

static uint32_t tag_of(const struct vertex *v, int edge)
{
    return v->base.slot * DATA_EDGES + (uint32_t)edge;
}

static uint64_t cookie_of(const struct vertex *v, int op)
{
    return participant_cookie(&v->base, op);
}

int vertex_send_control(struct vertex *v, uint32_t rank, uint16_t kind, int edge)
{
    struct control message = {.handle = v->base.slot,
                              .kind = kind,
                              .edge = (uint16_t)edge,
                              .round = v->engine.current};
    struct transport *t = v->context->transport;
    return t->ops->control(t, rank, &message);
}

/* Events come before or after an activation; this one saw those that it counted. */
static void note_round(struct vertex *v)
{
    struct member m;
    v->domain->ops->snapshot(v->domain, 0, &m);
    arrivals_note_round(v->arrivals, m.frozen_events);
}

static bool replay_admits(struct vertex *v)
{
    struct member m;
    if (!v->arrivals)
        return true;
    v->domain->ops->snapshot(v->domain, 0, &m);
    return arrivals_admit_round(v->arrivals, v->engine.current, m.events);
}

/* False while the members' contributions are still being added up: the domain calls us
 * when they are. */
static bool freeze(struct vertex *v)
{
    struct domain *d = v->domain;
    uint64_t round = v->engine.current;
    struct round_header *contribution = d->ops->freeze(d, round);
    if (!contribution)
        return false;
    contribution->initiator = v->initiator;
    data_begin(&v->data, contribution, d->ops->result(d, round));
    if (v->arrivals)
        note_round(v);
    v->frozen = true;
    if (v->context->progress)
        progress_round(v->context->progress, 1);
    return true;
}

static int gather(struct vertex *v, int id, bool *finished)
{
    *finished = freeze(v);
    v->gathering = *finished ? NO_OPERATION : id;
    return PCOLL_OK;
}

/* Carry an operation out, or begin to. *finished: it needs no event to be complete. */
static int issue(struct vertex *v, int id, bool *finished)
{
    const struct op *op = &v->sched->ops[id];
    struct transport *t = v->context->transport;
    struct message m;
    struct native_call call;
    *finished = true;
    switch (op->kind) {
    case OP_SEND:
        if (op->class == OP_CONTROL)
            return vertex_send_control(v, (uint32_t)op->peer, CONTROL_ACTIVATE,
                                       op->edge);
        *finished = false;
        m = data_outgoing(&v->data, op);
        return t->ops->send(t, (uint32_t)op->peer, tag_of(v, op->edge), m.at, m.bytes,
                            cookie_of(v, id));
    case OP_RECV:
        *finished = false;
        m = data_incoming(&v->data, op);
        return t->ops->recv(t, (uint32_t)op->peer, tag_of(v, op->edge), m.at, m.bytes,
                            cookie_of(v, id));
    case OP_REDUCE:
        return data_reduce(&v->data, op);
    case OP_COPY:
        if (op->a == BUFFER_DEPOSIT)
            return gather(v, id, finished);
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

const uint64_t *vertex_awaited(struct vertex *v)
{
    return v->frozen ? NULL : starting_awaited(v);
}

/* Start the current round, if it is time to. */
static int look(struct vertex *v)
{
    struct engine *e = &v->engine;
    struct activation *a = &v->activation;
    int closing = atomic_load(&v->closing);
    bool start = closing == DRAINING && e->current < v->closing_rounds;
    int rc = PCOLL_OK;
    bool idle = engine_state(e, e->current, a->active) == OP_WAITING &&
                engine_state(e, e->current, a->start) == OP_WAITING;
    if (idle && closing <= ENTERING)
        rc = starting_look(v, &start);
    if (idle && start)
        engine_complete(e, e->current, a->start);
    bool forced = engine_state(e, e->current, a->force) != OP_WAITING;
    if (rc == PCOLL_OK && !forced && (idle || a->force != a->start) &&
        closing <= ENTERING && starting_deadline_over(v))
        engine_complete(e, e->current, a->force);
    return rc;
}

static void finish_round(struct vertex *v)
{
    struct round_header *result = v->domain->ops->result(v->domain, v->engine.current);
    starting_finish(v, result);
    round_live(result, v->shape.ranks, v->live);
    v->domain->ops->publish(v->domain, v->engine.current);
    v->frozen = false;
    v->initiator = ROUND_NOBODY;
    engine_advance(&v->engine);
    if (v->context->progress) {
        progress_round(v->context->progress, -1);
        progress_notify(v->context->progress);
    }
}

static int run_operations(struct vertex *v)
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

static void release(struct vertex *v)
{
    bool closing = atomic_load(&v->closing) != OPEN; /* a replay is over */
    if (!v->engine.released && v->domain->ops->admits(v->domain) &&
        (closing || replay_admits(v)))
        engine_release(&v->engine);
}

/* Somebody may have added up what the round waits for. */
static void look_after_gathering(struct vertex *v)
{
    if (v->gathering == NO_OPERATION || !freeze(v))
        return;
    int op = v->gathering;
    v->gathering = NO_OPERATION;
    engine_complete(&v->engine, v->engine.current, op);
}

/* Rounds are driven in shared memory, by whoever is there, or by another rank: help
 * when a timer asks for it. */
static int run_member(struct vertex *v)
{
    int closing = atomic_load(&v->closing);
    int64_t alarm = INT64_MAX;
    if (closing <= ENTERING)
        v->domain->ops->help(v->domain, true, &alarm);
    if (alarm != INT64_MAX)
        context_alarm(v->context, &v->base, alarm);
    return closing == DRAINING ? vertex_drain(v) : PCOLL_OK;
}

int vertex_run(struct vertex *v)
{
    struct engine *e = &v->engine;
    int closed = vertex_continue_closing(v);
    if (closed != PCOLL_OK)
        return closed;
    if (!v->drives)
        return run_member(v);
    look_after_gathering(v);
    for (;;) {
        release(v);
        if (!e->released)
            return PCOLL_OK;
        int rc = look(v);
        if (rc == PCOLL_OK)
            rc = run_operations(v);
        if (rc != PCOLL_OK)
            return rc;
        if (!engine_over(e))
            break;
        finish_round(v);
    }
    if (atomic_load(&v->closing) == DRAINING && e->current >= v->closing_rounds)
        return vertex_drain(v);
    return PCOLL_OK;
}

static int participant_run(struct participant *p)
{
    return vertex_run(of(p));
}

static int participant_done(struct participant *p, int op, size_t bytes)
{
    struct vertex *v = of(p);
    const struct op *o = &v->sched->ops[op];
    int rc = PCOLL_OK;
    if (o->kind == OP_RECV)
        rc = data_received(&v->data, o, bytes, v->engine.current);
    else if (o->kind == OP_NATIVE)
        data_native_over(&v->data, o);
    if (rc != PCOLL_OK)
        return rc;
    engine_complete(&v->engine, v->engine.current, op);
    return vertex_run(v);
}

static int take_activation(struct vertex *v, uint32_t source,
                           const struct control *message)
{
    int edge = message->edge;
    if (edge >= v->activation.edges ||
        source != (uint32_t)v->sched->ops[v->activation.from[edge]].peer)
        return fail(PCOLL_EPROTOCOL, "rank %u sent an activation on edge %d", source,
                    edge);
    if (engine_complete(&v->engine, message->round, v->activation.from[edge]) ==
        ENGINE_IMPOSSIBLE)
        return fail(PCOLL_EPROTOCOL, "rank %u activates round %llu in round %llu",
                    source, (unsigned long long)message->round,
                    (unsigned long long)v->engine.current);
    return vertex_run(v);
}

static int participant_control(struct participant *p, uint32_t source,
                               const struct control *message)
{
    struct vertex *v = of(p);
    switch ((enum control_kind)message->kind) {
    case CONTROL_ACTIVATE:
        return take_activation(v, source, message);
    case CONTROL_LAST:
        v->last_received++;
        return vertex_run(v);
    case CONTROL_TOKEN:
        return starting_take(v, v->plane.domain[source], message);
    case CONTROL_ASK:
        return survey_answer(v, source);
    case CONTROL_ANSWER:
        survey_take(v, message);
        return PCOLL_OK;
    }
    return fail(PCOLL_EPROTOCOL, "rank %u sent a control message of kind %u", source,
                message->kind);
}

static bool participant_attention(struct participant *p)
{
    struct domain *d = of(p)->domain;
    return d->ops->attention(d);
}

const struct participant_ops vertex_ops = {
    .run = participant_run,
    .done = participant_done,
    .control = participant_control,
    .begin_close = vertex_begin_close,
    .attention = participant_attention,
};

void vertex_help(struct vertex *v)
{
    int64_t alarm;
    v->domain->ops->help(v->domain, false, &alarm);
    if (alarm == INT64_MAX || alarm == v->told)
        return;
    v->told = alarm;
    context_kick(v->context, &v->base);
}

int vertex_look_again(struct vertex *v, bool driver)
{
    struct domain *d = v->domain;
    int64_t alarm = INT64_MAX;
    if (d->ops->help && v->plane.domains == 1)
        d->ops->help(d, driver, &alarm);
    else if (d->ops->alert)
        d->ops->alert(d);
    if (!driver)
        v->told = alarm;
    if (!d->ops->help || alarm != INT64_MAX)
        context_kick(v->context, &v->base);
    return PCOLL_OK;
}

/* A stored deposit starts nothing, but a round may wait for one of an overdue rank. */
void vertex_deposited(struct vertex *v, enum deposit_outcome outcome)
{
    if (outcome == DEPOSIT_ARRIVED || v->arrivals ||
        (outcome == DEPOSIT_STORED && v->policy.max_staleness))
        vertex_look_again(v, false);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One handle on one domain; see vertex.h. */
#include "vertex.h"

#include <stdlib.h>

#include "../base/error.h"
#include "../base/splitmix.h"
#include "survey.h"
#include "tuning.h"

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

static int send_control(struct vertex *v, uint32_t peer, uint16_t kind, int edge)
{
    struct control message = {.handle = v->base.slot,
                              .kind = kind,
                              .edge = (uint16_t)edge,
                              .round = v->engine.current};
    struct transport *t = v->context->transport;
    return t->ops->control(t, peer, &message);
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

static void freeze(struct vertex *v)
{
    struct domain *d = v->domain;
    uint64_t round = v->engine.current;
    struct round_header *contribution = d->ops->freeze(d, round);
    contribution->initiator = v->initiator;
    data_begin(&v->data, contribution, d->ops->result(d, round));
    if (v->arrivals)
        note_round(v);
    v->frozen = true;
    if (v->context->progress)
        progress_round(v->context->progress, 1);
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
            return send_control(v, (uint32_t)op->peer, CONTROL_ACTIVATE, op->edge);
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
            freeze(v);
        else
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

static void update_live(struct vertex *v, const struct round_header *h)
{
    uint32_t ranks = v->shape.ranks;
    size_t words = bitset_words(ranks);
    const uint64_t *joined = round_mask_const(h, ranks, ROUND_JOINED);
    const uint64_t *left = round_mask_const(h, ranks, ROUND_LEFT);
    bitset_fill(v->live, ranks);
    for (size_t i = 0; i < words; i++)
        v->live[i] &= ~(joined[i] | left[i]);
    if (!bitset_empty(v->live, words))
        return;
    bitset_fill(v->live, ranks); /* all have joined: everybody is back */
    for (size_t i = 0; i < words; i++)
        v->live[i] &= ~left[i];
}

static void finish_round(struct vertex *v)
{
    struct round_header *result = v->domain->ops->result(v->domain, v->engine.current);
    starting_finish(v, result);
    update_live(v, result);
    v->domain->ops->publish(v->domain, v->engine.current);
    v->frozen = false;
    v->initiator = ROUND_NOBODY;
    engine_advance(&v->engine);
    if (v->context->progress) {
        progress_round(v->context->progress, -1);
        progress_notify(v->context->progress);
    }
}

/* Reports that are still under way to this vertex. */
static bool reports_missing(const struct vertex *v)
{
    const struct starting *s = &v->starting;
    return s->tokens_sent &&
           s->tokens_received < s->tokens_sent[v->context->transport->rank];
}

/* The last message on every edge goes out when all rounds are over. */
static int drain(struct vertex *v)
{
    struct transport *t = v->context->transport;
    if (!v->last_sent) {
        v->last_sent = true;
        for (int k = 0; k < v->activation.edges; k++) {
            uint32_t peer = (t->rank + ((uint32_t)1 << k)) % t->size;
            int rc = send_control(v, peer, CONTROL_LAST, k);
            if (rc != PCOLL_OK)
                return rc;
        }
    }
    if (v->last_received < v->activation.edges || reports_missing(v) ||
        atomic_load(&v->closing) == CLOSED)
        return PCOLL_OK;
    atomic_store(&v->closing, CLOSED);
    return context_closed(v->context, &v->base);
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
    bool closing = atomic_load(&v->closing) != OPEN; /* nobody will read here */
    if (!v->engine.released &&
        (closing || (v->domain->ops->admits(v->domain) && replay_admits(v))))
        engine_release(&v->engine);
}

static int agree_to_close(struct vertex *v, uint64_t *values, int count,
                          enum agree_op op)
{
    v->closing_agreement = (struct agreement){
        .values = values, .count = count, .op = op, .participant = &v->base};
    return context_agree(v->context, &v->closing_agreement);
}

/* Next step of closing, if the agreement of the last one is over. */
static int continue_closing(struct vertex *v)
{
    int closing = atomic_load(&v->closing);
    bool agreeing = closing >= ENTERING && closing <= TALLYING;
    if (!agreeing || !atomic_load(&v->closing_agreement.done))
        return PCOLL_OK;
    atomic_store(&v->closing, closing + 1);
    if (closing == ENTERING) {
        v->closing_rounds = v->engine.current + v->frozen;
        return agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
    }
    if (closing == TALLYING)
        return PCOLL_OK;
    if (v->starting.tokens_sent)
        return agree_to_close(v, v->starting.tokens_sent,
                              (int)v->context->transport->size, AGREE_SUM);
    atomic_store(&v->closing, DRAINING);
    return PCOLL_OK;
}

int vertex_run(struct vertex *v)
{
    struct engine *e = &v->engine;
    int closed = continue_closing(v);
    if (closed != PCOLL_OK)
        return closed;
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
        return drain(v);
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
        return starting_take(v, source, message);
    case CONTROL_ASK:
        return survey_answer(v, source);
    case CONTROL_ANSWER:
        survey_take(v, source, message);
        return PCOLL_OK;
    }
    return fail(PCOLL_EPROTOCOL, "rank %u sent a control message of kind %u", source,
                message->kind);
}

int vertex_close(struct vertex *v)
{
    if (atomic_load(&v->closing) != OPEN)
        return PCOLL_OK;
    atomic_store(&v->closing, QUEUED);
    return context_close(v->context, &v->base);
}

static int participant_begin_close(struct participant *p)
{
    struct vertex *v = of(p);
    int rc = vertex_run(v);
    if (rc != PCOLL_OK)
        return rc;
    atomic_store(&v->closing, ENTERING);
    v->closing_rounds = 0; /* nothing to agree on yet: a barrier */
    return agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
}

static const struct participant_ops vertex_ops = {
    .run = participant_run,
    .done = participant_done,
    .control = participant_control,
    .begin_close = participant_begin_close,
};

/* A stored deposit starts nothing, but a round may wait for one of an overdue rank. */
void vertex_deposited(struct vertex *v, enum deposit_outcome outcome)
{
    if (outcome == DEPOSIT_ARRIVED || v->arrivals ||
        (outcome == DEPOSIT_STORED && v->policy.max_staleness))
        context_kick(v->context, &v->base);
}

/* Of the table; the ring, where elements do not let the headers into the gaps. */
static int choose_algorithm(const struct vertex_spec *spec, uint32_t vertices,
                            const struct payload *payload, enum pcoll_algorithm *a)
{
    int rc = tuning_choose(vertices, payload->bytes, spec->off_node, a);
    if (*a == PCOLL_ALGORITHM_NATIVE && !payload_is_native(payload))
        *a = PCOLL_ALGORITHM_RABENSEIFNER;
    if (*a == PCOLL_ALGORITHM_RABENSEIFNER && !payload_evenly_cut(payload))
        *a = PCOLL_ALGORITHM_RING;
    return rc;
}

int vertex_lay_out(const struct vertex_spec *spec, uint32_t vertices,
                   struct round_shape *shape, struct algorithm_plan *plan)
{
    int rc = round_shape_init(shape, spec->ranks, spec->buffers, spec->nbuffers,
                              spec->make_user);
    if (rc != PCOLL_OK)
        return rc;
    enum pcoll_algorithm algorithm = (enum pcoll_algorithm)spec->options->algorithm;
    if (algorithm == PCOLL_ALGORITHM_AUTO)
        rc = choose_algorithm(spec, vertices, &shape->payload, &algorithm);
    else if (algorithm == PCOLL_ALGORITHM_RABENSEIFNER &&
             !payload_evenly_cut(&shape->payload))
        rc = fail(PCOLL_EINVAL,
                  "algorithm: rabenseifner needs elements whose size divides 64 bytes; "
                  "use recdbl or ring");
    else if (algorithm == PCOLL_ALGORITHM_NATIVE && !payload_is_native(&shape->payload))
        rc = fail(
            PCOLL_EINVAL,
            "algorithm: native takes no ops or datatypes of users (a round to which "
            "a rank does not contribute needs an identity), and at most 2^31 - 1 "
            "elements in a buffer; use another one");
    if (rc != PCOLL_OK) {
        round_shape_destroy(shape);
        return rc;
    }
    algorithm_plan(algorithm, vertices, shape->payload.bytes, plan);
    plan->native_parts = spec->nbuffers;
    if (plan->padded)
        round_shape_pad(shape, plan->padded);
    return PCOLL_OK;
}

size_t vertex_bytes(const struct round_shape *shape, const struct algorithm_plan *plan,
                    const pcoll_policy *policy)
{
    return data_bytes(shape, plan) + starting_bytes(policy, shape->ranks, shape->ranks);
}

static int build_schedule(struct vertex *v, uint32_t rank, uint32_t size)
{
    if (!(v->sched = sched_create()))
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    if (!policy_starts_alone(&v->policy))
        build_activation(v->sched, rank, size, &v->activation);
    else if (policy_activates(&v->policy))
        build_forced_activation(v->sched, rank, size, &v->activation);
    else
        build_own_activation(v->sched, &v->activation);
    sched_end(v->sched, build_allreduce(v->sched, rank, size, v->activation.active,
                                        &v->data.plan));
    int rc = sched_commit(v->sched);
    return rc == PCOLL_OK ? engine_init(&v->engine, v->sched) : rc;
}

static int allocate(struct vertex *v, const struct algorithm_plan *plan)
{
    v->live = calloc(bitset_words(v->shape.ranks), sizeof *v->live);
    if (!v->live)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", v->shape.ranks);
    bitset_fill(v->live, v->shape.ranks);
    int rc = data_init(&v->data, &v->shape, plan);
    return rc == PCOLL_OK ? starting_init(v) : rc;
}

int vertex_create(struct context *c, const struct vertex_spec *spec,
                  struct vertex **out)
{
    struct vertex *v = calloc(1, sizeof *v);
    if (!v)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    v->base = participant_init(&vertex_ops);
    v->context = c;
    v->policy = spec->options->policy;
    v->seed = spec->options->seed;
    v->initiator = ROUND_NOBODY;
    struct algorithm_plan plan;
    int rc = vertex_lay_out(spec, c->transport->size, &v->shape, &plan);
    if (rc == PCOLL_OK)
        rc = plane_init(&v->plane, c->transport->rank, c->transport->size, NULL, 0);
    if (rc == PCOLL_OK)
        rc = allocate(v, &plan);
    if (rc == PCOLL_OK)
        rc = build_schedule(v, c->transport->rank, c->transport->size);
    if (rc == PCOLL_OK)
        rc =
            spec->create_domain(&v->shape, spec->options, spec->domain_arg, &v->domain);
    if (rc != PCOLL_OK) {
        vertex_destroy(&v);
        return rc;
    }
    *out = v;
    return PCOLL_OK;
}

int vertex_open(struct vertex *v)
{
    struct transport *t = v->context->transport;
    bool native = v->data.plan.algorithm == PCOLL_ALGORITHM_NATIVE;
    return native ? t->ops->open(t, &v->channel) : PCOLL_OK;
}

void vertex_destroy(struct vertex **at)
{
    struct vertex *v = *at;
    if (v->domain)
        v->domain->ops->destroy(v->domain);
    engine_destroy(&v->engine);
    sched_free(&v->sched);
    round_shape_destroy(&v->shape);
    data_destroy(&v->data);
    if (v->channel)
        v->context->transport->ops->close(v->context->transport, v->channel);
    arrivals_close(&v->arrivals);
    starting_destroy(v);
    plane_destroy(&v->plane);
    free(v->live);
    free(v);
    *at = NULL;
}

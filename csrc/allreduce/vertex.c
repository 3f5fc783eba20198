/* SPDX-License-Identifier: Apache-2.0 */
/* One handle on one domain; see vertex.h. */
#include "vertex.h"

#include <stdlib.h>

#include "../base/error.h"
#include "../base/splitmix.h"
#include "survey.h"

static struct vertex *of(struct participant *p)
{
    return (struct vertex *)p;
}

static struct round_header *buffer_of(struct vertex *v, int buffer)
{
    switch ((enum round_buffer)buffer) {
    case BUFFER_CONTRIBUTION:
        return v->contribution;
    case BUFFER_RESULT:
        return v->domain->ops->result(v->domain, v->engine.current);
    case BUFFER_TEMP0:
        return v->temp[0];
    case BUFFER_TEMP1:
        return v->temp[1];
    case BUFFER_DEPOSIT:
        break;
    }
    return NULL;
}

static size_t message_bytes(const struct vertex *v, const struct round_header *h)
{
    return round_is_null(h, v->shape.ranks) ? v->shape.header_bytes
                                            : v->shape.message_bytes;
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

/* A round that nobody contributed to has no data, only a header. */
static void copy_message(struct vertex *v, struct round_header *out,
                         const struct round_header *from)
{
    memcpy(out, from, message_bytes(v, from));
}

static void reduce_messages(struct vertex *v, struct round_header *out,
                            const struct round_header *a, const struct round_header *b)
{
    bool no_a = round_is_null(a, v->shape.ranks),
         no_b = round_is_null(b, v->shape.ranks);
    void *to = message_payload(&v->shape, out);
    const void *pa = message_payload(&v->shape, a), *pb = message_payload(&v->shape, b);
    if (!no_a && !no_b)
        payload_reduce(&v->shape.payload, to, pa, pb);
    else if (!no_a && to != pa)
        memcpy(to, pa, v->shape.payload.bytes);
    else if (!no_b && to != pb)
        memcpy(to, pb, v->shape.payload.bytes);
    round_header_merge(out, a, b, v->shape.ranks);
}

static void freeze(struct vertex *v)
{
    v->contribution = v->domain->ops->freeze(v->domain, v->engine.current);
    v->contribution->initiator = v->initiator;
    v->frozen = true;
    if (v->context->progress)
        progress_round(v->context->progress, 1);
}

/* Carry an operation out, or begin to. *finished: it needs no event to be complete. */
static int issue(struct vertex *v, int id, bool *finished)
{
    const struct op *op = &v->sched->ops[id];
    struct transport *t = v->context->transport;
    struct round_header *message;
    *finished = true;
    switch (op->kind) {
    case OP_SEND:
        if (op->class == OP_CONTROL)
            return send_control(v, (uint32_t)op->peer, CONTROL_ACTIVATE, op->edge);
        *finished = false;
        message = buffer_of(v, op->a);
        return t->ops->send(t, (uint32_t)op->peer, tag_of(v, op->edge), message,
                            message_bytes(v, message), cookie_of(v, id));
    case OP_RECV:
        *finished = false;
        return t->ops->recv(t, (uint32_t)op->peer, tag_of(v, op->edge),
                            buffer_of(v, op->out), v->shape.message_bytes,
                            cookie_of(v, id));
    case OP_REDUCE:
        reduce_messages(v, buffer_of(v, op->out), buffer_of(v, op->a),
                        buffer_of(v, op->b));
        return PCOLL_OK;
    case OP_COPY:
        if (op->a == BUFFER_DEPOSIT)
            freeze(v);
        else
            copy_message(v, buffer_of(v, op->out), buffer_of(v, op->a));
        return PCOLL_OK;
    case OP_NOP:
    case OP_TIMER:
    case OP_NATIVE:
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
    struct round_header *result = buffer_of(v, BUFFER_RESULT);
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
    bool closing = atomic_load(&v->closing) > QUEUED;
    if (!v->engine.released && (closing || v->domain->ops->admits(v->domain)))
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

/* Every data message of a round carries its number: anything else is not ours. */
static int check_message(struct vertex *v, int id, size_t bytes)
{
    const struct op *op = &v->sched->ops[id];
    if (op->kind != OP_RECV)
        return PCOLL_OK;
    const struct round_header *h = buffer_of(v, op->out);
    if (bytes < v->shape.header_bytes || h->round != v->engine.current ||
        bytes != message_bytes(v, h))
        return fail(PCOLL_EPROTOCOL,
                    "rank %d sent a message of %zu bytes for round %llu in round %llu",
                    op->peer, bytes, (unsigned long long)h->round,
                    (unsigned long long)v->engine.current);
    return PCOLL_OK;
}

static int participant_run(struct participant *p)
{
    return vertex_run(of(p));
}

static int participant_done(struct participant *p, int op, size_t bytes)
{
    struct vertex *v = of(p);
    int rc = check_message(v, op, bytes);
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
    if (outcome == DEPOSIT_ARRIVED ||
        (outcome == DEPOSIT_STORED && v->policy.max_staleness))
        context_kick(v->context, &v->base);
}

size_t vertex_bytes(const struct round_shape *shape, const pcoll_policy *policy)
{
    return 2 * shape->message_bytes +
           starting_bytes(policy, shape->ranks, shape->ranks);
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
    sched_end(v->sched,
              build_allreduce_recdbl(v->sched, rank, size, v->activation.active));
    int rc = sched_commit(v->sched);
    return rc == PCOLL_OK ? engine_init(&v->engine, v->sched) : rc;
}

static int allocate(struct vertex *v)
{
    size_t words = bitset_words(v->shape.ranks);
    v->live = calloc(words, sizeof *v->live);
    for (int i = 0; i < 2; i++)
        if (posix_memalign((void **)&v->temp[i], 4096, v->shape.message_bytes))
            v->temp[i] = NULL;
    if (!v->live || !v->temp[0] || !v->temp[1])
        return fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a handle",
                    2 * v->shape.message_bytes);
    bitset_fill(v->live, v->shape.ranks);
    return starting_init(v);
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
    int rc = round_shape_init(&v->shape, spec->ranks, spec->buffers, spec->nbuffers);
    if (rc == PCOLL_OK)
        rc = allocate(v);
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

void vertex_destroy(struct vertex **at)
{
    struct vertex *v = *at;
    if (v->domain)
        v->domain->ops->destroy(v->domain);
    engine_destroy(&v->engine);
    sched_free(&v->sched);
    round_shape_destroy(&v->shape);
    free(v->temp[0]);
    free(v->temp[1]);
    starting_destroy(v);
    free(v->live);
    free(v);
    *at = NULL;
}

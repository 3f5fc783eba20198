/* SPDX-License-Identifier: Apache-2.0 */
/* Running a user's schedule; see program.h. */
#include "program.h"

#include <stdlib.h>
#include <string.h>

#include "../algorithms/algorithms.h"
#include "../base/error.h"

static struct program *of(struct participant *p)
{
    return (struct program *)p;
}

/* A run that this rank has never asked for: the others need its messages. */
static bool is_empty_run(const struct program *p)
{
    return p->engine.current >= atomic_load(&p->started);
}

static uint32_t tag_of(const struct program *p, const struct draft_op *op)
{
    return p->base.slot * DATA_EDGES + (uint32_t)op->edge;
}

/* Memory for a message in place of the user's. */
static int stand_in(struct program *p, int id)
{
    size_t bytes = p->draft.ops[id].bytes;
    p->ops[id].stand_in = calloc(1, bytes ? bytes : 1);
    return p->ops[id].stand_in
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a message of %zu bytes", bytes);
}

/* Of a message of this rank to itself, the send is carried out first and leaves a copy,
 * so that it is over whenever the receive begins, as a short message to others is. */
static int send_to_self(struct program *p, int id)
{
    const struct draft_op *op = &p->draft.ops[id];
    int rc = stand_in(p, op->partner);
    if (rc == PCOLL_OK && op->bytes && !is_empty_run(p))
        memcpy(p->ops[op->partner].stand_in, op->from, op->bytes);
    return rc;
}

static void take_own(struct program *p, int id)
{
    const struct draft_op *op = &p->draft.ops[id];
    if (op->bytes && !is_empty_run(p))
        memcpy(op->into, p->ops[id].stand_in, op->bytes);
    free(p->ops[id].stand_in);
    p->ops[id].stand_in = NULL;
}

static int send_own(struct program *p, int id, bool *finished)
{
    int receive = p->draft.ops[id].partner;
    int rc = send_to_self(p, id);
    *finished = rc == PCOLL_OK;
    if (rc != PCOLL_OK ||
        engine_state(&p->engine, p->engine.current, receive) != OP_RUNNING)
        return rc;
    take_own(p, receive);
    engine_complete(&p->engine, p->engine.current, receive);
    return PCOLL_OK;
}

static void receive_own(struct program *p, int id, bool *finished)
{
    *finished = p->ops[id].stand_in != NULL;
    if (*finished)
        take_own(p, id);
}

static int send(struct program *p, int id)
{
    const struct draft_op *op = &p->draft.ops[id];
    struct transport *t = p->context->transport;
    int rc = is_empty_run(p) ? stand_in(p, id) : PCOLL_OK;
    const void *from = p->ops[id].stand_in ? p->ops[id].stand_in : op->from;
    return rc == PCOLL_OK ? t->ops->send(t, (uint32_t)op->peer, tag_of(p, op), from,
                                         op->bytes, participant_cookie(&p->base, id))
                          : rc;
}

static int receive(struct program *p, int id)
{
    const struct draft_op *op = &p->draft.ops[id];
    struct transport *t = p->context->transport;
    int rc = is_empty_run(p) ? stand_in(p, id) : PCOLL_OK;
    void *into = p->ops[id].stand_in ? p->ops[id].stand_in : op->into;
    return rc == PCOLL_OK ? t->ops->recv(t, (uint32_t)op->peer, tag_of(p, op), into,
                                         op->bytes, participant_cookie(&p->base, id))
                          : rc;
}

static bool start_timer(struct program *p, int id)
{
    int64_t delay = p->draft.ops[id].delay;
    if (is_empty_run(p) || !delay)
        return true;
    p->ops[id].due = context_now(p->context) + delay;
    context_alarm(p->context, &p->base, p->ops[id].due);
    return false;
}

/* Carry an operation out, or begin to. *finished: it needs no event to be complete. */
static int issue(struct program *p, int id, bool *finished)
{
    const struct draft_op *op = &p->draft.ops[id];
    *finished = true;
    switch (op->kind) {
    case OP_SEND:
        if (op->partner >= 0)
            return send_own(p, id, finished);
        *finished = false;
        return send(p, id);
    case OP_RECV:
        *finished = false;
        if (op->partner < 0)
            return receive(p, id);
        receive_own(p, id, finished);
        return PCOLL_OK;
    case OP_REDUCE:
        if (!is_empty_run(p))
            reduce_buffer(op->op, op->dtype, op->into, op->from, op->into, op->count);
        return PCOLL_OK;
    case OP_COPY:
        if (!is_empty_run(p) && op->bytes && op->into != op->from)
            memcpy(op->into, op->from, op->bytes);
        return PCOLL_OK;
    case OP_TIMER:
        *finished = start_timer(p, id);
        return PCOLL_OK;
    case OP_NOP:
    case OP_NATIVE:
        break;
    }
    return fail(PCOLL_EPROTOCOL, "operation %d (%s) cannot be executed here", id,
                op->label);
}

static int run_operations(struct program *p)
{
    for (int id; (id = engine_next(&p->engine)) >= 0;) {
        bool finished;
        int rc = issue(p, id, &finished);
        if (rc != PCOLL_OK)
            return rc;
        if (finished)
            engine_complete(&p->engine, p->engine.current, id);
    }
    return PCOLL_OK;
}

/* Those whose time has come; an alarm for the others. */
static void end_timers(struct program *p)
{
    struct engine *e = &p->engine;
    int64_t now = p->timer_count ? context_now(p->context) : 0;
    for (uint32_t i = 0; i < p->timer_count; i++) {
        uint32_t id = p->timers[i];
        if (engine_state(e, e->current, (int)id) != OP_RUNNING)
            continue;
        if (p->ops[id].due <= now)
            engine_complete(e, e->current, (int)id);
        else
            context_alarm(p->context, &p->base, p->ops[id].due);
    }
}

static void begin_run(struct program *p)
{
    engine_release(&p->engine);
    if (p->context->progress)
        progress_round(p->context->progress, 1);
}

static void finish_run(struct program *p)
{
    engine_advance(&p->engine);
    atomic_store(&p->finished, p->engine.current);
    if (p->context->progress) {
        progress_round(p->context->progress, -1);
        progress_notify(p->context->progress);
    }
}

/* Runs that are to be over sooner or later, as far as is known. */
static uint64_t runs_wanted(const struct program *p)
{
    uint64_t started = atomic_load(&p->started);
    bool drains = atomic_load(&p->closing) == PROGRAM_DRAINING;
    return drains && p->closing_runs > started ? p->closing_runs : started;
}

static int run_wanted(struct program *p)
{
    while (p->engine.current < runs_wanted(p)) {
        if (!p->engine.released)
            begin_run(p);
        end_timers(p);
        int rc = run_operations(p);
        if (rc != PCOLL_OK || !engine_over(&p->engine))
            return rc;
        finish_run(p);
    }
    return PCOLL_OK;
}

static int program_run(struct participant *base)
{
    struct program *p = of(base);
    if (atomic_load(&p->closing) == PROGRAM_AGREEING && atomic_load(&p->agreement.done))
        atomic_store(&p->closing, PROGRAM_DRAINING);
    int rc = run_wanted(p);
    if (rc != PCOLL_OK || atomic_load(&p->closing) != PROGRAM_DRAINING ||
        p->engine.current < p->closing_runs)
        return rc;
    atomic_store(&p->closing, PROGRAM_CLOSED);
    return context_closed(p->context, base);
}

static int program_done(struct participant *base, int id, size_t bytes)
{
    struct program *p = of(base);
    const struct draft_op *op = &p->draft.ops[id];
    if (op->kind == OP_RECV && bytes != op->bytes)
        return fail(PCOLL_EPROTOCOL,
                    "rank %d sent %zu bytes to operation %d (%s), which takes %zu",
                    op->peer, bytes, id, op->label, op->bytes);
    free(p->ops[id].stand_in);
    p->ops[id].stand_in = NULL;
    engine_complete(&p->engine, p->engine.current, id);
    return program_run(base);
}

static int program_control(struct participant *base, uint32_t source,
                           const struct control *message)
{
    return fail(PCOLL_EPROTOCOL,
                "rank %u sent a control message of kind %u to the schedule in slot %u",
                source, message->kind, base->slot);
}

static int program_begin_close(struct participant *base)
{
    struct program *p = of(base);
    atomic_store(&p->closing, PROGRAM_AGREEING);
    p->closing_runs = atomic_load(&p->started);
    p->agreement = (struct agreement){
        .values = &p->closing_runs, .count = 1, .op = AGREE_MAX, .participant = base};
    return context_agree(p->context, &p->agreement);
}

static const struct participant_ops program_ops = {
    .run = program_run,
    .done = program_done,
    .control = program_control,
    .begin_close = program_begin_close,
};

void program_start(struct program *p)
{
    atomic_fetch_add(&p->started, 1);
    context_kick(p->context, &p->base);
}

int program_close(struct program *p)
{
    if (atomic_load(&p->closing) != PROGRAM_OPEN)
        return PCOLL_OK;
    atomic_store(&p->closing, PROGRAM_QUEUED);
    return context_close(p->context, &p->base);
}

static int allocate(struct program *p, const struct draft *d)
{
    p->ops = calloc(d->count + 1, sizeof *p->ops);
    p->timers = calloc(d->count + 1, sizeof *p->timers);
    if (!p->ops || !p->timers)
        return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations",
                    d->count);
    for (uint32_t i = 0; i < d->count; i++) {
        if (d->ops[i].kind == OP_TIMER)
            p->timers[p->timer_count++] = i;
        if (d->ops[i].edge >= (int64_t)p->base.slots * DATA_EDGES)
            return fail(PCOLL_EPROTOCOL, "message %d does not fit into %u slots",
                        d->ops[i].edge, p->base.slots);
    }
    return PCOLL_OK;
}

int program_create(struct context *c, struct draft *d, struct sched *s,
                   struct program **out)
{
    struct program *p = calloc(1, sizeof *p);
    if (!p)
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    p->base = participant_init(&program_ops);
    p->base.slots = d->tags ? (d->tags + DATA_EDGES - 1) / DATA_EDGES : 1;
    p->context = c;
    int rc = allocate(p, d);
    if (rc == PCOLL_OK)
        rc = engine_init(&p->engine, s);
    if (rc != PCOLL_OK) {
        program_destroy(&p);
        return rc;
    }
    p->draft = *d;
    p->sched = s;
    *d = (struct draft){.rank = d->rank, .size = d->size};
    *out = p;
    return PCOLL_OK;
}

void program_destroy(struct program **at)
{
    struct program *p = *at;
    engine_destroy(&p->engine);
    sched_free(&p->sched);
    for (uint32_t i = 0; p->ops && i < p->draft.count; i++)
        free(p->ops[i].stand_in);
    draft_destroy(&p->draft);
    free(p->ops);
    free(p->timers);
    free(p);
    *at = NULL;
}

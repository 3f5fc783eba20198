/* SPDX-License-Identifier: Apache-2.0 */
/* Readiness is counted by operation; see engine.h. */
#include "schedule/engine.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"

static bool engine_completed_from_outside(const struct op *op)
{
    return op->class == OP_EVENT || (op->class == OP_CONTROL && op->kind == OP_RECV);
}

static bool engine_has_op(const struct engine *e, int op)
{
    return op >= 0 && (uint32_t)op < e->sched->count;
}

static void engine_push_ready(struct instance *in, uint32_t op)
{
    CHECK(in->ops[op].state == OP_WAITING);
    in->ops[op].state = OP_READY;
    in->ready[in->tail++] = op;
}

static void engine_arm(const struct sched *s, struct instance *in)
{
    in->head = in->tail = in->running = 0;
    for (uint32_t i = 0; i < s->count; i++)
        in->ops[i] = (struct op_progress){.state = OP_WAITING};
    for (uint32_t i = 0; i < s->count; i++)
        if (!s->ops[i].preds && !engine_completed_from_outside(&s->ops[i]))
            engine_push_ready(in, i);
}

int engine_init(struct engine *e, const struct sched *s)
{
    CHECK(s->committed);
    *e = (struct engine){.sched = s};
    for (int i = 0; i < 2; i++) {
        struct instance *in = &e->instances[i];
        in->ops = calloc(s->count, sizeof *in->ops);
        in->ready = calloc(s->count, sizeof *in->ready);
        if (!in->ops || !in->ready) {
            engine_destroy(e);
            return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations",
                        s->count);
        }
        engine_arm(s, in);
    }
    return PCOLL_OK;
}

void engine_begin_at(struct engine *e, uint64_t round)
{
    CHECK(!e->current && !e->released);
    e->current = round;
}

void engine_destroy(struct engine *e)
{
    CHECK(!e->instances[0].ops || e->sched);
    for (int i = 0; i < 2; i++) {
        free(e->instances[i].ops);
        free(e->instances[i].ready);
        e->instances[i] = (struct instance){0};
    }
}

/* Complete an operation: count it at its successors, and make those ready whose gate
 * opens now. */
static void engine_finish(const struct sched *s, struct instance *in, uint32_t id)
{
    CHECK(in->ops[id].state != OP_DONE);
    const struct op *op = &s->ops[id];
    in->ops[id].state = OP_DONE;
    for (uint32_t i = 0; i < op->successors; i++) {
        uint32_t next = s->successor[op->first_successor + i];
        struct op_progress *p = &in->ops[next];
        CHECK(p->done_preds < s->ops[next].preds);
        if (++p->done_preds == s->ops[next].need && p->state == OP_WAITING)
            engine_push_ready(in, next);
    }
}

enum engine_outcome engine_complete(struct engine *e, uint64_t round, int op)
{
    CHECK(engine_has_op(e, op));
    if (round < e->current) {
        e->dropped++;
        return ENGINE_DROPPED;
    }
    if (round > e->current + 1)
        return ENGINE_IMPOSSIBLE;
    struct instance *in = &e->instances[round % 2];
    enum op_state state = in->ops[op].state;
    bool outside = engine_completed_from_outside(&e->sched->ops[op]);
    if (state == OP_DONE || (!outside && state != OP_RUNNING)) {
        e->dropped++;
        return ENGINE_DROPPED;
    }
    CHECK(state != OP_RUNNING || in->running > 0);
    if (state == OP_RUNNING)
        in->running--;
    engine_finish(e->sched, in, (uint32_t)op);
    if (round == e->current)
        return ENGINE_TAKEN;
    e->early++;
    return ENGINE_KEPT;
}

void engine_release(struct engine *e)
{
    CHECK(!e->released);
    e->released = true;
}

int engine_next(struct engine *e)
{
    CHECK(e->instances[e->current % 2].head <= e->instances[e->current % 2].tail);
    struct instance *in = &e->instances[e->current % 2];
    while (e->released && in->head < in->tail) {
        uint32_t id = in->ready[in->head++];
        if (e->sched->ops[id].kind == OP_NOP) {
            engine_finish(e->sched, in, id);
            continue;
        }
        in->ops[id].state = OP_RUNNING;
        in->running++;
        CHECK(in->running <= e->sched->count);
        return (int)id;
    }
    return -1;
}

bool engine_over(const struct engine *e)
{
    CHECK(engine_has_op(e, e->sched->end));
    const struct instance *in = &e->instances[e->current % 2];
    return in->ops[e->sched->end].state == OP_DONE && !in->running &&
           in->head == in->tail;
}

void engine_advance(struct engine *e)
{
    CHECK(!e->instances[e->current % 2].running);
    CHECK(e->released);
    engine_arm(e->sched, &e->instances[e->current % 2]);
    e->current++;
    e->released = false;
}

enum op_state engine_state(const struct engine *e, uint64_t round, int op)
{
    CHECK(engine_has_op(e, op));
    CHECK(round >= e->current && round <= e->current + 1);
    return e->instances[round % 2].ops[op].state;
}

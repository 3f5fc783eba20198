/* SPDX-License-Identifier: Apache-2.0 */
/* Looking for memory that is used by two operations at once. */
#include "user_schedule/races.h"

#include <stdlib.h>

#include "base/error.h"

struct search {
    const struct builder *d;
    const struct sched *s;
    uint32_t *order;  /* topological */
    uint32_t *counts; /* how many predecessors are left until an operation is certain */
    uint32_t *queue;
};

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const char *p = a, *q = b;
    return p && q && a_bytes && b_bytes && p < q + b_bytes && q < p + a_bytes;
}

static bool accumulate(const struct builder_op *a, const struct builder_op *b)
{
    return a->kind == OP_REDUCE && b->kind == OP_REDUCE && a->into == b->into &&
           a->bytes == b->bytes && a->dtype == b->dtype && a->op == b->op;
}

static bool conflict(const struct builder_op *a, const struct builder_op *b)
{
    return overlap(a->into, a->bytes, b->from, b->bytes) ||
           overlap(a->from, a->bytes, b->into, b->bytes) ||
           (overlap(a->into, a->bytes, b->into, b->bytes) && !accumulate(a, b));
}

static bool uses_memory(const struct builder_op *op)
{
    return (op->from || op->into) && op->bytes;
}

/* Set counts[x] to 0 for every x that comes after a for certain. */
static void follow(struct search *r, uint32_t a)
{
    uint32_t head = 0, tail = 0;
    for (uint32_t i = 0; i < r->s->count; i++) {
        const struct op *op = &r->s->ops[i];
        r->counts[i] = op->preds - op->need + 1;
    }
    r->queue[tail++] = a;
    while (head < tail) {
        const struct op *op = &r->s->ops[r->queue[head++]];
        for (uint32_t i = 0; i < op->successors; i++) {
            uint32_t next = r->s->successor[op->first_successor + i];
            if (r->counts[next] && --r->counts[next] == 0)
                r->queue[tail++] = next;
        }
    }
}

static int report(const struct builder *d, uint32_t a, uint32_t b)
{
    uint32_t first = a < b ? a : b, second = a < b ? b : a;
    return fail(
        PCOLL_EINVAL,
        "operations %u (%s %s) and %u (%s %s) use the same memory, at least one "
        "of them writes, and nothing says which comes first: add one to the "
        "predecessors of the other",
        first, op_kind_name(d->ops[first].kind), d->ops[first].label, second,
        op_kind_name(d->ops[second].kind), d->ops[second].label);
}

/* The operation at this place of the order against all behind it. */
static int check_one(struct search *r, uint32_t at)
{
    uint32_t a = r->order[at];
    bool followed = false;
    for (uint32_t i = at + 1; i < r->s->count; i++) {
        uint32_t b = r->order[i];
        if (b >= r->d->count || !conflict(&r->d->ops[a], &r->d->ops[b]))
            continue;
        if (!followed)
            follow(r, a);
        followed = true;
        if (r->counts[b])
            return report(r->d, a, b);
    }
    return PCOLL_OK;
}

int races_check(const struct builder *d, const struct sched *s)
{
    uint32_t *memory = malloc(3 * (size_t)s->count * sizeof *memory);
    if (!memory)
        return fail(PCOLL_ENOMEM, "no memory to check %u operations", s->count);
    struct search r = {.d = d,
                       .s = s,
                       .order = memory,
                       .counts = memory + s->count,
                       .queue = memory + 2 * (size_t)s->count};
    int rc = PCOLL_OK;
    sched_order(s, r.order, r.counts);
    for (uint32_t i = 0; i < s->count && rc == PCOLL_OK; i++)
        if (r.order[i] < d->count && uses_memory(&d->ops[r.order[i]]))
            rc = check_one(&r, i);
    free(memory);
    return rc;
}

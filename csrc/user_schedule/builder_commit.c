/* SPDX-License-Identifier: Apache-2.0 */
/* From the builder to a schedule that the engine can run. */
#include "user_schedule/builder.h"

#include <stdlib.h>

#include "base/error.h"

/*
 * Do two operations of a schedule use the same memory, at least one of them to write,
 * without an order between them? Then its result would depend on chance.
 *
 * A comes before B for certain if B's gate cannot open without A: if so many of its n
 * predecessors are A, or come after A for certain, that less than the k that it needs
 * are left over. Reductions with the same op into the same memory may come in any
 * order: operations on one rank are carried out one at a time.
 *
 * Takes time quadratic in the number of operations at worst.
 */

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

static int races_check(const struct builder *d, const struct sched *s)
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

static int by_target(const void *a, const void *b)
{
    const struct builder_edge *x = a, *y = b;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

/* Predecessors are a set: naming one twice counts once. */
static void sort_edges(struct builder *d)
{
    uint32_t kept = 0;
    if (d->edge_count)
        qsort(d->edges, d->edge_count, sizeof *d->edges, by_target);
    for (uint32_t i = 0; i < d->edge_count; i++)
        if (!i || by_target(&d->edges[i], &d->edges[kept - 1]))
            d->edges[kept++] = d->edges[i];
    d->edge_count = kept;
}

static void add_op(struct sched *s, const struct builder_op *op, int id)
{
    switch (op->kind) {
    case OP_SEND:
        sched_send(s, op->label, op->peer, op->edge, id);
        return;
    case OP_RECV:
        sched_recv(s, op->label, op->peer, op->edge, id);
        return;
    case OP_REDUCE:
        sched_reduce(s, op->label, id, id, id);
        return;
    case OP_COPY:
        sched_copy(s, op->label, id, id);
        return;
    case OP_TIMER:
        sched_timer(s, op->label);
        return;
    case OP_NOP:
    case OP_NATIVE:
        sched_nop(s, op->label);
    }
}

/* The end comes after every operation that no other one follows. The others of a k-of-n
 * gate may be later still: a run is over when the end is done and nothing is running,
 * so nothing that waits can be left either. */
static void add_end(struct sched *s)
{
    uint32_t count = s->count;
    bool *followed = calloc(count + 1, sizeof *followed);
    int end = sched_nop(s, "all done");
    s->failed = s->failed || !followed;
    for (uint32_t i = 0; i < s->edge_count && followed; i++)
        followed[s->edges[i].from] = true;
    for (uint32_t i = 0; i < count && followed; i++)
        if (!followed[i])
            sched_after(s, end, (int)i);
    free(followed);
    if (!s->failed)
        sched_need(s, end, s->ops[end].preds);
    sched_end(s, end);
}

struct sched *builder_build(struct builder *d)
{
    struct sched *s = sched_create();
    if (!s || messages_number(d) != PCOLL_OK) {
        sched_free(&s);
        return NULL;
    }
    sort_edges(d);
    for (uint32_t i = 0; i < d->count; i++)
        add_op(s, &d->ops[i], (int)i);
    for (uint32_t i = 0; i < d->edge_count; i++)
        sched_after(s, (int)d->edges[i].to, (int)d->edges[i].from);
    for (uint32_t i = 0; i < d->count && !s->failed; i++)
        sched_need(s, (int)i, d->ops[i].need ? d->ops[i].need : s->ops[i].preds);
    add_end(s);
    if (s->failed)
        sched_free(&s);
    return s;
}

static int no_memory(const struct builder *d)
{
    return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations", d->count);
}

/* A receive from this rank itself comes after its send: a cycle through it would wait
 * for ever. On a schedule of its own, since it would change the gate. */
static int check_own_messages(struct builder *d)
{
    struct sched *s = builder_build(d);
    if (!s)
        return no_memory(d);
    for (uint32_t i = 0; i < d->count; i++) {
        const struct builder_op *op = &d->ops[i];
        if (op->kind != OP_RECV || op->partner < 0)
            continue;
        sched_after(s, (int)i, op->partner);
        sched_need(s, (int)i, s->ops[i].preds);
    }
    int rc = sched_commit(s);
    sched_free(&s);
    return rc;
}

int builder_commit(struct builder *d, struct sched **out)
{
    struct sched *s = builder_build(d);
    if (!s)
        return no_memory(d);
    int rc = sched_commit(s);
    if (rc == PCOLL_OK)
        rc = check_own_messages(d);
    if (rc == PCOLL_OK)
        rc = races_check(d, s);
    if (rc == PCOLL_OK)
        *out = s;
    else
        sched_free(&s);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Building, checking and committing a schedule; see builder.h. */
#include "user_schedule/builder.h"

#include <stdlib.h>

#include "base/error.h"

/*
 * Races: two operations use the same memory, at least one of them writes, and no order
 * is defined between them. The result would then depend on timing.
 *
 * A precedes B if B's gate cannot open without A: that is, if fewer than k of B's n
 * predecessors are left when A and all operations that A precedes are taken away.
 * Reductions with the same op into the same memory may run in any order, since a rank
 * executes one operation at a time.
 *
 * The check takes at most quadratic time in the number of operations.
 */

struct race_search {
    const struct builder *builder;
    const struct sched *sched;
    uint32_t *order;  /* all operations, in topological order */
    uint32_t *counts; /* predecessors missing until an operation is known to follow */
    uint32_t *queue;
};

static bool builder_overlap(const void *a, size_t a_bytes, const void *b,
                            size_t b_bytes)
{
    const char *p = a, *q = b;
    return p && q && a_bytes && b_bytes && p < q + b_bytes && q < p + a_bytes;
}

static bool builder_accumulate(const struct builder_op *a, const struct builder_op *b)
{
    return a->kind == OP_REDUCE && b->kind == OP_REDUCE && a->into == b->into &&
           a->bytes == b->bytes && a->dtype == b->dtype && a->op == b->op;
}

static bool builder_conflict(const struct builder_op *a, const struct builder_op *b)
{
    return builder_overlap(a->into, a->bytes, b->from, b->bytes) ||
           builder_overlap(a->from, a->bytes, b->into, b->bytes) ||
           (builder_overlap(a->into, a->bytes, b->into, b->bytes) &&
            !builder_accumulate(a, b));
}

static bool builder_uses_memory(const struct builder_op *op)
{
    return (op->from || op->into) && op->bytes;
}

/* Set counts[x] to 0 for every operation x that a precedes. */
static void builder_follow(struct race_search *r, uint32_t a)
{
    uint32_t head = 0, tail = 0;
    for (uint32_t i = 0; i < r->sched->count; i++) {
        const struct op *op = &r->sched->ops[i];
        r->counts[i] = op->preds - op->need + 1;
    }
    r->queue[tail++] = a;
    while (head < tail) {
        const struct op *op = &r->sched->ops[r->queue[head++]];
        for (uint32_t i = 0; i < op->successors; i++) {
            uint32_t next = r->sched->successor[op->first_successor + i];
            if (r->counts[next] && --r->counts[next] == 0)
                r->queue[tail++] = next;
        }
    }
}

static int builder_report_race(const struct builder *builder, uint32_t a, uint32_t b)
{
    uint32_t first = a < b ? a : b, second = a < b ? b : a;
    return fail(
        PCOLL_EINVAL,
        "operations %u (%s %s) and %u (%s %s) use the same memory, at least one "
        "of them writes, and nothing says which comes first: add one to the "
        "predecessors of the other",
        first, op_kind_name(builder->ops[first].kind), builder->ops[first].label,
        second, op_kind_name(builder->ops[second].kind), builder->ops[second].label);
}

/* Check the operation at this position of the order against all later ones. */
static int builder_check_race(struct race_search *r, uint32_t at)
{
    uint32_t a = r->order[at];
    bool followed = false;
    for (uint32_t i = at + 1; i < r->sched->count; i++) {
        uint32_t b = r->order[i];
        if (b >= r->builder->count ||
            !builder_conflict(&r->builder->ops[a], &r->builder->ops[b]))
            continue;
        if (!followed)
            builder_follow(r, a);
        followed = true;
        if (r->counts[b])
            return builder_report_race(r->builder, a, b);
    }
    return PCOLL_OK;
}

static int builder_check_races(const struct builder *builder, const struct sched *sched)
{
    uint32_t *memory = malloc(3 * (size_t)sched->count * sizeof *memory);
    if (!memory)
        return fail(PCOLL_ENOMEM, "no memory to check %u operations", sched->count);
    struct race_search r = {.builder = builder,
                            .sched = sched,
                            .order = memory,
                            .counts = memory + sched->count,
                            .queue = memory + 2 * (size_t)sched->count};
    int rc = PCOLL_OK;
    sched_order(sched, r.order, r.counts);
    for (uint32_t i = 0; i < sched->count && rc == PCOLL_OK; i++)
        if (r.order[i] < builder->count &&
            builder_uses_memory(&builder->ops[r.order[i]]))
            rc = builder_check_race(&r, i);
    free(memory);
    return rc;
}

static int builder_compare_edges(const void *a, const void *b)
{
    const struct builder_edge *x = a, *y = b;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

/* Sort the edges and drop repeated ones: predecessors are a set. */
static void builder_sort_edges(struct builder *builder)
{
    uint32_t kept = 0;
    if (builder->edge_count)
        qsort(builder->edges, builder->edge_count, sizeof *builder->edges,
              builder_compare_edges);
    for (uint32_t i = 0; i < builder->edge_count; i++)
        if (!i || builder_compare_edges(&builder->edges[i], &builder->edges[kept - 1]))
            builder->edges[kept++] = builder->edges[i];
    builder->edge_count = kept;
}

static void builder_add_op(struct sched *sched, const struct builder_op *op, int id)
{
    switch (op->kind) {
    case OP_SEND:
        sched_send(sched, op->label, op->peer, op->edge, id);
        return;
    case OP_RECV:
        sched_recv(sched, op->label, op->peer, op->edge, id);
        return;
    case OP_REDUCE:
        sched_reduce(sched, op->label, id, id, id);
        return;
    case OP_COPY:
        sched_copy(sched, op->label, id, id);
        return;
    case OP_TIMER:
        sched_timer(sched, op->label);
        return;
    case OP_NOP:
    case OP_NATIVE:
        sched_nop(sched, op->label);
    }
}

/* Add the end, which follows every operation without a successor. Operations that a
 * k-of-n gate did not need may complete after it: a run is over when the end is
 * complete and nothing is running, so nothing can be left waiting either. */
static void builder_add_end(struct sched *sched)
{
    uint32_t count = sched->count;
    bool *followed = calloc(count + 1, sizeof *followed);
    int end = sched_nop(sched, "all done");
    sched->failed = sched->failed || !followed;
    for (uint32_t i = 0; i < sched->edge_count && followed; i++)
        followed[sched->edges[i].from] = true;
    for (uint32_t i = 0; i < count && followed; i++)
        if (!followed[i])
            sched_after(sched, end, (int)i);
    free(followed);
    if (!sched->failed)
        sched_need(sched, end, sched->ops[end].preds);
    sched_end(sched, end);
}

struct sched *builder_build(struct builder *builder)
{
    struct sched *sched = sched_create();
    if (!sched || builder_number_messages(builder) != PCOLL_OK) {
        sched_free(&sched);
        return NULL;
    }
    builder_sort_edges(builder);
    for (uint32_t i = 0; i < builder->count; i++)
        builder_add_op(sched, &builder->ops[i], (int)i);
    for (uint32_t i = 0; i < builder->edge_count; i++)
        sched_after(sched, (int)builder->edges[i].to, (int)builder->edges[i].from);
    for (uint32_t i = 0; i < builder->count && !sched->failed; i++)
        sched_need(sched, (int)i,
                   builder->ops[i].need ? builder->ops[i].need : sched->ops[i].preds);
    builder_add_end(sched);
    if (sched->failed)
        sched_free(&sched);
    return sched;
}

static int builder_no_memory(const struct builder *builder)
{
    return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations",
                builder->count);
}

/* A receive from this rank itself follows its send: a cycle through both would wait
 * forever. Check it on a separate schedule, since the extra edge changes the gate. */
static int builder_check_own_messages(struct builder *builder)
{
    struct sched *sched = builder_build(builder);
    if (!sched)
        return builder_no_memory(builder);
    for (uint32_t i = 0; i < builder->count; i++) {
        const struct builder_op *op = &builder->ops[i];
        if (op->kind != OP_RECV || op->partner < 0)
            continue;
        sched_after(sched, (int)i, op->partner);
        sched_need(sched, (int)i, sched->ops[i].preds);
    }
    int rc = sched_commit(sched);
    sched_free(&sched);
    return rc;
}

int builder_commit(struct builder *builder, struct sched **out)
{
    struct sched *sched = builder_build(builder);
    if (!sched)
        return builder_no_memory(builder);
    int rc = sched_commit(sched);
    if (rc == PCOLL_OK)
        rc = builder_check_own_messages(builder);
    if (rc == PCOLL_OK)
        rc = builder_check_races(builder, sched);
    if (rc == PCOLL_OK)
        *out = sched;
    else
        sched_free(&sched);
    return rc;
}

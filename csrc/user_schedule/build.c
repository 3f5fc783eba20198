/* SPDX-License-Identifier: Apache-2.0 */
/* From the builder to a schedule that the engine can run. */
#include <stdlib.h>

#include "base/error.h"
#include "user_schedule/builder.h"
#include "user_schedule/matching.h"
#include "user_schedule/races.h"

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

/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a schedule down, one operation at a time. */
#include "user_schedule/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

/* Half of what a message can be. */
static const size_t most_bytes = (size_t)1 << 36;

/* Labels end up in lines of text. */
static char *copy_label(const char *text)
{
    char *label = strdup(text);
    for (char *c = label; label && *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    return label;
}

static int grow(void **items, uint32_t count, uint32_t *capacity, size_t size)
{
    if (count < *capacity)
        return PCOLL_OK;
    uint32_t wanted = *capacity ? 2 * *capacity : 16;
    void *bigger = realloc(*items, wanted * size);
    if (!bigger)
        return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations", wanted);
    *items = bigger;
    *capacity = wanted;
    return PCOLL_OK;
}

static int add(struct builder *d, struct builder_op op, const char *label, int *id)
{
    void *ops = d->ops;
    int rc = grow(&ops, d->count, &d->capacity, sizeof *d->ops);
    d->ops = ops;
    if (rc != PCOLL_OK)
        return rc;
    if (!(op.label = copy_label(label)))
        return fail(PCOLL_ENOMEM, "no memory for a label");
    op.partner = -1;
    *id = (int)d->count;
    d->ops[d->count++] = op;
    return PCOLL_OK;
}

/* The size of a piece of memory, which is only looked at when the schedule runs. */
static int set_shape(struct builder_op *op, const pcoll_buffer *shape)
{
    const struct dtype *dtype = dtype_find(shape->dtype);
    if (!dtype)
        return fail(PCOLL_EINVAL, "dtype: unknown value %d", shape->dtype);
    if (shape->count > most_bytes / dtype->size)
        return fail(PCOLL_EINVAL, "%llu elements are more than can be sent",
                    (unsigned long long)shape->count);
    op->count = shape->count;
    op->dtype = shape->dtype;
    op->bytes = shape->count * dtype->size;
    bool reads = op->kind != OP_RECV, writes = op->kind != OP_SEND;
    if (op->bytes && ((reads && !op->from) || (writes && !op->into)))
        return fail(PCOLL_EINVAL, "expected a buffer, got NULL");
    return PCOLL_OK;
}

static int add_message(struct builder *d, struct builder_op op,
                       const pcoll_buffer *shape, const char *label, int *id)
{
    const char *argument = op.kind == OP_SEND ? "dest" : "source";
    char text[64];
    if (op.peer < 0 || (uint32_t)op.peer >= d->size)
        return fail(PCOLL_EINVAL, "%s: expected a rank from 0 to %u, got %d", argument,
                    d->size - 1, op.peer);
    if (op.tag < 0)
        return fail(PCOLL_EINVAL, "tag: expected 0 or more, got %d", op.tag);
    int rc = set_shape(&op, shape);
    if (rc != PCOLL_OK)
        return rc;
    snprintf(text, sizeof text, "%llu %s tag %d", (unsigned long long)op.count,
             dtype_names[op.dtype], op.tag);
    return add(d, op, label ? label : text, id);
}

int builder_send(struct builder *d, const void *from, const pcoll_buffer *shape,
                 int dest, int tag, const char *label, int *op)
{
    return add_message(
        d, (struct builder_op){.kind = OP_SEND, .from = from, .peer = dest, .tag = tag},
        shape, label, op);
}

int builder_recv(struct builder *d, void *into, const pcoll_buffer *shape, int source,
                 int tag, const char *label, int *op)
{
    return add_message(
        d,
        (struct builder_op){.kind = OP_RECV, .into = into, .peer = source, .tag = tag},
        shape, label, op);
}

/* Kernels and copies take memory that is the same or apart. */
static int check_apart(const struct builder_op *op)
{
    const char *a = op->from, *b = op->into;
    if (a == b || !op->bytes || a + op->bytes <= b || b + op->bytes <= a)
        return PCOLL_OK;
    return fail(PCOLL_EINVAL,
                "into: expected the memory of buf or memory apart from it, got some "
                "that overlaps it");
}

int builder_reduce(struct builder *d, const void *from, void *into,
                   const pcoll_buffer *shape, const char *label, int *op)
{
    struct builder_op o = {
        .kind = OP_REDUCE, .from = from, .into = into, .op = shape->op};
    char text[64];
    int rc = set_shape(&o, shape);
    if (rc == PCOLL_OK)
        rc = check_apart(&o);
    if (rc != PCOLL_OK)
        return rc;
    if ((rc = pcoll_op_check(shape->op, shape->dtype)) != PCOLL_OK)
        return rc;
    snprintf(text, sizeof text, "%s %llu %s", op_names[o.op],
             (unsigned long long)o.count, dtype_names[o.dtype]);
    return add(d, o, label ? label : text, op);
}

int builder_copy(struct builder *d, const void *from, void *into,
                 const pcoll_buffer *shape, const char *label, int *op)
{
    struct builder_op o = {.kind = OP_COPY, .from = from, .into = into};
    char text[64];
    int rc = set_shape(&o, shape);
    if (rc == PCOLL_OK)
        rc = check_apart(&o);
    if (rc != PCOLL_OK)
        return rc;
    snprintf(text, sizeof text, "%llu %s", (unsigned long long)o.count,
             dtype_names[o.dtype]);
    return add(d, o, label ? label : text, op);
}

int builder_nop(struct builder *d, const char *label, int *op)
{
    return add(d, (struct builder_op){.kind = OP_NOP}, label ? label : "", op);
}

int builder_timer(struct builder *d, double seconds, const char *label, int *op)
{
    char text[64];
    if (!(seconds >= 0 && seconds <= PCOLL_LONGEST_TIME))
        return fail(PCOLL_EINVAL, "seconds: expected 0 to %g, got %g",
                    PCOLL_LONGEST_TIME, seconds);
    snprintf(text, sizeof text, "%g s", seconds);
    return add(d,
               (struct builder_op){.kind = OP_TIMER, .delay = seconds_to_ns(seconds)},
               label ? label : text, op);
}

static bool known(const struct builder *d, int op)
{
    return op >= 0 && (uint32_t)op < d->count;
}

int builder_after(struct builder *d, int op, const int32_t *predecessors, int count,
                  uint32_t k)
{
    for (int i = -1; i < count; i++) {
        int id = i < 0 ? op : predecessors[i];
        if (!known(d, id))
            return fail(PCOLL_EINVAL, "%s: expected an operation from 0 to %d, got %d",
                        i < 0 ? "op" : "predecessors", (int)d->count - 1, id);
    }
    for (int i = 0; i < count; i++) {
        void *edges = d->edges;
        int rc = grow(&edges, d->edge_count, &d->edge_capacity, sizeof *d->edges);
        d->edges = edges;
        if (rc != PCOLL_OK)
            return rc;
        d->edges[d->edge_count++] = (struct builder_edge){
            .from = (uint32_t)predecessors[i], .to = (uint32_t)op};
    }
    if (k)
        d->ops[op].need = k;
    return PCOLL_OK;
}

void builder_destroy(struct builder *d)
{
    for (uint32_t i = 0; i < d->count; i++)
        free(d->ops[i].label);
    free(d->ops);
    free(d->edges);
    *d = (struct builder){.rank = d->rank, .size = d->size};
}

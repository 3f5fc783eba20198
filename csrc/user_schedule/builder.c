/* SPDX-License-Identifier: Apache-2.0 */
/* Adding operations to a builder; see builder.h. */
#include "user_schedule/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

/* Half of the largest message. */
static const size_t most_bytes = (size_t)1 << 36;

/* Copy a label, without control characters: it gets part of lines of text. */
static char *builder_copy_label(const char *text)
{
    char *label = strdup(text);
    for (char *c = label; label && *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
    return label;
}

static int builder_grow(void **items, uint32_t count, uint32_t *capacity, size_t size)
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

static int builder_add(struct builder *builder, struct builder_op op, const char *label,
                       int *id)
{
    void *ops = builder->ops;
    int rc =
        builder_grow(&ops, builder->count, &builder->capacity, sizeof *builder->ops);
    builder->ops = ops;
    if (rc != PCOLL_OK)
        return rc;
    if (!(op.label = builder_copy_label(label)))
        return fail(PCOLL_ENOMEM, "no memory for a label");
    op.partner = -1;
    *id = (int)builder->count;
    builder->ops[builder->count++] = op;
    return PCOLL_OK;
}

/* Check and set the shape of the memory, which is read only when the schedule runs. */
static int builder_set_shape(struct builder_op *op, const pcoll_buffer *shape)
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
        return fail_null(reads && !op->from ? "from" : "into", 0);
    return PCOLL_OK;
}

static int builder_add_message(struct builder *builder, struct builder_op op,
                               const pcoll_buffer *shape, const char *label, int *id)
{
    const char *argument = op.kind == OP_SEND ? "dest" : "source";
    char text[64];
    if (op.peer < 0 || (uint32_t)op.peer >= builder->size)
        return fail(PCOLL_EINVAL, "%s: expected a rank from 0 to %u, got %d", argument,
                    builder->size - 1, op.peer);
    if (op.tag < 0)
        return fail(PCOLL_EINVAL, "tag: expected 0 or more, got %d", op.tag);
    int rc = builder_set_shape(&op, shape);
    if (rc != PCOLL_OK)
        return rc;
    snprintf(text, sizeof text, "%llu %s tag %d", (unsigned long long)op.count,
             dtype_names[op.dtype], op.tag);
    return builder_add(builder, op, label ? label : text, id);
}

int builder_send(struct builder *builder, const void *from, const pcoll_buffer *shape,
                 int dest, int tag, const char *label, int *op)
{
    return builder_add_message(
        builder,
        (struct builder_op){.kind = OP_SEND, .from = from, .peer = dest, .tag = tag},
        shape, label, op);
}

int builder_recv(struct builder *builder, void *into, const pcoll_buffer *shape,
                 int source, int tag, const char *label, int *op)
{
    return builder_add_message(
        builder,
        (struct builder_op){.kind = OP_RECV, .into = into, .peer = source, .tag = tag},
        shape, label, op);
}

/* Kernels and copies need memory that is identical or disjoint. */
static int builder_check_overlap(const struct builder_op *op)
{
    const char *a = op->from, *b = op->into;
    if (a == b || !op->bytes || a + op->bytes <= b || b + op->bytes <= a)
        return PCOLL_OK;
    return fail(PCOLL_EINVAL,
                "into: expected the memory of buf or memory apart from it, got some "
                "that overlaps it");
}

static int builder_add_local(struct builder *builder, struct builder_op op,
                             const pcoll_buffer *shape, const char *label, int *id)
{
    bool reduces = op.kind == OP_REDUCE;
    char text[64];
    int rc = builder_set_shape(&op, shape);
    if (rc == PCOLL_OK)
        rc = builder_check_overlap(&op);
    if (rc == PCOLL_OK && reduces)
        rc = pcoll_op_check(op.op, op.dtype);
    if (rc != PCOLL_OK)
        return rc;
    snprintf(text, sizeof text, "%s%s%llu %s", reduces ? op_names[op.op] : "",
             reduces ? " " : "", (unsigned long long)op.count, dtype_names[op.dtype]);
    return builder_add(builder, op, label ? label : text, id);
}

int builder_reduce(struct builder *builder, const void *from, void *into,
                   const pcoll_buffer *shape, const char *label, int *op)
{
    struct builder_op reduce = {
        .kind = OP_REDUCE, .from = from, .into = into, .op = shape->op};
    return builder_add_local(builder, reduce, shape, label, op);
}

int builder_copy(struct builder *builder, const void *from, void *into,
                 const pcoll_buffer *shape, const char *label, int *op)
{
    struct builder_op copy = {.kind = OP_COPY, .from = from, .into = into};
    return builder_add_local(builder, copy, shape, label, op);
}

int builder_nop(struct builder *builder, const char *label, int *op)
{
    return builder_add(builder, (struct builder_op){.kind = OP_NOP}, label ? label : "",
                       op);
}

int builder_timer(struct builder *builder, double seconds, const char *label, int *op)
{
    char text[64];
    if (!(seconds >= 0 && seconds <= PCOLL_LONGEST_TIME))
        return fail(PCOLL_EINVAL, "seconds: expected 0 to %g, got %g",
                    PCOLL_LONGEST_TIME, seconds);
    snprintf(text, sizeof text, "%g s", seconds);
    return builder_add(
        builder,
        (struct builder_op){.kind = OP_TIMER, .delay = clock_from_seconds(seconds)},
        label ? label : text, op);
}

static bool builder_knows(const struct builder *builder, int op)
{
    return op >= 0 && (uint32_t)op < builder->count;
}

int builder_after(struct builder *builder, int op, const int32_t *predecessors,
                  int count, uint32_t k)
{
    if (count > 0 && !predecessors)
        return fail_null("predecessors", 0);
    for (int i = -1; i < count; i++) {
        int id = i < 0 ? op : predecessors[i];
        if (!builder_knows(builder, id))
            return fail(PCOLL_EINVAL, "%s: expected an operation from 0 to %d, got %d",
                        i < 0 ? "op" : "predecessors", (int)builder->count - 1, id);
    }
    for (int i = 0; i < count; i++) {
        void *edges = builder->edges;
        int rc = builder_grow(&edges, builder->edge_count, &builder->edge_capacity,
                              sizeof *builder->edges);
        builder->edges = edges;
        if (rc != PCOLL_OK)
            return rc;
        builder->edges[builder->edge_count++] = (struct builder_edge){
            .from = (uint32_t)predecessors[i], .to = (uint32_t)op};
    }
    if (k)
        builder->ops[op].need = k;
    return PCOLL_OK;
}

void builder_destroy(struct builder *builder)
{
    for (uint32_t i = 0; i < builder->count; i++)
        free(builder->ops[i].label);
    free(builder->ops);
    free(builder->edges);
    *builder = (struct builder){.rank = builder->rank, .size = builder->size};
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Adding operations, numbering and comparing messages, committing; see user_schedule.h. */
#include "user_schedule/user_schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"

/* Half of the largest message. */
static const size_t most_bytes = (size_t)1 << 36;

static int builder_no_memory(const struct builder *builder)
{
    return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations",
                builder->count);
}

static bool builder_overlap(const void *a, size_t a_bytes, const void *b,
                            size_t b_bytes)
{
    const char *p = a, *q = b;
    return p && q && a_bytes && b_bytes && p < q + b_bytes && q < p + a_bytes;
}

static bool builder_is_message(const struct builder_op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECV;
}

/* Check an operation, and set the shape of its memory, which is read only when the schedule
 * runs. */
static int builder_check(const struct builder *builder, struct builder_op *op,
                         const pcoll_buffer *shape)
{
    if (op->kind == OP_TIMER &&
        !(op->seconds >= 0 && op->seconds <= PCOLL_LONGEST_TIME))
        return fail(PCOLL_EINVAL, "seconds: expected 0 to %g, got %g",
                    PCOLL_LONGEST_TIME, op->seconds);
    if (builder_is_message(op) && (op->peer < 0 || (uint32_t)op->peer >= builder->size))
        return fail(PCOLL_EINVAL, "%s: expected a rank from 0 to %u, got %d",
                    op->kind == OP_SEND ? "dest" : "source", builder->size - 1,
                    op->peer);
    if (op->tag < 0)
        return fail(PCOLL_EINVAL, "tag: expected 0 or more, got %d", op->tag);
    if (!shape)
        return PCOLL_OK;
    const struct dtype *dtype = dtype_find(shape->dtype);
    if (!dtype)
        return fail(PCOLL_EINVAL, "dtype: unknown value %d", shape->dtype);
    if (shape->count > most_bytes / dtype->size)
        return fail(PCOLL_EINVAL, "%llu elements are more than can be sent",
                    (unsigned long long)shape->count);
    op->count = shape->count;
    op->dtype = shape->dtype;
    op->op = shape->op;
    op->bytes = shape->count * dtype->size;
    bool reads = op->kind != OP_RECV, writes = op->kind != OP_SEND;
    if (op->bytes && ((reads && !op->from) || (writes && !op->into)))
        return fail_null(reads && !op->from ? "from" : "into", 0);
    /* Kernels and copies need memory that is identical or disjoint. */
    if (op->from != op->into &&
        builder_overlap(op->from, op->bytes, op->into, op->bytes))
        return fail(PCOLL_EINVAL,
                    "into: expected the memory of buf or memory apart from it, got "
                    "some that overlaps it");
    return op->kind == OP_REDUCE ? pcoll_op_check(op->op, op->dtype) : PCOLL_OK;
}

int builder_add(struct builder *builder, struct builder_op op,
                const pcoll_buffer *shape, const char *label, int *id)
{
    char text[64] = "";
    int rc = builder_check(builder, &op, shape);
    if (rc != PCOLL_OK)
        return rc;
    if (op.kind == OP_TIMER)
        snprintf(text, sizeof text, "%g s", op.seconds);
    else if (shape) {
        bool reduces = op.kind == OP_REDUCE;
        int used = snprintf(text, sizeof text, "%s%s%llu %s",
                            reduces ? op_names[op.op] : "", reduces ? " " : "",
                            (unsigned long long)op.count, dtype_names[op.dtype]);
        if (builder_is_message(&op))
            snprintf(text + used, sizeof text - (size_t)used, " tag %d", op.tag);
    }
    if (!sched_make_room(&builder->ops, builder->count, &builder->capacity,
                         sizeof *builder->ops) ||
        !(op.label = strdup(label ? label : text)))
        return builder_no_memory(builder);
    for (char *c = op.label; *c; c++) /* It gets part of lines of text. */
        if ((unsigned char)*c < ' ')
            *c = ' ';
    op.partner = -1;
    *id = (int)builder->count;
    builder->ops[builder->count++] = op;
    builder->messages += builder_is_message(&op);
    return PCOLL_OK;
}

int builder_after(struct builder *builder, int op, const int32_t *predecessors,
                  int count, uint32_t k)
{
    if (count > 0 && !predecessors)
        return fail_null("predecessors", 0);
    for (int i = -1; i < count; i++) {
        int id = i < 0 ? op : predecessors[i];
        if (id < 0 || (uint32_t)id >= builder->count)
            return fail(PCOLL_EINVAL, "%s: expected an operation from 0 to %d, got %d",
                        i < 0 ? "op" : "predecessors", (int)builder->count - 1, id);
    }
    for (int i = 0; i < count; i++) {
        if (!sched_make_room(&builder->edges, builder->edge_count,
                             &builder->edge_capacity, sizeof *builder->edges))
            return builder_no_memory(builder);
        builder->edges[builder->edge_count++] =
            (struct sched_edge){.from = (uint32_t)predecessors[i], .to = (uint32_t)op};
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

static int builder_compare_pairs(const void *a, const void *b)
{
    const struct builder_op *x = *(struct builder_op *const *)a,
                            *y = *(struct builder_op *const *)b;
    int kinds = (int)x->kind - (int)y->kind;
    return kinds ?: x->peer - y->peer ?: x->tag - y->tag ?: (x > y) - (x < y);
}

/* Number sorted messages, and pair the sends of this rank to itself with their receives. */
static void builder_number_edges(struct builder *builder, struct builder_op **list,
                                 uint32_t count)
{
    struct builder_op **own[2] = {0}; /* The first message of this rank to itself, … */
    uint32_t owns[2] = {0};           /* … and how many: sends, receives. */
    builder->tags = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct builder_op *op = list[i];
        const struct builder_op *last = i ? list[i - 1] : NULL;
        bool follows = last && last->kind == op->kind && last->peer == op->peer;
        bool repeats = follows && last->tag == op->tag;
        op->edge = follows ? last->edge + 1 : 0;
        op->ordinal = repeats ? last->ordinal + 1 : 0;
        if ((uint32_t)op->edge >= builder->tags)
            builder->tags = (uint32_t)op->edge + 1;
        if (op->peer == (int)builder->rank && !owns[op->kind == OP_RECV]++)
            own[op->kind == OP_RECV] = &list[i];
    }
    for (uint32_t i = 0; i < owns[0] && i < owns[1]; i++) {
        own[0][i]->partner = (int)(own[1][i] - builder->ops);
        own[1][i]->partner = (int)(own[0][i] - builder->ops);
    }
}

int builder_number_messages(struct builder *builder)
{
    struct builder_op **list = malloc((builder->count + 1) * sizeof *list);
    uint32_t count = 0;
    if (!list)
        return fail(PCOLL_ENOMEM, "no memory for %u messages", builder->count);
    for (uint32_t i = 0; i < builder->count; i++)
        if (builder_is_message(&builder->ops[i]))
            list[count++] = &builder->ops[i];
    if (count)
        qsort(list, count, sizeof *list, builder_compare_pairs);
    builder_number_edges(builder, list, count);
    free(list);
    return PCOLL_OK;
}

/* The words of a message. The lowest bit of the last word is the direction, the only difference
 * between the two sides of a message. */
enum builder_word { PAIR, NAME, COUNT, KIND };

static void builder_write_message(const struct builder *builder,
                                  const struct builder_op *op, uint64_t *w)
{
    uint64_t own = builder->rank, peer = (uint64_t)op->peer;
    bool sends = op->kind == OP_SEND;
    w[PAIR] = sends ? own << 32 | peer : peer << 32 | own;
    w[NAME] = (uint64_t)op->tag << 32 | op->ordinal;
    w[COUNT] = op->count;
    w[KIND] = (uint64_t)op->dtype << 1 | !sends;
}

void builder_digest_messages(const struct builder *builder,
                             uint64_t digest[DIGEST_WORDS])
{
    memset(digest, 0, DIGEST_WORDS * sizeof *digest);
    for (uint32_t i = 0; i < builder->count; i++) {
        uint64_t w[MESSAGE_WORDS];
        if (!builder_is_message(&builder->ops[i]))
            continue;
        builder_write_message(builder, &builder->ops[i], w);
        w[KIND] >>= 1;
        for (uint64_t k = 0; k < DIGEST_WORDS; k++) {
            uint64_t h = splitmix_mix(k + 1);
            for (int word = PAIR; word < MESSAGE_WORDS; word++)
                h = splitmix_mix(h ^ w[word]);
            digest[k] += builder->ops[i].kind == OP_SEND ? h : -h;
        }
    }
}

int builder_place_messages(const struct builder *builder, const uint64_t *counts,
                           uint64_t *before, uint64_t *total)
{
    *before = *total = 0;
    for (uint32_t i = 0; i < builder->size; i++) {
        bool sound = counts[i] <= UINT32_MAX &&
                     (i != builder->rank || counts[i] == builder->messages);
        if (!sound)
            return fail(PCOLL_EPROTOCOL, "rank %u is said to have %llu messages", i,
                        (unsigned long long)counts[i]);
        *before += i < builder->rank ? counts[i] : 0;
        *total += counts[i];
    }
    return PCOLL_OK;
}

void builder_write_messages(const struct builder *builder, uint64_t *words)
{
    for (uint32_t i = 0; i < builder->count; i++) {
        if (!builder_is_message(&builder->ops[i]))
            continue;
        builder_write_message(builder, &builder->ops[i], words);
        words += MESSAGE_WORDS;
    }
}

static int builder_compare_names(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    for (int i = PAIR; i <= NAME; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return (int)(x[KIND] & 1) - (int)(y[KIND] & 1);
}

static const char *builder_dtype_name(uint64_t kind)
{
    int dtype = (int)(kind >> 1);
    return dtype_find(dtype) ? dtype_names[dtype] : "?";
}

/* One side is missing: report how many messages with this tag each side has. */
static int builder_report_missing(const uint64_t *words, uint64_t count,
                                  const uint64_t *m)
{
    uint64_t sent = 0, received = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t *w = &words[i * MESSAGE_WORDS];
        if (w[PAIR] != m[PAIR] || w[NAME] >> 32 != m[NAME] >> 32)
            continue;
        sent += !(w[KIND] & 1);
        received += w[KIND] & 1;
    }
    unsigned from = (unsigned)(m[PAIR] >> 32), to = (unsigned)m[PAIR];
    return fail(
        PCOLL_EMISMATCH,
        "the schedules do not match: with tag %u, rank %u sends %llu messages to "
        "rank %u, and rank %u receives %llu from rank %u",
        (unsigned)(m[NAME] >> 32), from, (unsigned long long)sent, to, to,
        (unsigned long long)received, from);
}

static int builder_report_different(const uint64_t *send, const uint64_t *recv)
{
    unsigned from = (unsigned)(send[PAIR] >> 32), to = (unsigned)send[PAIR];
    return fail(
        PCOLL_EMISMATCH,
        "the schedules do not match: message %u with tag %u from rank %u to rank %u is "
        "%llu %s where rank %u sends it, and %llu %s where rank %u receives it",
        (unsigned)send[NAME], (unsigned)(send[NAME] >> 32), from, to,
        (unsigned long long)send[COUNT], builder_dtype_name(send[KIND]), from,
        (unsigned long long)recv[COUNT], builder_dtype_name(recv[KIND]), to);
}

int builder_compare_messages(uint64_t *words, uint64_t count)
{
    if (count)
        qsort(words, count, MESSAGE_WORDS * sizeof *words, builder_compare_names);
    for (uint64_t i = 0; i < count; i += 2) {
        const uint64_t *send = &words[i * MESSAGE_WORDS], *recv = send + MESSAGE_WORDS;
        if (i + 1 == count || send[PAIR] != recv[PAIR] || send[NAME] != recv[NAME])
            return builder_report_missing(words, count, send);
        if (send[COUNT] != recv[COUNT] || send[KIND] >> 1 != recv[KIND] >> 1)
            return builder_report_different(send, recv);
    }
    return PCOLL_OK;
}

/*
 * Races: two operations use the same memory, at least one of them writes, and no order is defined
 * between them. The result would then depend on timing.
 *
 * A precedes B if B's gate cannot open without A: that is, if fewer than k of B's n predecessors
 * are left when A and all operations that A precedes are taken away. Reductions with the same op
 * into the same memory may run in any order, since a rank executes one operation at a time.
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

static bool builder_conflict(const struct builder_op *a, const struct builder_op *b)
{
    bool accumulate = a->kind == OP_REDUCE && b->kind == OP_REDUCE &&
                      a->into == b->into && a->bytes == b->bytes &&
                      a->dtype == b->dtype && a->op == b->op;
    return builder_overlap(a->into, a->bytes, b->from, b->bytes) ||
           builder_overlap(a->from, a->bytes, b->into, b->bytes) ||
           (builder_overlap(a->into, a->bytes, b->into, b->bytes) && !accumulate);
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
        for (uint32_t i = op->first_successor; i < op[1].first_successor; i++) {
            uint32_t next = r->sched->successor[i];
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
        if (r.order[i] < builder->count && builder->ops[r.order[i]].bytes)
            rc = builder_check_race(&r, i);
    free(memory);
    return rc;
}

static int builder_compare_edges(const void *a, const void *b)
{
    const struct sched_edge *x = a, *y = b;
    int to = (x->to > y->to) - (x->to < y->to);
    return to ?: (x->from > y->from) - (x->from < y->from);
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

/* Add the end, which follows every operation without a successor. Operations that a k-of-n gate
 * did not need may complete after it: a run is over when the end is complete and nothing is
 * running, so nothing can be left waiting either. */
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
    sched_end(sched, end);
}

/* `own`: also let each receive from this rank itself follow its send, whatever its gate. */
static struct sched *builder_build_for(struct builder *builder, bool own)
{
    struct sched *sched = sched_create();
    if (!sched || builder_number_messages(builder) != PCOLL_OK) {
        sched_free(&sched);
        return NULL;
    }
    builder_sort_edges(builder);
    for (uint32_t i = 0; i < builder->count; i++) {
        const struct builder_op *op = &builder->ops[i];
        sched_add(sched, (struct op){.kind = op->kind,
                                     .label = op->label,
                                     .peer = op->peer,
                                     .edge = op->edge,
                                     .need = op->need});
    }
    for (uint32_t i = 0; i < builder->edge_count; i++)
        sched_after(sched, (int)builder->edges[i].to, (int)builder->edges[i].from);
    builder_add_end(sched);
    for (uint32_t i = 0; own && i < builder->count; i++)
        if (builder->ops[i].kind == OP_RECV && builder->ops[i].partner >= 0) {
            sched_after(sched, (int)i, builder->ops[i].partner);
            sched_op(sched, (int)i)->need = 0;
        }
    for (uint32_t i = 0; i < sched->count; i++) /* for texts */
        sched->ops[i].need = sched->ops[i].need ?: sched->ops[i].preds;
    if (sched->failed)
        sched_free(&sched);
    return sched;
}

struct sched *builder_build(struct builder *builder)
{
    return builder_build_for(builder, false);
}

/* A cycle through a receive from this rank itself and its send would wait forever. Check it on a
 * separate schedule, since the extra edges change the gates. */
int builder_commit(struct builder *builder, struct sched **out)
{
    struct sched *sched = builder_build(builder),
                 *own = builder_build_for(builder, true);
    int rc = sched && own ? sched_commit(sched) : builder_no_memory(builder);
    rc = rc ?: sched_commit(own) ?: builder_check_races(builder, sched);
    sched_free(&own);
    if (rc == PCOLL_OK)
        *out = sched;
    else
        sched_free(&sched);
    return rc;
}

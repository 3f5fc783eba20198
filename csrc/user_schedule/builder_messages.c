/* SPDX-License-Identifier: Apache-2.0 */
/* Numbering and comparing messages; see builder.h. */
#include "user_schedule/builder.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"

static bool builder_is_message(const struct builder_op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECV;
}

static int builder_order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* A message, for sorting. */
struct builder_entry {
    const struct builder_op *op;
    uint32_t id;
};

static bool builder_same_pair(const struct builder_entry *a,
                              const struct builder_entry *b)
{
    return a->op->kind == b->op->kind && a->op->peer == b->op->peer;
}

static int builder_compare_pairs(const void *a, const void *b)
{
    const struct builder_entry *x = a, *y = b;
    int order = builder_order(x->op->kind, y->op->kind);
    order = order ? order : builder_order(x->op->peer, y->op->peer);
    order = order ? order : builder_order(x->op->tag, y->op->tag);
    return order ? order : builder_order(x->id, y->id);
}

/* Pair the sends of this rank to itself with their receives. Both are sorted by
 * edge. */
static void builder_pair_own(struct builder *builder, const struct builder_entry *list,
                             uint32_t count)
{
    uint32_t send = 0, recv = 0;
    for (;;) {
        while (send < count && (list[send].op->kind != OP_SEND ||
                                list[send].op->peer != (int)builder->rank))
            send++;
        while (recv < count && (list[recv].op->kind != OP_RECV ||
                                list[recv].op->peer != (int)builder->rank))
            recv++;
        if (send >= count || recv >= count)
            return;
        builder->ops[list[send].id].partner = (int)list[recv].id;
        builder->ops[list[recv].id].partner = (int)list[send].id;
        send++;
        recv++;
    }
}

static void builder_number_edges(struct builder *builder,
                                 const struct builder_entry *list, uint32_t count)
{
    builder->tags = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct builder_op *op = &builder->ops[list[i].id];
        bool follows = i && builder_same_pair(&list[i - 1], &list[i]);
        bool repeats = follows && list[i - 1].op->tag == op->tag;
        op->edge = follows ? list[i - 1].op->edge + 1 : 0;
        op->ordinal = repeats ? list[i - 1].op->ordinal + 1 : 0;
        if ((uint32_t)op->edge >= builder->tags)
            builder->tags = (uint32_t)op->edge + 1;
    }
}

int builder_number_messages(struct builder *builder)
{
    struct builder_entry *list = malloc((builder->count + 1) * sizeof *list);
    uint32_t count = 0;
    if (!list)
        return fail(PCOLL_ENOMEM, "no memory for %u messages", builder->count);
    for (uint32_t i = 0; i < builder->count; i++)
        if (builder_is_message(&builder->ops[i]))
            list[count++] = (struct builder_entry){.op = &builder->ops[i], .id = i};
    if (count)
        qsort(list, count, sizeof *list, builder_compare_pairs);
    builder_number_edges(builder, list, count);
    builder_pair_own(builder, list, count);
    free(list);
    return PCOLL_OK;
}

/* The words of a message. The lowest bit of the last word is the direction, the only
 * difference between the two sides of a message. */
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
        bool sends = builder->ops[i].kind == OP_SEND;
        for (uint64_t k = 0; k < DIGEST_WORDS; k++) {
            uint64_t h = splitmix_mix(k + 1);
            h = splitmix_mix(h ^ w[PAIR]);
            h = splitmix_mix(h ^ w[NAME]);
            h = splitmix_mix(h ^ w[COUNT]);
            h = splitmix_mix(h ^ w[KIND] >> 1);
            digest[k] += sends ? h : -h;
        }
    }
}

uint32_t builder_count_messages(const struct builder *builder)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < builder->count; i++)
        count += builder_is_message(&builder->ops[i]);
    return count;
}

int builder_place_messages(const struct builder *builder, const uint64_t *counts,
                           uint64_t *before, uint64_t *total)
{
    *before = *total = 0;
    for (uint32_t i = 0; i < builder->size; i++) {
        bool sound =
            counts[i] <= UINT32_MAX &&
            (i != builder->rank || counts[i] == builder_count_messages(builder));
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

static bool builder_same_message(const uint64_t *a, const uint64_t *b)
{
    return a[PAIR] == b[PAIR] && a[NAME] == b[NAME];
}

static const char *builder_dtype_name(uint64_t kind)
{
    const struct dtype *dtype = dtype_find((int)(kind >> 1));
    return dtype ? dtype->name : "?";
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
        if (i + 1 == count || !builder_same_message(send, recv))
            return builder_report_missing(words, count, send);
        if (send[COUNT] != recv[COUNT] || send[KIND] >> 1 != recv[KIND] >> 1)
            return builder_report_different(send, recv);
    }
    return PCOLL_OK;
}

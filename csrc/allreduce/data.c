/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers and messages of a round; see data.h. */
#include "allreduce/data.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/memory.h"

/* A slice of a buffer. */
struct data_view {
    struct round_header *header;
    char *data;
    size_t begin, end; /* Offsets in the payload. */
};

static struct data_view data_view_of(const struct round_data *d, int buffer,
                                     const struct slice *slice)
{
    const struct payload *p = &d->shape->payload;
    const struct data_buffer *b = &d->buffers[buffer];
    struct data_view v = {
        .header = b->header, .data = b->data - b->displaced, .end = p->bytes};
    if (slice->of) {
        v.begin = payload_cut(p, slice->begin, slice->of);
        v.end = payload_cut(p, slice->end, slice->of);
    }
    if (buffer < BUFFER_TEMP || !d->plan.pieces)
        v.data += v.begin;
    return v;
}

static bool data_is_null(const struct round_data *d, const struct round_header *h)
{
    CHECK(h); /* A temporary has none before its first message. */
    return round_is_null(h, d->shape->ranks);
}

struct message data_outgoing(struct round_data *d, const struct op *op)
{
    struct data_view v = data_view_of(d, op->a, &op->slice);
    size_t bytes = v.end - v.begin;
    bool null = data_is_null(d, v.header), before = op->header == HEADER_BEFORE;
    if (op->header == HEADER_NONE)
        return (struct message){v.data, null ? 0 : bytes};
    size_t header = round_header_length(v.header, d->shape->ranks);
    char *encoded = (char *)(v.header + 1) - header;
    if (null)
        return (struct message){encoded, header};
    char *place = before ? v.data - header : v.data + bytes;
    if (place != encoded)
        memcpy(place, encoded, header);
    return (struct message){before ? place : v.data, header + bytes};
}

struct message data_incoming(struct round_data *d, const struct op *op)
{
    d->buffers[op->out].displaced = 0;
    struct data_view v = data_view_of(d, op->out, &op->slice);
    size_t bytes = v.end - v.begin, header = d->shape->header_bytes;
    if (op->header == HEADER_NONE)
        return (struct message){v.data, bytes};
    bool before = op->header == HEADER_BEFORE;
    if (d->shape->described)
        bytes = round_shape_capacity(d->shape); /* The sender may have another form. */
    return (struct message){before ? v.data - header : v.data, header + bytes};
}

size_t data_message_bytes(const struct round_data *d, const struct op *op)
{
    struct data_view v = data_view_of(d, BUFFER_RESULT, &op->slice);
    return v.end - v.begin +
           (op->header == HEADER_NONE ? 0 : sizeof(struct round_header));
}

/* Return the length of the header of a message that was received. One after the data
 * tells it; one before the data is as long as the message allows, which is unambiguous
 * because slices with headers before them are at least as long as a header
 * (plan.padded). */
static size_t data_header_length(const struct round_data *d, const struct op *op,
                                 const char *message, size_t bytes, size_t data)
{
    size_t least = sizeof(struct round_header);
    if (op->header == HEADER_AFTER)
        return round_header_length(message + bytes - least, d->shape->ranks);
    bool is_short = bytes == least || bytes == least + data;
    return is_short ? least : d->shape->header_bytes;
}

/* A temporary has the header where it was received. A published result has it at its place. */
int data_received(struct round_data *d, const struct op *op, size_t bytes,
                  uint64_t round)
{
    struct data_buffer *b = &d->buffers[op->out];
    struct data_view v = data_view_of(d, op->out, &op->slice);
    size_t data = v.end - v.begin, most = d->shape->header_bytes, header = 0;
    bool none = op->header == HEADER_NONE, before = op->header == HEADER_BEFORE;
    bool described = d->shape->described;
    const char *message = before ? v.data - most : v.data;
    size_t room = most + (described ? round_shape_capacity(d->shape) : data);
    if (!none && bytes >= sizeof *b->header && bytes <= room && bytes % 64 == 0)
        header = data_header_length(d, op, message, bytes, data);
    bool fits = described ? bytes >= header : bytes == header || bytes == header + data;
    if (!fits || (!none && !header))
        return fail(PCOLL_EPROTOCOL,
                    "rank %d sent a message of %zu bytes where %zu bytes of data and a "
                    "header of %d or %zu were expected",
                    op->peer, bytes, data, none ? 0 : (int)sizeof *b->header,
                    none ? 0 : most);
    size_t at = before ? 0 : bytes - header;
    if (!none && op->out >= BUFFER_TEMP)
        b->header = (struct round_header *)(message + at + header) - 1;
    int rc = none ? PCOLL_OK
                  : round_header_decode(b->header, message + at, header,
                                        d->shape->ranks, round);
    if (rc != PCOLL_OK) /* The header has no sets, so nothing may look at them. */
        return rc;
    size_t expected = header + (data_is_null(d, b->header) ? 0 : data);
    bool other = described && /* Its first message has the sender's form. */
                 round_intents_differ(b->header->intent |
                                      d->buffers[BUFFER_CONTRIBUTION].header->intent);
    if (bytes != expected && !other)
        return fail(PCOLL_EPROTOCOL,
                    "rank %d sent a message of %zu bytes with a header for %zu",
                    op->peer, bytes, expected);
    if (before)
        b->displaced = most - header;
    return PCOLL_OK;
}

/* Return the header before the data of a buffer, which is written from now on. */
static struct round_header *data_own_header(struct data_buffer *b)
{
    return b->header = (struct round_header *)(void *)b->data - 1;
}

int data_reduce(struct round_data *d, const struct op *op)
{
    struct data_view a = data_view_of(d, op->a, &op->slice),
                     b = data_view_of(d, op->b, &op->slice);
    struct data_view out = data_view_of(d, op->out, &op->slice);
    bool no_a = data_is_null(d, a.header), no_b = data_is_null(d, b.header);
    size_t bytes = out.end - out.begin;
    int rc = PCOLL_OK;
    if (round_intents_differ(a.header->intent | b.header->intent))
        no_a = no_b =
            true; /* They may have different forms, and no rank reads the result. */
    /* A header that was received without data lies where the data goes. */
    round_header_merge(data_own_header(&d->buffers[op->out]), a.header, b.header,
                       d->shape->ranks);
    if (!no_a && !no_b)
        rc = payload_reduce_slice(&d->shape->payload, out.data, a.data, b.data,
                                  out.begin, out.end);
    else if (!no_a && out.data != a.data)
        memcpy(out.data, a.data, bytes);
    else if (!no_b && out.data != b.data)
        memcpy(out.data, b.data, bytes);
    return rc;
}

void data_copy(struct round_data *d, const struct op *op)
{
    struct data_view from = data_view_of(d, op->a, &op->slice);
    struct data_view to = data_view_of(d, op->out, &op->slice);
    round_header_copy(data_own_header(&d->buffers[op->out]), from.header,
                      d->shape->ranks);
    if (!data_is_null(d, from.header))
        memcpy(to.data, from.data, from.end - from.begin);
    else if (d->plan.algorithm == PCOLL_ALGORITHM_NATIVE) /* MPI knows no null. */
        payload_identity_block(&d->shape->payload, to.data);
}

/* Headers in a form that BOR merges: flags, the intent, the masks, and one more mask with the
 * ranks that started the round. */
enum { NATIVE_FLAGS, NATIVE_INTENT, NATIVE_MASKS };

static size_t data_native_words(const struct round_shape *shape)
{
    return NATIVE_MASKS + (ROUND_MASKS + 1) * bitset_words(shape->ranks);
}

static void data_or_words(void *out, const void *a, const void *b, size_t count)
{
    uint64_t *to = out;
    const uint64_t *p = a, *q = b;
    for (size_t i = 0; i < count; i++)
        to[i] = p[i] | q[i];
}

static struct native_call data_native_header(struct round_data *d)
{
    const struct round_header *h = d->buffers[BUFFER_RESULT].header;
    uint32_t ranks = d->shape->ranks;
    size_t words = bitset_words(ranks);
    memset(d->native, 0, data_native_words(d->shape) * sizeof *d->native);
    d->native[NATIVE_FLAGS] = h->flags;
    d->native[NATIVE_INTENT] = h->intent;
    for (enum round_mask m = 0; m < ROUND_MASKS; m++)
        round_apply(h, ranks, m, d->native + NATIVE_MASKS + m * words, true);
    if (h->initiator != ROUND_NOBODY)
        bitset_add(d->native + NATIVE_MASKS + ROUND_MASKS * words, h->initiator);
    return (struct native_call){.data = d->native,
                                .count = data_native_words(d->shape),
                                .dtype = PCOLL_UINT64,
                                .op = PCOLL_BOR,
                                .reduce = data_or_words};
}

struct native_call data_native(struct round_data *d, const struct op *op)
{
    if (op->out == NATIVE_HEADER)
        return data_native_header(d);
    const struct payload_part *part = &d->shape->payload.part[op->out];
    char *data = d->buffers[BUFFER_RESULT].data;
    return (struct native_call){.data = data + part->offset,
                                .count = part->count,
                                .dtype = part->dtype,
                                .op = part->op,
                                .reduce = part->reduce};
}

int data_native_over(struct round_data *d, const struct op *op)
{
    struct round_header *h = d->buffers[BUFFER_RESULT].header;
    size_t words = bitset_words(d->shape->ranks);
    if (op->out != NATIVE_HEADER)
        return PCOLL_OK;
    const uint64_t *starters = d->native + NATIVE_MASKS + ROUND_MASKS * words;
    round_header_clear(h, h->round);
    h->flags = (uint16_t)d->native[NATIVE_FLAGS];
    h->intent = d->native[NATIVE_INTENT];
    for (enum round_mask m = 0; m < ROUND_MASKS; m++)
        round_add_set(h, d->shape->ranks, m, d->native + NATIVE_MASKS + m * words);
    for (uint32_t r = d->shape->ranks; r-- > 0;)
        if (bitset_has(starters, r))
            h->initiator = r;
    return round_header_check(h, d->shape->ranks, h->round);
}

void data_begin(struct round_data *d, struct round_header *contribution,
                struct round_header *result)
{
    d->buffers[BUFFER_CONTRIBUTION] = (struct data_buffer){
        .header = contribution, .data = message_payload(contribution)};
    d->buffers[BUFFER_RESULT] =
        (struct data_buffer){.header = result, .data = message_payload(result)};
}

/* Bytes before the data of a temporary: room for a header, if it is written there, or if some
 * slices are received with the header before them. */
static size_t data_temp_front(const struct round_shape *shape,
                              const struct algorithm_plan *plan)
{
    return plan->padded || plan->pieces ? shape->header_bytes : 0;
}

/* There is room for a header after the data. */
static size_t data_temp_bytes(const struct round_shape *shape,
                              const struct algorithm_plan *plan)
{
    size_t data = plan->pieces ? payload_longest_slice(&shape->payload, plan->pieces)
                               : round_shape_capacity(shape);
    return (data_temp_front(shape, plan) + data + shape->header_bytes + 63) / 64 * 64;
}

size_t data_bytes(const struct round_shape *shape, const struct algorithm_plan *plan)
{
    return (size_t)plan->temps * data_temp_bytes(shape, plan);
}

int data_init(struct round_data *d, const struct round_shape *shape,
              const struct algorithm_plan *plan)
{
    *d = (struct round_data){.shape = shape, .plan = *plan};
    if (plan->algorithm == PCOLL_ALGORITHM_NATIVE &&
        !(d->native = calloc(data_native_words(shape), sizeof *d->native)))
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", shape->ranks);
    return PCOLL_OK;
}

int data_place(struct round_data *d, char *memory)
{
    size_t bytes = data_bytes(d->shape, &d->plan);
    if (bytes && !memory && !(memory = d->memory = memory_allocate(bytes, false)))
        return fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a handle", bytes);
    for (int i = 0; i < d->plan.temps; i++)
        d->buffers[BUFFER_TEMP + i].data = memory +
                                           i * data_temp_bytes(d->shape, &d->plan) +
                                           data_temp_front(d->shape, &d->plan);
    return PCOLL_OK;
}

void data_destroy(struct round_data *d)
{
    free(d->memory);
    free(d->native);
    d->memory = NULL;
    d->native = NULL;
}

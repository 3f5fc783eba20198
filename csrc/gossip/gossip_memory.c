/* SPDX-License-Identifier: Apache-2.0 */
#include "gossip/gossip_memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "kernels/codec/quantize.h"
#include "kernels/reduce.h"

#ifndef PCOLL_TEST_CHUNK_BLOCKS
enum { CHUNK_BLOCKS = 64 }; /* 256 KiB of float32: stays in the cache of a core */
#else
enum { CHUNK_BLOCKS = PCOLL_TEST_CHUNK_BLOCKS };
#endif

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static int check_dtype(int dtype)
{
    switch (dtype) {
    case PCOLL_FLOAT32:
    case PCOLL_FLOAT64:
    case PCOLL_FLOAT16:
    case PCOLL_BFLOAT16:
        return PCOLL_OK;
    default:
        return fail(PCOLL_EINVAL,
                    "like: expected float16, bfloat16, float32 or float64, got %s",
                    dtype >= 0 && dtype < PCOLL_MPI_TYPE ? dtype_names[dtype]
                                                         : "an unknown dtype");
    }
}

void pcoll_gossip_options_init(pcoll_gossip_options *options)
{
    *options = (pcoll_gossip_options){
        .margin = 2,
        .queue_slots = 4,
        .max_uncollected = 2,
        .progress = PCOLL_PROGRESS_AGENT,
    };
}

static int check_options(const pcoll_gossip_options *o)
{
    static const uint64_t most = (uint64_t)1 << 44;
    if (o->count > most / sizeof(double))
        return fail(PCOLL_EINVAL, "like: %llu elements are more than memory holds",
                    (unsigned long long)o->count);
    if (o->bits != 0 && (o->bits < 2 || o->bits > 16))
        return fail(PCOLL_EINVAL, "bits: expected 2 to 16, got %d", o->bits);
    if (o->queue_slots < 1 || o->queue_slots > 1024)
        return fail(PCOLL_EINVAL, "queue_slots: expected 1 to 1024, got %u",
                    o->queue_slots);
    if (o->max_uncollected < 1)
        return fail(PCOLL_EINVAL, "max_uncollected: expected at least 1, got 0");
    return check_dtype(o->dtype);
}

static void lay_out_slot(struct layout *l)
{
    l->notes_at = LINE;
    l->low_at =
        l->notes_at + (l->bits ? lines(l->blocks * sizeof(struct block_note)) : 0);
    l->high_at = l->low_at + lines(l->blocks * l->low);
    l->raw_at = l->high_at + lines(l->blocks * l->high);
    l->slot_bytes = l->raw_at + lines(l->count * l->element);
}

/* As many blocks as are handled at a time. */
static size_t chunk_for(size_t blocks)
{
    return blocks < CHUNK_BLOCKS ? (blocks ? blocks : 1) : CHUNK_BLOCKS;
}

int layout_init(struct layout *l, uint32_t ranks, const pcoll_gossip_options *options)
{
    int rc = check_options(options);
    if (rc != PCOLL_OK)
        return rc;
    const struct dtype *dtype = dtype_find(options->dtype);
    *l = (struct layout){.ranks = ranks,
                         .dtype = options->dtype,
                         .held = options->dtype == PCOLL_FLOAT64 ? PCOLL_FLOAT64
                                                                 : PCOLL_FLOAT32,
                         .element = dtype->size,
                         .sum = options->dtype == PCOLL_FLOAT64 ? 8 : 4,
                         .count = options->count,
                         .blocks = (options->count + LATTICE_BLOCK - 1) / LATTICE_BLOCK,
                         .bits = options->bits,
                         .queue_slots = options->queue_slots};
    if (l->bits) {
        l->low = lattice_low_bytes(LATTICE_BLOCK, l->bits);
        l->high = lattice_high_bytes(LATTICE_BLOCK, l->bits);
    }
    l->chunk = chunk_for(l->blocks) * LATTICE_BLOCK;
    lay_out_slot(l);
    l->board_at = queue_word_at(l->queue_slots);
    l->slots_at = l->board_at + lines(ranks * sizeof(int64_t));
    l->sums_at = l->slots_at + REGISTER_SLOTS * l->slot_bytes;
    l->queue_at = l->sums_at + lines(l->count * l->sum);
    l->bytes = l->queue_at + l->queue_slots * l->slot_bytes;
    return PCOLL_OK;
}

static int make_codec(struct gossip_memory *m)
{
    const struct layout *l = &m->layout;
    if (!l->bits)
        return PCOLL_OK;
    m->distances = malloc((l->blocks ? l->blocks : 1) * sizeof *m->distances);
    m->notes = malloc(l->chunk / LATTICE_BLOCK * sizeof *m->notes);
    m->planes = malloc(l->chunk / LATTICE_BLOCK * (l->low + l->high));
    m->key = malloc(LATTICE_BLOCK * sizeof *m->key);
    m->block = malloc(LATTICE_BLOCK * sizeof *m->block);
    if (!m->distances || !m->notes || !m->planes || !m->key || !m->block)
        return fail(PCOLL_ENOMEM, "no memory for the codec");
    for (size_t b = 0; b < l->blocks; b++)
        m->distances[b] = -1;
    return PCOLL_OK;
}

int gossip_memory_init(struct gossip_memory *m)
{
    const struct layout *l = &m->layout;
    CHECK(l->chunk && l->chunk % LATTICE_BLOCK == 0 && l->sum >= l->element);
    size_t bytes = l->chunk * l->sum;
    m->fetched = malloc(l->chunk * l->element);
    m->theirs = malloc(bytes);
    m->ours = malloc(bytes);
    m->change = malloc(bytes);
    if (!m->fetched || !m->theirs || !m->ours || !m->change)
        return fail(PCOLL_ENOMEM, "no memory for a chunk");
    return make_codec(m);
}

enum { FAR_CHUNKS = 8 };

int gossip_memory_prepare(struct gossip_memory *m, const pcoll_gossip_options *o,
                          uint32_t rank, uint32_t ranks, bool far)
{
    CHECK(rank < ranks);
    *m = (struct gossip_memory){
        .taken = 1,
        .margin = o->margin,
        .rotate = o->rotate != 0,
        .seed = splitmix_at(o->seed, rank),
    };
    int rc = layout_init(&m->layout, ranks, o);
    if (far) /* a message takes much longer than a backoff */
        m->layout.chunk *= FAR_CHUNKS;
    if (rc == PCOLL_OK && o->bits && !(o->margin >= 1 && o->margin <= 1e6))
        rc = fail(PCOLL_EINVAL, "margin: expected 1 to 1e6, got %g", o->margin);
    return rc == PCOLL_OK ? gossip_memory_init(m) : rc;
}

/* Words and sums begin at 0; slots are written before they are read. */
int gossip_memory_clear(struct gossip_memory *m)
{
    const struct layout *l = &m->layout;
    CHECK(m->window);
    memset(m->window->memory, 0, l->slots_at);
    memset(m->window->memory + l->sums_at, 0, l->queue_at - l->sums_at);
    return m->window->ops->sync(m->window);
}

void gossip_memory_destroy(struct gossip_memory *m)
{
    free(m->fetched);
    free(m->planes);
    free(m->notes);
    free(m->theirs);
    free(m->ours);
    free(m->change);
    free(m->key);
    free(m->block);
    free(m->distances);
}

void gossip_widen(const struct layout *l, void *held, const void *elements,
                  size_t count)
{
    const struct dtype *dtype = dtype_find(l->dtype);
    if (dtype->widen)
        dtype->widen(held, elements, count);
    else if (held != elements)
        memcpy(held, elements, count * l->element);
}

void gossip_narrow(const struct layout *l, void *elements, const void *held,
                   size_t count)
{
    const struct dtype *dtype = dtype_find(l->dtype);
    if (dtype->narrow)
        dtype->narrow(elements, held, count);
    else if (held != elements)
        memcpy(elements, held, count * l->element);
}

void gossip_memory_free(struct gossip_memory **m)
{
    gossip_memory_destroy(*m);
    free(*m);
    *m = NULL;
}

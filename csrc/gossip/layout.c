/* SPDX-License-Identifier: Apache-2.0 */
#include "gossip/layout.h"

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

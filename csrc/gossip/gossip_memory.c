/* SPDX-License-Identifier: Apache-2.0 */
#include "gossip/gossip_memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#ifndef PCOLL_TEST_CHUNK_BLOCKS
#define PCOLL_TEST_CHUNK_BLOCKS 64 /* 256 KiB of float32, which fit a core's cache */
#endif
enum { CHUNK_BLOCKS = PCOLL_TEST_CHUNK_BLOCKS };

/* Round up to whole cache lines. */
static size_t gossip_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

void pcoll_gossip_options_init(pcoll_gossip_options *options)
{
    if (!options)
        return;
    *options = (pcoll_gossip_options){
        .margin = 2,
        .queue_slots = 4,
        .max_uncollected = 2,
        .progress = PCOLL_PROGRESS_AGENT,
    };
}

static int gossip_check_options(const pcoll_gossip_options *o)
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
    if (o->dtype != PCOLL_FLOAT32 && o->dtype != PCOLL_FLOAT64 &&
        o->dtype != PCOLL_FLOAT16 && o->dtype != PCOLL_BFLOAT16)
        return fail(PCOLL_EINVAL,
                    "like: expected float16, bfloat16, float32 or float64, got %s",
                    dtype_find(o->dtype) ? dtype_names[o->dtype] : "an unknown dtype");
    return PCOLL_OK;
}

int gossip_layout_init(struct gossip_layout *layout, uint32_t ranks,
                       const pcoll_gossip_options *options)
{
    int rc = gossip_check_options(options);
    if (rc != PCOLL_OK)
        return rc;
    const struct dtype *dtype = dtype_find(options->dtype);
    *layout = (struct gossip_layout){
        .ranks = ranks,
        .dtype = options->dtype,
        .held = options->dtype == PCOLL_FLOAT64 ? PCOLL_FLOAT64 : PCOLL_FLOAT32,
        .element = dtype->size,
        .sum = options->dtype == PCOLL_FLOAT64 ? 8 : 4,
        .count = options->count,
        .blocks = (options->count + LATTICE_BLOCK - 1) / LATTICE_BLOCK,
        .bits = options->bits,
        .queue_slots = options->queue_slots};
    if (layout->bits) {
        layout->low = plane_bytes(LATTICE_BLOCK, layout->bits);
        layout->high = plane_bytes(LATTICE_BLOCK, LATTICE_MAX_BITS - layout->bits);
    }
    size_t blocks = layout->blocks < CHUNK_BLOCKS ? layout->blocks : CHUNK_BLOCKS;
    layout->chunk = (blocks ? blocks : 1) * LATTICE_BLOCK;
    layout->notes_at = LINE;
    layout->low_at =
        layout->notes_at +
        (layout->bits ? gossip_lines(layout->blocks * sizeof(struct gossip_block_note))
                      : 0);
    layout->high_at = layout->low_at + gossip_lines(layout->blocks * layout->low);
    layout->raw_at = layout->high_at + gossip_lines(layout->blocks * layout->high);
    layout->slot_bytes = layout->raw_at + gossip_lines(layout->count * layout->element);
    layout->board_at = gossip_queue_word_at(layout->queue_slots);
    layout->slots_at = layout->board_at + gossip_lines(ranks * sizeof(int64_t));
    layout->sums_at = layout->slots_at + REGISTER_SLOTS * layout->slot_bytes;
    layout->queue_at = layout->sums_at + gossip_lines(layout->count * layout->sum);
    layout->bytes = layout->queue_at + layout->queue_slots * layout->slot_bytes;
    return PCOLL_OK;
}

int gossip_memory_init(struct gossip_memory *memory)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(layout->chunk && layout->chunk % LATTICE_BLOCK == 0 &&
          layout->sum >= layout->element);
    size_t bytes = layout->chunk * layout->sum, blocks = layout->chunk / LATTICE_BLOCK;
    memory->fetched = malloc(layout->chunk * layout->element);
    memory->theirs = malloc(bytes);
    memory->ours = malloc(bytes);
    memory->change = malloc(bytes);
    memory->notes = malloc(blocks * sizeof *memory->notes);
    memory->planes = malloc(blocks * (layout->low + layout->high) + 1);
    memory->distances = malloc((layout->blocks + 1) * sizeof *memory->distances);
    if (!memory->fetched || !memory->theirs || !memory->ours || !memory->change ||
        !memory->notes || !memory->planes || !memory->distances)
        return fail(PCOLL_ENOMEM, "no memory for a gossip buffer");
    for (size_t b = 0; b < layout->blocks; b++)
        memory->distances[b] = -1;
    return PCOLL_OK;
}

enum { FAR_CHUNKS = 8 }; /* times as large: a message between nodes takes longer */

int gossip_memory_prepare(struct gossip_memory *memory, const pcoll_gossip_options *o,
                          uint32_t rank, uint32_t ranks, bool far)
{
    CHECK(rank < ranks);
    *memory = (struct gossip_memory){
        .taken = 1,
        .margin = o->margin,
        .rotate = o->rotate != 0,
        .seed = splitmix_at(o->seed, rank),
    };
    int rc = gossip_layout_init(&memory->layout, ranks, o);
    if (far)
        memory->layout.chunk *= FAR_CHUNKS;
    if (rc == PCOLL_OK && o->bits && !(o->margin >= 1 && o->margin <= 1e6))
        rc = fail(PCOLL_EINVAL, "margin: expected 1 to 1e6, got %g", o->margin);
    return rc ?: gossip_memory_init(memory);
}

/* Slots need not be cleared: they are written before they are read. */
int gossip_memory_clear(struct gossip_memory *memory)
{
    const struct gossip_layout *layout = &memory->layout;
    CHECK(memory->window);
    memset(memory->window->memory, 0, layout->slots_at);
    memset(memory->window->memory + layout->sums_at, 0,
           layout->queue_at - layout->sums_at);
    return memory->window->ops->sync(memory->window);
}

void gossip_memory_destroy(struct gossip_memory *memory)
{
    free(memory->fetched);
    free(memory->planes);
    free(memory->notes);
    free(memory->theirs);
    free(memory->ours);
    free(memory->change);
    free(memory->distances);
}

void gossip_widen(const struct gossip_layout *layout, void *held, const void *elements,
                  size_t count)
{
    const struct dtype *dtype = dtype_find(layout->dtype);
    if (dtype->widen)
        dtype->widen(held, elements, count);
    else if (held != elements)
        memcpy(held, elements, count * layout->element);
}

void gossip_narrow(const struct gossip_layout *layout, void *elements, const void *held,
                   size_t count)
{
    const struct dtype *dtype = dtype_find(layout->dtype);
    if (dtype->narrow)
        dtype->narrow(elements, held, count);
    else if (held != elements)
        memcpy(elements, held, count * layout->element);
}

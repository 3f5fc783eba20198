/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies where in a rank's window: words, each in a line of its own, so that a spin
 * on one does not slow another down; the three slots of the register; the accumulator;
 * the slots of the queue. Pure arithmetic, the same on all ranks.
 *
 * A slot holds a model in one or more planes:
 *   raw    the elements as the application has them
 *   low, high, one block_note for each block of LATTICE_BLOCK elements: the lattice
 *          codec (kernels/codec/quantize.h); high is only there if bits < 16
 */
#ifndef PCOLL_GOSSIP_LAYOUT_H
#define PCOLL_GOSSIP_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "include/partialcoll.h"
#include "kernels/codec/quantize.h"

enum { LINE = 64, REGISTER_SLOTS = 3 };

enum gossip_word {
    WORD_VERSION,   /* register.h */
    WORD_RESERVED,  /* accumulator.h */
    WORD_LANDED,    /* accumulator.h */
    WORD_COLLECTED, /* accumulator.h */
    WORD_TICKETS,   /* queue.h */
    WORD_ARRIVALS,  /* the board's counter, at rank 0 */
    GOSSIP_WORDS    /* from here on: the states of the queue's slots */
};

enum plane { PLANE_LOW = 1, PLANE_HIGH = 2, PLANE_RAW = 4 };

/* What a slot says of itself. */
struct slot_header {
    uint64_t number; /* version or ticket */
    uint64_t seed;   /* of the codec */
    uint32_t source;
    uint32_t planes; /* enum plane; and raw, of blocks that are not coded */
};

/* How a block was encoded. */
struct block_note {
    float step;
    uint32_t coded; /* 1; 0: it is in the raw plane alone */
    uint64_t hash;
};

struct layout {
    uint32_t ranks;
    int dtype;            /* of the application's elements */
    int held;             /* of sums: float32 or float64 */
    size_t element, sum;  /* bytes of one of each */
    size_t count, blocks; /* elements, blocks of them */
    size_t chunk;         /* elements handled at a time: whole blocks */
    int bits;             /* of the low plane; 0: no codec */
    size_t low, high;     /* bytes of a block in those planes */
    uint32_t queue_slots;

    size_t notes_at, low_at, high_at, raw_at; /* in a slot */
    size_t slot_bytes;
    size_t slots_at, sums_at, queue_at, board_at; /* in the window */
    size_t bytes;
};

/* PCOLL_EINVAL for a dtype that cannot be averaged or sizes beyond all memory. */
int layout_init(struct layout *l, uint32_t ranks, const pcoll_gossip_options *options);

static inline size_t word_at(enum gossip_word word)
{
    return (size_t)word * LINE;
}

static inline size_t queue_word_at(uint32_t slot)
{
    return ((size_t)GOSSIP_WORDS + slot) * LINE;
}

static inline size_t register_slot_at(const struct layout *l, uint64_t version)
{
    return l->slots_at + (size_t)(version % REGISTER_SLOTS) * l->slot_bytes;
}

static inline size_t queue_slot_at(const struct layout *l, uint32_t slot)
{
    return l->queue_at + (size_t)slot * l->slot_bytes;
}

/* How many elements the chunk that begins with this one has. */
static inline size_t chunk_length(const struct layout *l, size_t first)
{
    return l->count - first < l->chunk ? l->count - first : l->chunk;
}

/* Of how many blocks that is. */
static inline size_t chunk_blocks(const struct layout *l, size_t first)
{
    return (chunk_length(l, first) + LATTICE_BLOCK - 1) / LATTICE_BLOCK;
}

/* How many elements the block that begins with this one has. */
static inline size_t block_length(const struct layout *l, size_t first)
{
    return l->count - first < LATTICE_BLOCK ? l->count - first : LATTICE_BLOCK;
}

#endif

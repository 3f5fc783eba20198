/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all parts of a gossip buffer share: the layout of a rank's window, the checks of what other
 * ranks have written into a window, and this rank's private memory.
 *
 * Layout. A window holds, in this order: words of 8 bytes, each in a cache line of its own, so
 * that polling one word does not slow down another; the board (used at rank 0 only); the three
 * slots of the register (register.h); the sums of the accumulator (accumulator.h); the slots of
 * the queue (queue.h). The layout follows from the options and is the same on all ranks.
 *
 * A slot holds a header and a model in one or more planes:
 *   raw         the elements in the application's dtype
 *   low, high   the bits of the lattice codec (kernels/codec/quantize.h), with one
 *               gossip_block_note for each block of LATTICE_BLOCK elements; the high
 *               plane exists only if bits < 16
 * With the codec, slots of the register have all planes, those of the queue the low plane, and
 * raw elements only of blocks without a code.
 *
 * Bad words. Other ranks write the words, the slot headers and the block notes, so each is checked
 * when it is read, by the gossip_decode_ and gossip_*_fits functions below and nowhere else. Bad
 * words are: a negative or absurdly large number, a state that does not exist, a count that is
 * ahead of the count that it follows, a version that goes back. The call that finds one returns
 * PCOLL_EPROTOCOL; this rank's model is then unchanged, or whole chunks of it are averaged. A
 * queued message with an impossible header is dropped and counted like a message that does not
 * decode (decode_failures). The call does not wait; later calls work if they read valid words.
 *
 * Threads: one at a time may use a struct gossip_memory.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/random.h"
#include "include/partialcoll.h"
#include "kernels/codec/quantize.h"
#include "runtime/communicator.h"
#include "runtime/user_object.h"
#include "transport/window.h"

enum { LINE = 64, REGISTER_SLOTS = 3 }; /* LINE: bytes of a cache line */

enum gossip_word {
    WORD_VERSION,   /* register.h */
    WORD_RESERVED,  /* accumulator.h */
    WORD_LANDED,    /* accumulator.h */
    WORD_COLLECTED, /* accumulator.h */
    WORD_TICKETS,   /* queue.h */
    WORD_ARRIVALS,  /* counter of the board; used at rank 0 */
    GOSSIP_WORDS    /* the states of the queue's slots follow */
};

/* First bytes of a slot. */
struct slot_header {
    uint64_t number; /* register: version; queue: ticket */
    uint64_t seed;   /* of the codec: rotation and rounding */
    uint32_t source, unused;
};

/* How a block was encoded. */
struct gossip_block_note {
    float step;
    uint32_t coded; /* 1: in the low plane; 0: in the raw plane only */
    uint64_t hash;
};

struct gossip_layout {
    uint32_t ranks;
    int dtype;            /* of the application's model */
    int held;             /* dtype of sums and arithmetic: float32 or float64 */
    size_t element, sum;  /* bytes of an element of dtype, of held */
    size_t count, blocks; /* of the model: elements, blocks */
    size_t chunk;         /* elements that are handled at a time; whole blocks */
    int bits;             /* per element in the low plane; 0: no codec */
    size_t low, high;     /* bytes of a block in these planes */
    uint32_t queue_slots;

    size_t notes_at, low_at, high_at, raw_at; /* offsets in a slot */
    size_t slot_bytes;
    size_t slots_at, sums_at, queue_at, board_at; /* offsets in the window */
    size_t bytes;
};

/* Compute the layout. PCOLL_EINVAL names an impossible option. */
int gossip_layout_init(struct gossip_layout *layout, uint32_t ranks,
                       const pcoll_gossip_options *options);

static inline size_t gossip_word_at(enum gossip_word word)
{
    return (size_t)word * LINE;
}

static inline size_t gossip_queue_word_at(uint32_t slot)
{
    return ((size_t)GOSSIP_WORDS + slot) * LINE;
}

static inline size_t gossip_register_slot_at(const struct gossip_layout *layout,
                                             uint64_t version)
{
    return layout->slots_at + (size_t)(version % REGISTER_SLOTS) * layout->slot_bytes;
}

static inline size_t gossip_queue_slot_at(const struct gossip_layout *layout,
                                          uint32_t slot)
{
    return layout->queue_at + (size_t)slot * layout->slot_bytes;
}

/* Return the number of elements of the chunk that begins at element `first`. */
static inline size_t gossip_chunk_length(const struct gossip_layout *layout,
                                         size_t first)
{
    return layout->count - first < layout->chunk ? layout->count - first
                                                 : layout->chunk;
}

/* Return the number of blocks of that chunk. */
static inline size_t gossip_chunk_blocks(const struct gossip_layout *layout,
                                         size_t first)
{
    return (gossip_chunk_length(layout, first) + LATTICE_BLOCK - 1) / LATTICE_BLOCK;
}

/* Return the number of elements of the block that begins at element `first`. */
static inline size_t gossip_block_length(const struct gossip_layout *layout,
                                         size_t first)
{
    return layout->count - first < LATTICE_BLOCK ? layout->count - first
                                                 : LATTICE_BLOCK;
}

/* Larger than any version, count or state of a real program. */
#define GOSSIP_LAST_WORD ((int64_t)1 << 62)

enum slot_state { SLOT_FREE = 0, SLOT_WRITING = 1, SLOT_FULL = 2, SLOT_STATES = 4 };

static inline int gossip_refuse(uint32_t rank, const char *what, int64_t word)
{
    return fail(PCOLL_EPROTOCOL, "the window of rank %u has %s that cannot be: %lld",
                rank, what, (long long)word);
}

static inline bool gossip_is_number(int64_t word)
{
    return word >= 0 && word < GOSSIP_LAST_WORD;
}

/* Take the state out of the word of a queue's slot. */
static inline int gossip_decode_state(uint32_t rank, int64_t word,
                                      enum slot_state *state)
{
    *state = (enum slot_state)(word & (SLOT_STATES - 1));
    return gossip_is_number(word) && *state <= SLOT_FULL
               ? PCOLL_OK
               : gossip_refuse(rank, "a state of its queue", word);
}

/* Check a version that was read after version `before` (0: the first read). */
static inline int gossip_decode_version(uint32_t rank, int64_t word, uint64_t before,
                                        uint64_t *version)
{
    *version = (uint64_t)word;
    return gossip_is_number(word) && *version >= before
               ? PCOLL_OK
               : gossip_refuse(rank, "a version", word);
}

/* Compute by how much one count of the accumulator is ahead of another. `ordered`: the counts were
 * read in an order in which the lead cannot be negative. */
static inline int gossip_decode_lead(uint32_t rank, int64_t ahead, int64_t behind,
                                     bool ordered, int64_t *lead)
{
    bool sound = gossip_is_number(ahead) && gossip_is_number(behind);
    *lead = sound ? ahead - behind : 0;
    return sound && (!ordered || *lead >= 0)
               ? PCOLL_OK
               : gossip_refuse(rank, "a count of its accumulator", ahead);
}

static inline bool gossip_header_fits(const struct gossip_layout *layout,
                                      const struct slot_header *h)
{
    return h->source < layout->ranks && gossip_is_number((int64_t)h->number);
}

/* Return whether the block has a code that can be decoded. */
static inline bool gossip_note_fits(const struct gossip_block_note *note)
{
    return note->coded == 1 && note->step >= 0 && isfinite(note->step);
}

struct gossip_memory {
    struct window *window;
    struct gossip_layout layout;
    double taken;  /* fraction of a peer's uncollected sum that is added to its model */
    double margin; /* codec: expected distance / last observed distance */
    bool rotate;
    uint64_t seed;     /* seeds of this rank's messages follow from it */
    uint64_t messages; /* seeds used so far */

    /* One chunk: fetched raw elements and low planes; both models and the change of the own one,
     * in the held dtype. */
    char *fetched, *planes;
    struct gossip_block_note *notes;
    void *theirs, *ours, *change;
    float key[LATTICE_BLOCK], block[LATTICE_BLOCK]; /* one block as the codec sees it */

    /* By block: how far the models of peers were from this rank's lately; negative: not known. */
    float *distances;

    pcoll_gossip_stats stats;
};

/* Number of attempts to read what its owner overwrites meanwhile. */
#ifndef PCOLL_TEST_TRIES
#define PCOLL_TEST_TRIES 16
#endif
enum { MAX_TRIES = PCOLL_TEST_TRIES };

/* Initialize everything except the window. far: some peers are on other nodes. PCOLL_EINVAL names
 * an impossible option; PCOLL_ENOMEM. */
int gossip_memory_prepare(struct gossip_memory *memory, const pcoll_gossip_options *o,
                          uint32_t rank, uint32_t ranks, bool far);
/* Clear the words and sums of this rank once it has its window. */
int gossip_memory_clear(struct gossip_memory *memory);
/* Allocate the private memory for this layout. PCOLL_ENOMEM. */
int gossip_memory_init(struct gossip_memory *memory);
/* The window stays. */
void gossip_memory_destroy(struct gossip_memory *memory);

/* Return the seed of this rank's next message. */
static inline uint64_t gossip_next_seed(struct gossip_memory *memory)
{
    return splitmix_at(memory->seed, memory->messages++);
}

/* Convert elements between the application's dtype and the held dtype (float32 for dtypes of 16
 * bits, else the same). */
void gossip_widen(const struct gossip_layout *layout, void *held, const void *elements,
                  size_t count);
void gossip_narrow(const struct gossip_layout *layout, void *elements, const void *held,
                   size_t count);

static inline char *gossip_element_at(const struct gossip_layout *layout, const void *x,
                                      size_t i)
{
    return (char *)x + i * layout->element;
}

/*
 * The gossip buffer of the public header: creation, calls, recovery and end. The calls
 * (gossip_calls.c) also work in the simulator; gossip_object.c needs MPI.
 */

struct pcoll_gossip {
    struct user_object base; /* first: found again from it */
    struct object object;    /* takes part in the order of closing */
    struct gossip_memory *memory;
    bool left; /* the window has been left behind */
    uint32_t max_uncollected;
    int64_t poll_at; /* next look for failures, clock_ns; 0: never */
};

/* Continuing without dead ranks. */
extern const struct recoverable gossip_recoverable;

extern const struct user_object_kind gossip_kind;
/* Closing in the agreed order. */
extern const struct object_ops gossip_object;

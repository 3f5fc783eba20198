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
#ifndef PCOLL_GOSSIP_MEMORY_H
#define PCOLL_GOSSIP_MEMORY_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/random.h"
#include "include/partialcoll.h"
#include "kernels/codec/quantize.h"
#include "transport/window.h"

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

enum gossip_plane { PLANE_LOW = 1, PLANE_HIGH = 2, PLANE_RAW = 4 };

/* What a slot says of itself. */
struct slot_header {
    uint64_t number; /* version or ticket */
    uint64_t seed;   /* of the codec */
    uint32_t source;
    uint32_t planes; /* enum gossip_plane; and raw, of blocks that are not coded */
};

/* How a block was encoded. */
struct gossip_block_note {
    float step;
    uint32_t coded; /* 1; 0: it is in the raw plane alone */
    uint64_t hash;
};

struct gossip_layout {
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

/* How many elements the chunk that begins with this one has. */
static inline size_t gossip_chunk_length(const struct gossip_layout *layout,
                                         size_t first)
{
    return layout->count - first < layout->chunk ? layout->count - first
                                                 : layout->chunk;
}

/* Of how many blocks that is. */
static inline size_t gossip_chunk_blocks(const struct gossip_layout *layout,
                                         size_t first)
{
    return (gossip_chunk_length(layout, first) + LATTICE_BLOCK - 1) / LATTICE_BLOCK;
}

/* How many elements the block that begins with this one has. */
static inline size_t gossip_block_length(const struct gossip_layout *layout,
                                         size_t first)
{
    return layout->count - first < LATTICE_BLOCK ? layout->count - first
                                                 : LATTICE_BLOCK;
}

/*
 * Words, slot headers and block notes of a gossip window, checked when they are read:
 * other ranks write them. These are the only code that takes one for what it says.
 *
 * Bad words. A number below 0 or beyond all use, a state that does not exist, a count
 * that is ahead of the one that it follows, a version that goes back: the call that finds
 * one returns PCOLL_EPROTOCOL, with this rank's model as it was or with whole chunks
 * averaged. A queued message whose header cannot be is thrown away and counted, as one
 * that does not decode (decode_failures). A model in a register that lacks its raw plane
 * is refused with PCOLL_EPROTOCOL once it was read whole. Nothing waits for anything, and
 * later calls work if what they read is sound.
 */

/* No version, count or generation gets there. */
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

/* The state of a slot of the queue. */
static inline int gossip_decode_state(uint32_t rank, int64_t word,
                                      enum slot_state *state)
{
    *state = (enum slot_state)(word & (SLOT_STATES - 1));
    return gossip_is_number(word) && *state <= SLOT_FULL
               ? PCOLL_OK
               : gossip_refuse(rank, "a state of its queue", word);
}

/* A version that is read after that one (0: the first). */
static inline int gossip_decode_version(uint32_t rank, int64_t word, uint64_t before,
                                        uint64_t *version)
{
    *version = (uint64_t)word;
    return gossip_is_number(word) && *version >= before
               ? PCOLL_OK
               : gossip_refuse(rank, "a version", word);
}

/* By how much a count of the accumulator is ahead of another; it may be below 0 where
 * they were not read in an order that forbids it. */
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
    return h->source < layout->ranks &&
           !(h->planes & ~(uint32_t)(PLANE_LOW | PLANE_HIGH | PLANE_RAW)) &&
           gossip_is_number((int64_t)h->number);
}

/* Is there something to decode in this block? */
static inline bool gossip_note_fits(const struct gossip_block_note *note)
{
    return note->coded == 1 && note->step >= 0 && isfinite(note->step);
}

/*
 * What the parts of a gossip buffer work with: the window, where things lie in it, and
 * this rank's own memory for one chunk. One thread at a time.
 */

struct gossip_memory {
    struct window *window;
    struct gossip_layout layout;
    double taken;  /* of what lies at a peer uncollected, its model takes this part */
    double margin; /* steps are for distances so much larger than those seen */
    bool rotate;
    uint64_t seed;     /* of this rank's messages */
    uint64_t messages; /* encoded so far */

    /* A chunk: as it was fetched, raw and coded; as float32 or float64; what goes
     * back. */
    char *fetched, *planes;
    struct gossip_block_note *notes;
    void *theirs, *ours, *change;
    float *key, *block; /* one block of the codec */

    /* By block: how far the models of others have been from this rank's, lately; below
     * 0: not known. */
    float *distances;

    pcoll_gossip_stats stats;
};

/* How often to read again what was overwritten meanwhile. */
#ifndef PCOLL_TEST_TRIES
enum { MAX_TRIES = 16 };
#else
enum { MAX_TRIES = PCOLL_TEST_TRIES };
#endif

/* All but the window, for this one of so many ranks. far: others are on other nodes.
 * PCOLL_EINVAL names an impossible option; PCOLL_ENOMEM. */
int gossip_memory_prepare(struct gossip_memory *memory, const pcoll_gossip_options *o,
                          uint32_t rank, uint32_t ranks, bool far);
/* The window is there: as it is at the start. */
int gossip_memory_clear(struct gossip_memory *memory);
/* The layout is there; make the rest. PCOLL_ENOMEM. */
int gossip_memory_init(struct gossip_memory *memory);
void gossip_memory_destroy(struct gossip_memory *memory);
/* The same for one that malloc made; *m becomes NULL. The window stays. */
void gossip_memory_free(struct gossip_memory **memory);

/* The seed of this rank's next message. */
static inline uint64_t gossip_next_seed(struct gossip_memory *memory)
{
    return splitmix_at(memory->seed, memory->messages++);
}

/* The elements of a chunk, between the application's form and the held one (float32 for
 * 16 bits, else the same). */
void gossip_widen(const struct gossip_layout *layout, void *held, const void *elements,
                  size_t count);
void gossip_narrow(const struct gossip_layout *layout, void *elements, const void *held,
                   size_t count);

static inline const char *gossip_element_at(const struct gossip_layout *layout,
                                            const void *x, size_t i)
{
    return (const char *)x + i * layout->element;
}

/* The same in memory that is written to. */
static inline char *gossip_place_at(const struct gossip_layout *layout, void *x,
                                    size_t i)
{
    return (char *)x + i * layout->element;
}

#endif

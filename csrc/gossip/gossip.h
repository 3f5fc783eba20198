/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gossip buffers: the layout of a rank's window, the checks of what other ranks have written into
 * a window, and this rank's private memory; then the register, the queue and the accumulator, each
 * with its protocol; then the object of the public header.
 *
 * Layout. A window holds, in this order: words of 8 bytes, each in its own cache line, so
 * that polling one word does not slow down another; the board (used at rank 0 only); the three
 * slots of the register; the sums of the accumulator; the slots of the queue. The layout follows
 * from the options and is the same on all ranks.
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
 * when it is read, by the gossip_decode_ functions below, slot_decode or queue_choose. Bad
 * words are: a negative or absurdly large number, a state that does not exist, a count that is
 * ahead of the count that it follows, a version that goes back. The call that finds one returns
 * PCOLL_EPROTOCOL; this rank's model is then unchanged, or whole chunks of it are averaged. A
 * queued message with an impossible header is dropped and counted like a message that does not
 * decode (decode_failures). The call does not wait; later calls work if they read valid words.
 *
 * Threads: one at a time may use a struct gossip_memory.
 */
#pragma once

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
    WORD_VERSION,   /* of the register */
    WORD_RESERVED,  /* of the accumulator */
    WORD_LANDED,    /* of the accumulator */
    WORD_COLLECTED, /* of the accumulator */
    WORD_TICKETS,   /* of the queue */
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

struct gossip_memory {
    struct window *window;
    struct gossip_layout layout;
    double taken;  /* fraction of a peer's uncollected sum that is added to its model */
    double margin; /* codec: expected distance / last observed distance */
    bool rotate;
    uint64_t seed;     /* seeds of this rank's messages follow from it */
    uint64_t messages; /* seeds used so far */

    /* One chunk: fetched raw elements and low planes; both models and the sums that are
     * published, in the held dtype. After an average the loss is in `theirs`. */
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
/* The window stays. */
void gossip_memory_destroy(struct gossip_memory *memory);

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
 * The register: the model that a rank publishes. Its owner is the only writer; any number of ranks
 * read. Neither writer nor readers wait.
 *
 * Memory of the owner: three slots, and the word VERSION, the number of publications.
 *
 *   publish v   write slot v mod 3; sync; VERSION: v - 1 -> v
 *   read        a := VERSION; read slot a mod 3; b := VERSION; take it if b - a <= 1
 *
 * Writers: only the owner, both the slots and VERSION.
 *
 * Invariant: while VERSION is v, the owner writes at most slot (v + 1) mod 3. So slot a mod 3
 * holds version a from VERSION = a until VERSION = a + 2; the owner begins to overwrite it only
 * after that. A reader that finds b <= a + 1 after its last read has read nothing but version a.
 * (With two slots this rule would accept torn reads: the owner writes version a + 2 over version a
 * while VERSION is a + 1.)
 *
 * Orderings: the owner stores the slot, then syncs, then raises VERSION by an atomic operation of
 * the window, then syncs again before it stores the next slot. A reader completes its gets before
 * it reads VERSION again.
 *
 * A stale read is harmless: it returns a model that the owner had. A torn read is detected and
 * repeated with the newer version, a bounded number of times; then the chunk is skipped and
 * counted. register_read_chunk validates chunks one by one: a model that is read while its owner
 * publishes may consist of chunks of several versions, each of them whole. register_read returns
 * one version throughout.
 */

/* See pcoll_gossip_publish. */
int register_publish(struct gossip_memory *memory, const void *x, uint64_t *version);

/* Set *version, 0 at first or an earlier answer, to the number of versions that the peer has
 * published. */
int register_version(struct gossip_memory *memory, uint32_t peer, uint64_t *version);

/* Read the chunk that begins at element `first` into memory->theirs (held dtype). key: the
 * reader's elements of this chunk (application's dtype), for the codec. *version: in: a version
 * that the caller knows (from register_version or the previous chunk); out: the newest version
 * seen, at least as new. *whole: false if the owner overwrote the chunk at every try. */
int register_read_chunk(struct gossip_memory *memory, uint32_t peer, size_t first,
                        const void *key, uint64_t *version, bool *whole);

/* See pcoll_gossip_read. */
int register_read(struct gossip_memory *memory, uint32_t peer, const void *key,
                  void *out, uint64_t *version);

/* Remember how far `theirs`, of this dtype, is from x (application's dtype), by block. This rank
 * chooses its own steps by it, since its model is as far from that of the peer. */
void slot_observe(struct gossip_memory *memory, const void *x, const void *theirs,
                  int dtype, size_t first, size_t length);

/*
 * The queue: whole models that others have sent to this rank. Many ranks write, the owner takes
 * messages out, and every rank may read the newest one. It is bounded: a sender that finds it full
 * is told so and continues.
 *
 * Memory of the owner: K slots, a state word for each slot, and the word TICKETS, the number of
 * messages that were ever begun. A state is 4 g + s: generation g, and s one of FREE, WRITING,
 * FULL.
 *
 *   push   find a slot that is FREE; 4g -> 4g + WRITING by compare-and-swap, else the
 *          next one; ticket := TICKETS, TICKETS + 1; write; flush; 4g + WRITING ->
 *          4g + FULL
 *   take   (owner) of the FULL slots the one with the lowest ticket: read; 4g + FULL ->
 *          4(g + 1)
 *   peek   of the FULL slots the one with the highest ticket: read; if the state
 *          is no longer the same, try again
 *
 * Writers: the rank that has swapped a slot from FREE to WRITING owns the slot until its state
 * is FULL. From then on the owner of the queue owns it, until its state is FREE. States are
 * changed and read by compare-and-swap only.
 *
 * Invariants: one rank at a time writes a slot. What the owner reads was written to its last byte
 * (the flush precedes FULL) and does not change while the state is FULL. The generation ensures
 * that an equal state means an unchanged slot. Slots are taken in any order, so a writer that has
 * stopped blocks only its own slot; the other K - 1 stay in use. (A ring with a ticket counter
 * would stop at that slot.)
 *
 * A message for which push returned true is not lost. No call waits. Tickets order messages by the
 * time at which they were begun.
 */

/* See pcoll_gossip_push. */
int queue_push(struct gossip_memory *memory, uint32_t peer, const void *x,
               const void *key, void *sent, int32_t *pushed);

/* See pcoll_gossip_drain. Messages that do not decode with this key are dropped and counted. */
int queue_take(struct gossip_memory *memory, const void *key, void *out,
               uint32_t *source, int32_t *taken);

/* See pcoll_gossip_peek. *found is also false if the message does not decode with this key, or if
 * the queue's owner took the message at every try. */
int queue_peek(struct gossip_memory *memory, uint32_t peer, const void *key, void *out,
               uint32_t *source, int32_t *found);

/* Owner, after a death (see the accumulator): free the slots whose writers have died. */
int queue_settle(struct gossip_memory *memory);

/*
 * The accumulator, and pair averaging with it.
 *
 * The accumulator of a rank holds what other ranks have given to its model, until it collects. Any
 * number of ranks write; no rank waits.
 *
 * Memory of the owner: one sum for each element, and three words:
 *   RESERVED   deltas that some rank is about to add, or has added
 *   LANDED     deltas whose every element has been added
 *   COLLECTED  deltas that the owner has taken
 *
 *   give     r := RESERVED, RESERVED + 1; if r - COLLECTED >= the cap, RESERVED - 1 and
 *            skip; else add every element; flush; LANDED + 1
 *   collect  l := LANDED; for every element: v := sum; model += v; sum += -(what the
 *            model gained); then COLLECTED := l
 *
 * Writers: all ranks add to the sums, to RESERVED and to LANDED. The owner alone adds to
 * COLLECTED.
 *
 * Invariants. Take model + sum of an element, added up over all ranks: every step takes from one
 * summand exactly what it gives to another one, so whatever interleaves, this total changes only
 * by the rounding of the sums. What the model cannot hold (rounding, elements of 16 bits) stays in
 * the sum. RESERVED >= LANDED >= COLLECTED. At most `cap` deltas are there that the owner has not
 * taken, so the models of other ranks do not run away from a rank that collects rarely. (Without
 * the cap the consensus error grew in simulation.)
 *
 * Stale reads are harmless. The owner may collect a part of a delta that is still being added:
 * addition commutes. COLLECTED then says less than was taken, never more, so the cap errs on the
 * safe side. A stale COLLECTED makes a giver skip once more than it had to. A giver that takes its
 * reservation back may make another giver skip.
 *
 * Orderings: a giver flushes its additions before it raises LANDED. The owner reads LANDED before
 * the sums, and subtracts from the sums before it raises COLLECTED.
 *
 * Averaging. Rank i reads the register of rank j and the sum in the accumulator of j, which
 * together are the model of j. It moves its own model by half of the difference, and gives what it
 * has lost to the accumulator of j. This is AD-PSGD's averaging in difference form; with a
 * momentum that takes part in proportion it is that of A2CiD2.
 *
 * Deaths. When a rank has died, the surviving ranks settle: no rank is in a call, each rank
 * settles its own accumulator and queue, and the lowest living rank those of the dead, so every
 * word has one writer.
 *   - A giver died between RESERVED and LANDED: its delta counts as landed. The part of
 *     it that was added is collected with the rest.
 *   - A sender died while it wrote a message: the slot of the queue becomes free.
 *   - A dead rank had not collected everything: a living rank takes it over, so the
 *     total over the living ranks keeps it.
 * The total of model + sum over the living ranks then misses, for each death, what the dead rank
 * had given or collected in the call in which it died: one delta, or those that were uncollected.
 * If the settling rank dies, others settle again: after each step, words and sums count nothing
 * twice. Only the chunk that was on its way from one sum to another is lost.
 */

/* Reserve a delta at the peer. *reserved: false if `cap` deltas are there uncollected; otherwise
 * accumulator_landed has to follow. *uncollected: deltas there before it. */
int accumulator_reserve(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                        int64_t *uncollected, int32_t *reserved);
/* Add `delta` (held dtype) to the sums of a rank for the chunk that begins at element `first`. */
int accumulator_add(struct gossip_memory *memory, uint32_t peer, size_t first,
                    const void *delta);
/* Raise LANDED, after all chunks have arrived. */
int accumulator_landed(struct gossip_memory *memory, uint32_t peer);

/* Read the peer's sums of a chunk into memory->change. */
int accumulator_query(struct gossip_memory *memory, uint32_t peer, size_t first);

/* Owner, after a death: count what was reserved as landed. */
int accumulator_settle(struct gossip_memory *memory);
/* Take over the deltas that a dead rank had not collected, on the lowest living rank. The deltas
 * may then exceed the cap. */
int accumulator_adopt(struct gossip_memory *memory, uint32_t dead);

/* A model, and a momentum (or NULL) that moves `ratio` times as far. */
struct gossip_model {
    void *x, *momentum;
    double ratio;
};

/* See pcoll_gossip_average; `cap` is max_uncollected. A chunk that changes while it is read is
 * not averaged. PCOLL_EEMPTY: the peer has not published. */
int exchange_average(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                     double weight, const struct gossip_model *own, int32_t *averaged);

/* See pcoll_gossip_collect. *deltas: the number of complete deltas; if 0, nothing is moved. */
int exchange_collect(struct gossip_memory *memory, const struct gossip_model *own,
                     uint64_t *deltas);

/*
 * The gossip buffer of the public header: creation, calls, recovery and end. The calls
 * (gossip_calls.c) also work in the simulator; gossip_object.c needs MPI.
 */

struct pcoll_gossip {
    struct user_object base; /* first: found again from it */
    struct object object;    /* takes part in the order of closing */
    struct gossip_memory memory;
    bool left; /* the window has been left behind */
    uint32_t max_uncollected;
    int64_t poll_at; /* next look for failures, clock_ns; 0: never */
};

/* Continuing without dead ranks. */
extern const struct recoverable gossip_recoverable;

extern const struct user_object_kind gossip_kind;
/* Closing in the agreed order. */
extern const struct object_ops gossip_object;

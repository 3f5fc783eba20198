/* SPDX-License-Identifier: Apache-2.0 */
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
 * Who writes: all ranks add to the sums, to RESERVED and to LANDED. The owner alone adds to
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
 * The total of model + sum over the living ranks then misses, for each death, what the
 * dead rank had given or collected in the call in which it died: one delta, or those
 * that were uncollected. If the settling rank dies, others settle again: after each
 * step, words and sums count nothing twice. Only the chunk that was on its way from one
 * sum to another is lost.
 */
#pragma once

#include "gossip/gossip_memory.h"

/* Reserve a delta at the peer. *reserved: false if `cap` deltas are there uncollected; otherwise
 * accumulator_landed has to follow. *uncollected: deltas there before it. */
int accumulator_reserve(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                        int64_t *uncollected, int32_t *reserved);
/* Add memory->change to the peer's sums of the chunk that begins at element `first`. */
int accumulator_add_chunk(struct gossip_memory *memory, uint32_t peer, size_t first);
/* Raise LANDED, after all chunks have arrived. */
int accumulator_landed(struct gossip_memory *memory, uint32_t peer);

/* Read the peer's sums of a chunk into memory->change. */
int accumulator_query(struct gossip_memory *memory, uint32_t peer, size_t first);

/* Owner, after a death: count what was reserved as landed. */
int accumulator_settle(struct gossip_memory *memory);
/* Lowest living rank, after a death: take over what the dead rank had not collected. The deltas
 * may then exceed the cap. */
int accumulator_adopt(struct gossip_memory *memory, uint32_t dead);

/* A model, and a momentum (or NULL) that moves `ratio` times as far. */
struct gossip_model {
    void *x, *momentum;
    double ratio;
};

/* Average with the peer. *averaged: false if `cap` deltas are uncollected there. A chunk
 * that changes while it is read is not averaged. PCOLL_EEMPTY: the peer has not published. */
int exchange_average(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                     double weight, const struct gossip_model *own, int32_t *averaged);

/* Move what others have given from the sums to the model. *deltas: the number of deltas that were
 * complete; if there is none, nothing is moved. */
int exchange_collect(struct gossip_memory *memory, const struct gossip_model *own,
                     uint64_t *deltas);

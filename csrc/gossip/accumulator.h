/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accumulator: what others have given to this rank's model, until it collects. Any
 * number of writers; nobody waits for anybody.
 *
 * Memory of the owner: one sum for each element, and three words:
 *   RESERVED   deltas that somebody is about to add, or has added
 *   LANDED     deltas that are there to their last element
 *   COLLECTED  deltas that the owner has taken
 *
 *   give     r := RESERVED, RESERVED + 1; if r - COLLECTED >= the cap, RESERVED - 1 and
 *            skip; else add every element; flush; LANDED + 1
 *   collect  l := LANDED; for every element: v := sum; model += v; sum += -(what the
 *            model gained); then COLLECTED := l
 *
 * Who writes: everybody adds to the sums, RESERVED and LANDED; the owner alone to
 * COLLECTED.
 *
 * Invariants: model + sum of every element, over all ranks, changes only by rounding of
 * the sums, whatever interleaves: every step takes from one exactly what it gives to
 * the other. What the model could not hold (rounding, 16-bit elements) stays in the
 * sum. RESERVED >= LANDED >= COLLECTED, and at most `cap` deltas lie there that the
 * owner has not taken: so no rank's model runs away from one that collects rarely.
 * (Without the cap the consensus error grew in simulation.)
 *
 * A part of a delta that is still being added may be collected with the others: the
 * sums do not mind. COLLECTED then says less than was taken, never more, so the cap
 * errs on the safe side. A stale COLLECTED makes a giver skip once more than it had to.
 * A giver that takes its reservation back may make another one skip: harmless as well.
 *
 * Orderings: the additions are flushed before LANDED; the owner reads LANDED before the
 * sums, and adds to the sums before COLLECTED.
 */
#ifndef PCOLL_GOSSIP_ACCUMULATOR_H
#define PCOLL_GOSSIP_ACCUMULATOR_H

#include <stdbool.h>

#include "gossip/gossip_memory.h"

/* May a delta be given to the peer? If so, accumulator_landed has to follow.
 * *uncollected: how many lie there, or are about to. */
int accumulator_reserve(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                        int64_t *uncollected, bool *reserved);
/* Add memory->change, the chunk that begins with this element. */
int accumulator_add_chunk(struct gossip_memory *memory, uint32_t peer, size_t first);
int accumulator_landed(struct gossip_memory *memory, uint32_t peer);

/* Owner: how many deltas there are to collect. */
int accumulator_deltas(struct gossip_memory *memory, uint64_t *deltas);
/* The peer's sums of a chunk, into memory->change. */
int accumulator_query(struct gossip_memory *memory, uint32_t peer, size_t first);
/* Owner: memory->change is to be added to them. */
int accumulator_subtract(struct gossip_memory *memory, size_t first);
/* Owner: so many deltas have been collected. */
int accumulator_collected(struct gossip_memory *memory, uint64_t deltas);

/* Among ranks that stand still (see below). */
/* Owner: what was reserved is to count as landed. */
int accumulator_settle(struct gossip_memory *memory);

/*
 * What ranks that have died leave in the windows: nobody who lives is in the middle of
 * anything, and nobody writes but who settles, each its own inbox, and the lowest rank that
 * lives that of the dead.
 *
 *   half a delta     its giver has died between RESERVED and LANDED: counts as landed. As
 *                    much of it as is there is collected with the rest.
 *   half a message   a slot of the queue stays WRITING: it is free again.
 *   an inbox         what others have given to a dead rank that it had not collected is
 *                    taken over, so that the sum over those who live loses nothing of it.
 *
 * So of model + sum over those who live (accumulator.h) is missing, for each death, what
 * the dead had given or collected in the call in which it died: one delta, or those that
 * were uncollected.
 *
 * Settling may be cut short by the death of who settles, and is then done again by others:
 * each step leaves words and sums in which nothing is counted twice. What is on its way from
 * one sum to another at that moment (a chunk) is lost.
 */

/* Take over what lies at a rank that has died. */
int accumulator_adopt(struct gossip_memory *memory, uint32_t dead);

/*
 * Pair averaging without waiting, on the register and the accumulator: i reads j's
 * register and what lies in j's accumulator, which together are where j is, moves its
 * own model by half of the difference, and gives what it has lost to j's accumulator. The sum over all ranks stays, whatever interleaves (AD-PSGD's
 * averaging in difference form; A2CiD2's, where a momentum takes part in proportion).
 */

/* The model and its companion, NULL if there is none, which moves `ratio` times as far.
 */
struct gossip_model {
    void *x, *momentum;
    double ratio;
};

/* *averaged: false if `cap` deltas lie at the peer that it has not collected. Chunks
 * that could not be read whole are left as they are. PCOLL_EEMPTY: the peer has not
 * published. */
int exchange_average(struct gossip_memory *memory, uint32_t peer, uint32_t cap,
                     double weight, const struct gossip_model *own, bool *averaged);

/* Take what others have given; *deltas: how many of them are there completely. Nothing
 * is done if there is none. */
int exchange_collect(struct gossip_memory *memory, const struct gossip_model *own,
                     uint64_t *deltas);

#endif

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

#include "gossip/memory.h"

/* May a delta be given to the peer? If so, accumulator_landed has to follow.
 * *uncollected: how many lie there, or are about to. */
int accumulator_reserve(struct gossip_memory *m, uint32_t peer, uint32_t cap,
                        int64_t *uncollected, bool *reserved);
/* Add m->change, the chunk that begins with this element. */
int accumulator_add_chunk(struct gossip_memory *m, uint32_t peer, size_t first);
int accumulator_landed(struct gossip_memory *m, uint32_t peer);

/* Owner: how many deltas there are to collect. */
int accumulator_deltas(struct gossip_memory *m, uint64_t *deltas);
/* The peer's sums of a chunk, into m->change. */
int accumulator_query(struct gossip_memory *m, uint32_t peer, size_t first);
/* Owner: m->change is to be added to them. */
int accumulator_take(struct gossip_memory *m, size_t first);
/* Owner: so many deltas have been collected. */
int accumulator_collected(struct gossip_memory *m, uint64_t deltas);

/* Among ranks that stand still (settle.h). */
/* Owner: what was reserved is to count as landed; *halves: how many deltas more. */
int accumulator_settle(struct gossip_memory *m, uint64_t *halves);
/* m->change is added to a peer's sums of a chunk. */
int accumulator_give(struct gossip_memory *m, uint32_t peer, size_t first);
/* The deltas at a dead rank are this one's; *deltas: how many. They may exceed the cap. */
int accumulator_adopt(struct gossip_memory *m, uint32_t dead, uint64_t *deltas);

#endif

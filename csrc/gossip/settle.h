/* SPDX-License-Identifier: Apache-2.0 */
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
#ifndef PCOLL_GOSSIP_SETTLE_H
#define PCOLL_GOSSIP_SETTLE_H

#include "gossip/memory.h"

/* Owner: the own inbox. */
int settle_own(struct gossip_memory *m);
/* Take over what lies at a rank that has died. */
int settle_dead(struct gossip_memory *m, uint32_t dead);

#endif

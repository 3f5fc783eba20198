/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue: whole models that others have sent to this rank. Many writers, the owner
 * takes them out, everybody may look at the newest. Bounded: who finds it full is told
 * so and goes on.
 *
 * Memory of the owner: K slots, a state word for each, and the word TICKETS, how many
 * messages were ever begun. A state is 4 g + s: generation g, and s one of FREE,
 * WRITING, FULL.
 *
 *   push   find a slot that is FREE; 4g -> 4g + WRITING by compare-and-swap, else the
 *          next one; ticket := TICKETS, TICKETS + 1; write; flush; 4g + WRITING ->
 *          4g + FULL
 *   take   (owner) of the FULL slots the one with the lowest ticket: read; 4g + FULL ->
 *          4(g + 1)
 *   peek   of the FULL slots the one with the highest ticket: read; the state is still
 *          the same, else look again
 *
 * Who writes: who has swapped a slot from FREE to WRITING owns it until it says FULL;
 * then the owner of the queue owns it until it says FREE. The states are changed, and
 * read, by compare-and-swap alone.
 *
 * Invariants: a slot is written by one rank at a time; what the owner reads was written
 * to its last byte (flush is before FULL) and does not change while it says FULL. The
 * generation makes "still the same" mean just that. Slots are taken in any order, so
 * one whose writer has stopped holds up nobody else: K - 1 slots go on. (A ring with a
 * ticket counter would stand still at it.)
 *
 * Nothing is lost that push said true to; nothing is waited for. Tickets order messages
 * by when they were begun.
 */
#ifndef PCOLL_GOSSIP_QUEUE_H
#define PCOLL_GOSSIP_QUEUE_H

#include <stdbool.h>

#include "gossip/slot.h"

/*
 * Send x to the peer; *pushed: false if its queue is full. With the codec, in bits that
 * decode for certain with `key` (application's form; NULL: 0) as the receiver's key;
 * `sent`, unless NULL, becomes what the receiver will have then.
 */
int queue_push(struct gossip_memory *memory, uint32_t peer, const void *x,
               const void *key, void *sent, bool *pushed);

/* Owner: the oldest message into out (application's form). *taken: false if there is
 * none. Those that do not decode with this key are thrown away and counted. */
int queue_take(struct gossip_memory *memory, const void *key, void *out,
               uint32_t *source, bool *taken);

/* The newest message in the queue of anybody, which stays there. *found: false if there
 * is none, or none that decodes with this key, or it was taken every time. */
int queue_peek(struct gossip_memory *memory, uint32_t peer, const void *key, void *out,
               uint32_t *source, bool *found);

/* Owner, among ranks that stand still (accumulator.h): slots whose writers have died are free. */
int queue_settle(struct gossip_memory *memory);

#endif

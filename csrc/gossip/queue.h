/* SPDX-License-Identifier: Apache-2.0 */
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
 * Who writes: the rank that has swapped a slot from FREE to WRITING owns the slot until its state
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
#pragma once

#include "gossip/register.h"

/* Send x to the peer. *pushed: false if its queue is full. With the codec, the message is sure to
 * decode if the receiver's key is `key` (application's dtype; NULL: zeros). sent, unless NULL,
 * becomes what the receiver gets then. */
int queue_push(struct gossip_memory *memory, uint32_t peer, const void *x,
               const void *key, void *sent, int32_t *pushed);

/* Owner: take the oldest message into out (application's dtype). *taken: false if there is none.
 * Messages that do not decode with this key are dropped and counted. */
int queue_take(struct gossip_memory *memory, const void *key, void *out,
               uint32_t *source, int32_t *taken);

/* Read the newest message in the queue of any rank, where it stays. *found: false if there is
 * none, if it does not decode with this key, or it was taken each time. */
int queue_peek(struct gossip_memory *memory, uint32_t peer, const void *key, void *out,
               uint32_t *source, int32_t *found);

/* Owner, after a death (accumulator.h): free the slots whose writers have died. */
int queue_settle(struct gossip_memory *memory);

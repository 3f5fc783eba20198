/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models in the planes of a slot, a chunk at a time: writing them, and making elements
 * of what was fetched. The codec works in float32, block by block.
 */
#ifndef PCOLL_GOSSIP_SLOT_H
#define PCOLL_GOSSIP_SLOT_H

#include <stdbool.h>

#include "gossip/gossip_memory.h"

/* The planes of a chunk, wherever they are: blocks one after the other. */
struct gossip_planes {
    struct gossip_block_note *notes;
    void *low, *high; /* high: NULL if it is not written or not there */
};

/*
 * Encode the chunk of x that begins with this element. Each block's step is for keys as
 * far away as `key` is, if there is one (it then decodes for certain with that key),
 * else as others have been lately; blocks without a step are noted as not coded.
 */
void slot_encode(struct gossip_memory *memory, const void *x, const void *key,
                 size_t first, uint64_t seed, bool exact,
                 const struct gossip_planes *to);

/*
 * Decode block number `block` (counted from the beginning of the model) of `length`
 * elements into out, held form, with the same elements of key (application's form;
 * NULL: 0). False: it is not coded, or the key is too far, or what is there is
 * corrupted.
 */
bool slot_decode(struct gossip_memory *memory, size_t block, size_t length,
                 uint64_t seed, const struct gossip_block_note *note, const void *low,
                 const void *high, const void *key, void *out);

/* Remember how far `theirs` (held form) is from x, block by block. */
void slot_observe(struct gossip_memory *memory, const void *x, const void *theirs,
                  size_t first, size_t length);

/*
 * Fetching a chunk out of a slot of a peer: with the codec the low plane first; where
 * the key is too far for a block, that block's high plane; where even that fails, or
 * the block was not coded, its elements as they are. The slot may change meanwhile:
 * whoever calls validates what came before it is used.
 */

/* Blocks of a chunk that needed more than their low plane, and those that what is there
 * was not enough for: they are 0. */
struct gossip_fetched {
    uint32_t fallbacks, failures;
};

/* The slot that lies at this offset of the peer's window; into out, held form. */
int slot_fetch_chunk(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                     size_t first, const void *key, void *out,
                     struct gossip_fetched *fetched);

/* The same into elements of a whole model, application's form. */
int slot_fetch_elements(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                        size_t first, const void *key, void *model,
                        struct gossip_fetched *fetched);

#endif

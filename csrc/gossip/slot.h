/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models in slots (gossip_memory.h), a chunk at a time: encoding, decoding and
 * fetching. The codec works on blocks of float32.
 *
 * Fetching with the codec reads the low plane first. If the key is too far away for a
 * block, it reads the block's high plane. If that fails as well, or if the block has no
 * code, it reads the raw elements. The owner may overwrite the slot meanwhile: the
 * caller has to validate what was fetched before it uses it (register.h, queue.h).
 */
#ifndef PCOLL_GOSSIP_SLOT_H
#define PCOLL_GOSSIP_SLOT_H

#include <stdbool.h>

#include "gossip/gossip_memory.h"

/* Where the planes of a chunk are: blocks one after the other. */
struct gossip_planes {
    struct gossip_block_note *notes;
    void *low, *high; /* high: NULL if there is none */
};

/*
 * Encode the chunk of x that begins at element `first`. exact: choose each block's step
 * for a key as far away as `key` is (NULL: zeros), so that the block is sure to decode
 * with this key. Otherwise choose it for keys as far away as peers were lately. A block
 * for which no step is known is noted as not coded.
 */
void slot_encode(struct gossip_memory *memory, const void *x, const void *key,
                 size_t first, uint64_t seed, bool exact,
                 const struct gossip_planes *to);

/*
 * Decode block number `block` of the model, of `length` elements, into out (held
 * dtype). key: the same elements of the key (application's dtype; NULL: zeros). Return
 * false if the block has no code, if the key is too far away, or if the data are
 * corrupted.
 */
bool slot_decode(struct gossip_memory *memory, size_t block, size_t length,
                 uint64_t seed, const struct gossip_block_note *note, const void *low,
                 const void *high, const void *key, void *out);

/* Remember how far `theirs` (held dtype) is from x (application's dtype), by block. */
void slot_observe(struct gossip_memory *memory, const void *x, const void *theirs,
                  size_t first, size_t length);

/* Numbers of blocks of a chunk. */
struct gossip_fetched {
    uint32_t fallbacks; /* needed more than their low plane */
    uint32_t failures;  /* could not be decoded, and became zeros */
};

/* Fetch a chunk of the slot at offset slot_at of the peer's window into out (held
 * dtype). key: the reader's elements of this chunk, or NULL. */
int slot_fetch_chunk(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                     size_t first, const void *key, void *out,
                     struct gossip_fetched *fetched);

/* Fetch it to its place in a model (application's dtype). key: a whole model. */
int slot_fetch_elements(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                        size_t first, const void *key, void *model,
                        struct gossip_fetched *fetched);

#endif

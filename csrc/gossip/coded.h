/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models in the planes of a slot, a chunk at a time: writing them, and making elements
 * of what was fetched. The codec works in float32, block by block.
 */
#ifndef PCOLL_GOSSIP_CODED_H
#define PCOLL_GOSSIP_CODED_H

#include <stdbool.h>

#include "gossip/memory.h"

/* The planes of a chunk, wherever they are: blocks one after the other. */
struct planes {
    struct block_note *notes;
    void *low, *high; /* high: NULL if it is not written or not there */
};

/*
 * Encode the chunk of x that begins with this element. Each block's step is for keys as
 * far away as `key` is, if there is one (it then decodes for certain with that key),
 * else as others have been lately; blocks without a step are noted as not coded.
 */
void coded_write(struct gossip_memory *m, const void *x, const void *key, size_t first,
                 uint64_t seed, bool exact, const struct planes *to);

/*
 * Decode block number `block` (counted from the beginning of the model) of `length`
 * elements into out, held form, with the same elements of key (application's form;
 * NULL: 0). False: it is not coded, or the key is too far, or what is there is
 * corrupted.
 */
bool coded_read(struct gossip_memory *m, size_t block, size_t length, uint64_t seed,
                const struct block_note *note, const void *low, const void *high,
                const void *key, void *out);

/* Remember how far `theirs` (held form) is from x, block by block. */
void coded_observe(struct gossip_memory *m, const void *x, const void *theirs,
                   size_t first, size_t length);

#endif

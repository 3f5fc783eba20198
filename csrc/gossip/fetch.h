/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetching a chunk out of a slot of a peer: with the codec the low plane first; where
 * the key is too far for a block, that block's high plane; where even that fails, or
 * the block was not coded, its elements as they are. The slot may change meanwhile:
 * whoever calls validates what came before it is used.
 */
#ifndef PCOLL_GOSSIP_FETCH_H
#define PCOLL_GOSSIP_FETCH_H

#include "gossip/coded.h"

/* Blocks of a chunk that needed more than their low plane, and those that what is there
 * was not enough for: they are 0. */
struct fetched {
    uint32_t fallbacks, failures;
};

/* The slot that lies at this offset of the peer's window; into out, held form. */
int fetch_chunk(struct gossip_memory *m, uint32_t peer, size_t slot_at, size_t first,
                const void *key, void *out, struct fetched *fetched);

/* The same into elements of a whole model, application's form. */
int fetch_elements(struct gossip_memory *m, uint32_t peer, size_t slot_at, size_t first,
                   const void *key, void *model, struct fetched *fetched);

#endif

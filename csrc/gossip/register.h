/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register: the model that a rank publishes. Its owner is the only writer; any number of ranks
 * read. Neither writer nor readers wait.
 *
 * Memory of the owner: three slots, and the word VERSION, the number of publications.
 *
 *   publish v   write slot v mod 3; sync; VERSION: v - 1 -> v
 *   read        a := VERSION; read slot a mod 3; b := VERSION; take it if b - a <= 1
 *
 * Who writes: only the owner, both slots and VERSION.
 *
 * Invariant: while VERSION is v, the owner writes at most slot (v + 1) mod 3. So slot a mod 3
 * holds version a from VERSION = a until VERSION = a + 2; the owner begins to overwrite it only
 * after that. A reader that finds b <= a + 1 after its last read has read nothing but version a.
 * (With two slots this rule would accept torn reads: the owner writes version a + 2 over version a
 * while VERSION is a + 1.)
 *
 * Orderings: the owner stores the slot, then syncs, then raises VERSION by an atomic operation of
 * the window, then syncs again before it stores the next slot. A reader completes its gets before
 * it reads VERSION again.
 *
 * A stale read is harmless: it returns a model that the owner had. A torn read is detected and
 * repeated with the newer version, a bounded number of times; then the chunk is skipped and
 * counted. register_read_chunk validates chunks one by one: a model that is read while its owner
 * publishes may consist of chunks of several versions, each of them whole. register_read returns
 * one version throughout.
 */
#pragma once

#include <stdbool.h>

#include "gossip/gossip_memory.h"

/* Owner: publish x as the next version. */
int register_publish(struct gossip_memory *memory, const void *x, uint64_t *version);

/* Get the number of versions that the peer has published. */
int register_version(struct gossip_memory *memory, uint32_t peer, uint64_t *version);

/* Read the chunk that begins at element `first` into memory->theirs (held dtype). key: the
 * reader's elements of this chunk (application's dtype), for the codec. *version: in: a version
 * that the caller knows (from register_version or the previous chunk); out: the newest version
 * seen, at least as new. *whole: false if the owner overwrote the chunk at every try. */
int register_read_chunk(struct gossip_memory *memory, uint32_t peer, size_t first,
                        const void *key, uint64_t *version, bool *whole);

/* Read the whole model, in one version, into out (application's dtype). key: a whole model or
 * NULL. PCOLL_EEMPTY: nothing was published. PCOLL_EAGAIN: the owner publishes faster than this
 * rank can read. */
int register_read(struct gossip_memory *memory, uint32_t peer, const void *key,
                  void *out, uint64_t *version);

/*
 * Models in slots (gossip_memory.h), a chunk at a time: encoding, decoding and fetching. The codec
 * works on blocks of float32.
 *
 * Fetching with the codec reads the low plane first. If the key is too far away for a block, it
 * reads the block's high plane. If that fails as well, or if the block has no code, it reads the
 * raw elements. The owner may overwrite the slot meanwhile: the caller has to validate what was
 * fetched before it uses it (register.h, queue.h).
 */

/* Encode the chunk of x that begins at element `first`. exact: choose each block's step for a key
 * as far away as `key` is (NULL: zeros), so that the block is sure to decode with this key.
 * Otherwise choose it for keys as far away as peers were lately. A block for which no step is
 * known is noted as not coded. Notes and planes have the blocks of the chunk one after the other;
 * high: NULL if there is none. */
void slot_encode(struct gossip_memory *memory, const void *x, const void *key,
                 size_t first, uint64_t seed, bool exact,
                 struct gossip_block_note *notes, char *low, char *high);

/* Decode block number `block` of the model, of `length` elements, into out (held dtype). key: the
 * same elements of the key (application's dtype; NULL: zeros). Return false if the block has no
 * code, if the key is too far away, or if the data are corrupted. */
bool slot_decode(struct gossip_memory *memory, size_t block, size_t length,
                 uint64_t seed, const struct gossip_block_note *note, const void *low,
                 const void *high, const void *key, void *out);

/* Remember how far `theirs`, of this dtype, is from x (application's dtype), by block. This rank
 * chooses its own steps by it, since its model is as far from that of the peer. */
void slot_observe(struct gossip_memory *memory, const void *x, const void *theirs,
                  int dtype, size_t first, size_t length);

/* Numbers of blocks of a chunk. */
struct gossip_fetched {
    uint32_t fallbacks; /* needed more than their low plane */
    uint32_t failures;  /* could not be decoded, and became zeros */
};

/* Fetch a chunk of the slot at offset slot_at of the peer's window into out (held dtype). key: the
 * reader's elements of this chunk, or NULL. */
int slot_fetch_chunk(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                     size_t first, const void *key, void *out,
                     struct gossip_fetched *fetched);

/* Fetch it to its place in a model (application's dtype). key: a whole model. */
int slot_fetch_elements(struct gossip_memory *memory, uint32_t peer, size_t slot_at,
                        size_t first, const void *key, void *model,
                        struct gossip_fetched *fetched);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register: the model that a rank publishes. Its owner is the only writer; any
 * number of ranks read. Neither writer nor readers wait.
 *
 * Memory of the owner: three slots, and the word VERSION, the number of publications.
 *
 *   publish v   write slot v mod 3; sync; VERSION: v - 1 -> v
 *   read        a := VERSION; read slot a mod 3; b := VERSION; take it if b - a <= 1
 *
 * Who writes: only the owner, both slots and VERSION.
 *
 * Invariant: while VERSION is v, the owner writes at most slot (v + 1) mod 3. So slot a
 * mod 3 holds version a from VERSION = a until VERSION = a + 2; the owner begins to
 * overwrite it only after that. A reader that finds b <= a + 1 after its last read has
 * read nothing but version a. (With two slots this rule would accept torn reads: the
 * owner writes version a + 2 over version a while VERSION is a + 1.)
 *
 * Orderings: the owner stores the slot, then syncs, then raises VERSION by an atomic
 * operation of the window, then syncs again before it stores the next slot. A reader
 * completes its gets before it reads VERSION again.
 *
 * A stale read is harmless: it returns a model that the owner had. A torn read is
 * detected and repeated with the newer version, a bounded number of times; then the
 * chunk is skipped and counted. register_read_chunk validates chunks one by one: a
 * model that is read while its owner publishes may consist of chunks of several
 * versions, each of them whole. register_read returns one version throughout.
 */
#ifndef PCOLL_GOSSIP_REGISTER_H
#define PCOLL_GOSSIP_REGISTER_H

#include "gossip/slot.h"

/* Owner: publish x as the next version. */
int register_publish(struct gossip_memory *memory, const void *x, uint64_t *version);

/* Get the number of versions that the peer has published. */
int register_version(struct gossip_memory *memory, uint32_t peer, uint64_t *version);

/*
 * Read the chunk that begins at element `first` into memory->theirs (held dtype). key:
 * the reader's elements of this chunk (application's dtype), for the codec. *version:
 * in: a version that the caller knows (from register_version or the previous chunk);
 * out: the newest version seen, at least as new. *whole: false if the owner overwrote
 * the chunk at every try.
 */
int register_read_chunk(struct gossip_memory *memory, uint32_t peer, size_t first,
                        const void *key, uint64_t *version, bool *whole);

/* Read the whole model, in one version, into out (application's dtype). key: a whole
 * model or NULL. PCOLL_EEMPTY: nothing was published. PCOLL_EAGAIN: the owner publishes
 * faster than this rank can read. */
int register_read(struct gossip_memory *memory, uint32_t peer, const void *key,
                  void *out, uint64_t *version);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register: what a rank lets the others know of its model. One writer, its owner,
 * who never waits; any number of readers, who never wait either.
 *
 * Memory of the owner: three slots, and the word VERSION, how often it has published.
 *
 *   publish v   write slot v mod 3; sync; VERSION: v - 1 -> v
 *   read        a := VERSION; read slot a mod 3; b := VERSION; take it if b - a <= 1
 *
 * Who writes: the owner alone, slots and VERSION.
 *
 * Invariant: while VERSION is v, the owner writes at most slot (v + 1) mod 3. So slot
 * a mod 3 holds version a from VERSION = a until VERSION = a + 2; the owner begins to
 * overwrite it only after that. A reader who finds b <= a + 1 after its last read has
 * read nothing else. (With two slots this rule would take torn reads: version a + 2 is
 * written over a while VERSION is a + 1.)
 *
 * Orderings: the owner's stores to the slot are before its VERSION (sync, then an
 * atomic step of the window), and that step is before the stores of the next one (sync
 * again). A reader's gets are complete before it asks for VERSION again.
 *
 * A stale read is harmless: it is a model that the owner had. A torn one is noticed and
 * tried again with the newer version, a bounded number of times; then the chunk is left
 * out and counted. Chunks are validated one by one, so a model that is read while its
 * owner publishes may consist of chunks of several versions, each of them whole.
 * register_read is for those who want one version throughout.
 */
#ifndef PCOLL_GOSSIP_REGISTER_H
#define PCOLL_GOSSIP_REGISTER_H

#include "gossip/slot.h"

/* Owner: make x the next version. */
int register_publish(struct gossip_memory *memory, const void *x, uint64_t *version);

/* How often the peer has published. */
int register_version(struct gossip_memory *memory, uint32_t peer, uint64_t *version);

/*
 * Read the chunk that begins with element `first` into memory->theirs (held form). key: the
 * reader's own elements of it (application's form), for the codec. *version: known to
 * the caller before (register_version, or the chunk before), and the one that was found
 * at the end, at least as new. *whole: false if the owner was faster every time.
 */
int register_read_chunk(struct gossip_memory *memory, uint32_t peer, size_t first,
                        const void *key, uint64_t *version, bool *whole);

/* The whole model in one version, into out (application's form); key as above, of the
 * whole model, or NULL. PCOLL_EEMPTY: nothing has been published. PCOLL_EAGAIN: the
 * owner publishes faster than it can be read. */
int register_read(struct gossip_memory *memory, uint32_t peer, const void *key,
                  void *out, uint64_t *version);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory: where ranks with dynamic keys find each other (Ryabinin et al.,
 * appendix B.5; a table in the ranks' windows in the place of a DHT, since an MPI world
 * is known). What is said under a key lies at the rank that a hash of key and round
 * names:
 *
 *   entry r   of rank r, three words: tag(key, round), time, tag ^ mix(time)
 *   counts    how many ranks have declared themselves for a round, under whatever key:
 *             round mod 2^32 << 32 | number, in place `round mod COUNTS`, at the rank
 *             that a hash of the round names
 *
 * A rank writes its entry, which is complete there, and then counts itself. So who has
 * seen that all have been counted finds in the entries all that will ever come, and
 * need not wait for more.
 *
 * Who writes: entry r, rank r alone, once for a round; counts, everybody by
 * compare-and-swap. An entry that is read while it is written does not fit its third
 * word and is taken for none: it is read again with the next look. A stale entry has
 * another tag. A count of an older round is written over; a newer one is left alone.
 */
#ifndef PCOLL_GROUP_RENDEZVOUS_H
#define PCOLL_GROUP_RENDEZVOUS_H

#include "transport/window.h"
#include "protocol/group/matchmaking.h"

enum { COUNTS = 16, ENTRY_WORDS = 3 };

/* Where it begins in every window. */
static inline size_t group_window_directory_bytes(uint32_t ranks)
{
    return (COUNTS + (size_t)ENTRY_WORDS * ranks) * sizeof(int64_t);
}

struct group_key {
    uint64_t round, key;
};

/* Who keeps the entries under a key, the count of a round. */
uint32_t group_window_directory_host(const struct group_key *key, uint32_t ranks);
uint32_t group_window_directory_counter(uint64_t round, uint32_t ranks);

/* Write the entry of `rank` at the host. */
int group_window_declare(struct window *w, size_t at, uint32_t host, uint32_t rank,
                         const struct group_key *key, int64_t time);
/* Count so many more (-1: one that had been counted goes) at the counter; *counted: how
 * many there are then (0: it counts for a newer round). */
int group_window_count(struct window *w, size_t at, uint32_t counter, uint64_t round,
                       int32_t more, uint32_t *counted);
/* The entries under a key. words: room for all of them as they lie there; found: for
 * all ranks; *count: of those found. */
int group_window_query(struct window *w, size_t at, uint32_t host,
                       const struct group_key *key, int64_t *words,
                       struct match_entry *found, uint32_t *count);

#endif

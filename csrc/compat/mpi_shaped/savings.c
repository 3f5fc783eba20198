/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/mpi_shaped/savings.h"

#include <stdlib.h>

#include "base/random.h"

enum { ROWS = 32, SEEN_WORDS = 64 };

struct savings {
    struct savings_row row[ROWS];
    uint64_t seen[SEEN_WORDS]; /* A bit for each hash of a signature that was called. */
};

struct savings_row *savings_find(struct savings **s, const struct cache_key *key,
                                 bool *added)
{
    if (!*s && !(*s = calloc(1, sizeof **s)))
        return NULL;
    uint64_t signature = cache_hash(key) | 1; /* 0: an empty row */
    struct savings_row *row = &(*s)->row[signature >> 1 & (ROWS - 1)];
    *added = row->signature != signature;
    if (*added)
        *row = (struct savings_row){.signature = signature};
    return row;
}

bool savings_is_first(struct savings **s, const struct cache_key *key)
{
    if (!*s && !(*s = calloc(1, sizeof **s)))
        return true;
    uint64_t hash = cache_hash(key), bit = (uint64_t)1 << (hash & 63);
    uint64_t *word = &(*s)->seen[(hash >> 6) % SEEN_WORDS];
    bool first = !(*word & bit);
    *word |= bit;
    return first;
}

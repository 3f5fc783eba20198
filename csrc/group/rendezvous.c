/* SPDX-License-Identifier: Apache-2.0 */
/* The directory; see rendezvous.h. */
#include "group/rendezvous.h"

#include "base/check.h"
#include "base/random.h"

static uint64_t group_window_tag(const struct group_key *key)
{
    return splitmix_at(key->key, key->round) | 1; /* what was never written is 0 */
}

uint32_t group_window_directory_host(const struct group_key *key, uint32_t ranks)
{
    CHECK(ranks >= 1);
    return splitmix_below(key->key, key->round, ranks);
}

uint32_t group_window_directory_counter(uint64_t round, uint32_t ranks)
{
    CHECK(ranks >= 1);
    return splitmix_below(~(uint64_t)0, round, ranks);
}

static size_t group_window_entry_at(size_t at, uint32_t rank)
{
    return at + (COUNTS + (size_t)ENTRY_WORDS * rank) * sizeof(int64_t);
}

int group_window_declare(struct window *w, size_t at, uint32_t host, uint32_t rank,
                         const struct group_key *key, int64_t time)
{
    CHECK(host < w->size && rank < w->size);
    uint64_t tag = group_window_tag(key);
    int64_t words[ENTRY_WORDS] = {(int64_t)tag, time,
                                  (int64_t)(tag ^ splitmix_mix((uint64_t)time))};
    int rc = w->ops->put(w, host, group_window_entry_at(at, rank), words, sizeof words);
    return rc == PCOLL_OK ? w->ops->flush(w, host) : rc;
}

/* By how many rounds the word is newer. */
static int32_t group_window_newer(int64_t word, uint64_t round)
{
    return (int32_t)((uint32_t)((uint64_t)word >> 32) - (uint32_t)round);
}

/* Nobody goes who was not counted, and no more come than there are ranks. */
static int64_t group_window_count_after(int64_t word, uint64_t round, int32_t more,
                                        uint32_t ranks)
{
    uint32_t before = group_window_newer(word, round) == 0 ? (uint32_t)word : 0;
    uint32_t after = before + (uint32_t)more;
    return group_window_newer(word, round) > 0 || after > ranks
               ? word
               : (int64_t)(round << 32 | after);
}

int group_window_count(struct window *w, size_t at, uint32_t counter, uint64_t round,
                       int32_t more, uint32_t *counted)
{
    CHECK(counter < w->size && more >= -1 && more <= 1);
    size_t place = at + round % COUNTS * sizeof(int64_t);
    int64_t word, seen;
    int rc = window_read_swapped(w, counter, place, &word);
    while (rc == PCOLL_OK) {
        int64_t after = group_window_count_after(word, round, more, w->size);
        *counted = group_window_newer(after, round) != 0 ? 0 : (uint32_t)after;
        if (*counted > w->size)
            return fail(PCOLL_EPROTOCOL,
                        "rank %u counts %u ranks in round %llu, of %u in all", counter,
                        *counted, (unsigned long long)round, w->size);
        if (!more || after == word)
            break;
        rc = w->ops->compare_swap(w, counter, place, word, after, &seen);
        if (rc != PCOLL_OK || seen == word)
            break;
        word = seen;
    }
    return rc;
}

int group_window_query(struct window *w, size_t at, uint32_t host,
                       const struct group_key *key, int64_t *words,
                       struct match_entry *found, uint32_t *count)
{
    CHECK(host < w->size);
    uint64_t tag = group_window_tag(key);
    size_t bytes = (size_t)w->size * ENTRY_WORDS * sizeof *words;
    int rc = w->ops->get(w, host, group_window_entry_at(at, 0), words, bytes);
    if (rc == PCOLL_OK)
        rc = w->ops->complete(w, host);
    *count = 0;
    for (uint32_t r = 0; r < w->size && rc == PCOLL_OK; r++) {
        const int64_t *entry = words + (size_t)r * ENTRY_WORDS;
        uint64_t check = (uint64_t)entry[0] ^ splitmix_mix((uint64_t)entry[1]);
        if ((uint64_t)entry[0] == tag && (uint64_t)entry[2] == check)
            found[(*count)++] = (struct match_entry){r, entry[1]};
    }
    return rc;
}

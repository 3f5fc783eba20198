/* SPDX-License-Identifier: Apache-2.0 */
/* The word of a decision in a window; see vote.h. */
#include "group/vote.h"

#include "base/check.h"

static size_t place(size_t words_at, uint32_t seq)
{
    return words_at + seq % DECISIONS * sizeof(int64_t);
}

int vote_cast(struct window *w, uint32_t leader, size_t words_at, uint32_t seq,
              uint32_t members, enum decision_vote vote, enum decision *decision)
{
    CHECK(leader < w->size && (vote != VOTE_OPEN || leader == w->rank));
    int64_t word, seen;
    int rc = window_read_swapped(w, leader, place(words_at, seq), &word);
    while (rc == PCOLL_OK) {
        int64_t after = decision_after(word, seq, members, vote, decision);
        if (after == word)
            break;
        rc = w->ops->compare_swap(w, leader, place(words_at, seq), word, after, &seen);
        if (rc != PCOLL_OK || seen == word)
            break;
        word = seen;
    }
    return rc;
}

int vote_open(struct window *w, size_t words_at, uint32_t seq)
{
    enum decision decision;
    CHECK(seq); /* 0: what was never written */
    return vote_cast(w, w->rank, words_at, seq, UINT32_MAX, VOTE_OPEN, &decision);
}

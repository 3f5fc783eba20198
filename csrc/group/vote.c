/* SPDX-License-Identifier: Apache-2.0 */
/* The word of a decision in a window; see vote.h. */
#include "group/vote.h"

#include "base/check.h"

static size_t group_window_decision_at(size_t words_at, uint32_t seq)
{
    return words_at + seq % DECISIONS * sizeof(int64_t);
}

int group_window_vote(struct window *w, uint32_t leader, size_t words_at, uint32_t seq,
                      uint32_t members, enum decision_vote vote,
                      enum decision *decision)
{
    CHECK(leader < w->size && (vote != VOTE_OPEN || leader == w->rank));
    int64_t word, seen;
    int rc =
        window_read_swapped(w, leader, group_window_decision_at(words_at, seq), &word);
    while (rc == PCOLL_OK) {
        int64_t after = group_window_after_vote(word, seq, members, vote, decision);
        if (after == word)
            break;
        rc = w->ops->compare_swap(w, leader, group_window_decision_at(words_at, seq),
                                  word, after, &seen);
        if (rc != PCOLL_OK || seen == word)
            break;
        word = seen;
    }
    return rc;
}

int group_window_open_decision(struct window *w, size_t words_at, uint32_t seq)
{
    enum decision decision;
    CHECK(seq); /* 0: what was never written */
    return group_window_vote(w, w->rank, words_at, seq, UINT32_MAX, VOTE_OPEN,
                             &decision);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The word on which the members of a group agree; see verdict.h. */
#include "verdict.h"

static const uint64_t void_bit = (uint64_t)1 << 31;

static uint64_t fresh(uint32_t seq)
{
    return (uint64_t)seq << 32;
}

static uint32_t seq_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static uint64_t done_of(uint64_t word)
{
    return word & (void_bit - 1);
}

static enum verdict read_word(uint64_t word, uint32_t seq, uint32_t members)
{
    if (seq_of(word) != seq)
        return VERDICT_GONE;
    if (word & void_bit)
        return VERDICT_VOID;
    return done_of(word) >= members ? VERDICT_COMMIT : VERDICT_OPEN;
}

int64_t verdict_after(int64_t before, uint32_t seq, uint32_t members,
                      enum verdict_vote vote, enum verdict *verdict)
{
    uint64_t word = vote == VOTE_OPEN ? fresh(seq) : (uint64_t)before;
    if (read_word(word, seq, members) == VERDICT_OPEN && vote == VOTE_DONE)
        word++;
    else if (read_word(word, seq, members) == VERDICT_OPEN && vote == VOTE_VOID)
        word |= void_bit;
    *verdict = read_word(word, seq, members);
    return (int64_t)word;
}

static size_t place(size_t words_at, uint32_t seq)
{
    return words_at + seq % VERDICTS * sizeof(int64_t);
}

int verdict_vote(struct window *w, uint32_t leader, size_t words_at, uint32_t seq,
                 uint32_t members, enum verdict_vote vote, enum verdict *verdict)
{
    int64_t word, seen;
    int rc = window_read_swapped(w, leader, place(words_at, seq), &word);
    while (rc == PCOLL_OK) {
        int64_t after = verdict_after(word, seq, members, vote, verdict);
        if (after == word)
            break;
        rc = w->ops->compare_swap(w, leader, place(words_at, seq), word, after, &seen);
        if (rc != PCOLL_OK || seen == word)
            break;
        word = seen;
    }
    return rc;
}

int verdict_open(struct window *w, size_t words_at, uint32_t seq)
{
    enum verdict verdict;
    return verdict_vote(w, w->rank, words_at, seq, UINT32_MAX, VOTE_OPEN, &verdict);
}

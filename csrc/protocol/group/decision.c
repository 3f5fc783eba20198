/* SPDX-License-Identifier: Apache-2.0 */
/* The word on which the members of a group agree; see decision.h. */
#include "protocol/group/decision.h"

#include "base/check.h"

static const uint64_t abort_bit = (uint64_t)1 << 31;

static uint64_t group_window_fresh_word(uint32_t seq)
{
    return (uint64_t)seq << 32;
}

static uint32_t group_window_word_seq(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static uint64_t group_window_word_done(uint64_t word)
{
    return word & (abort_bit - 1);
}

static enum decision group_window_read_word(uint64_t word, uint32_t seq,
                                            uint32_t members)
{
    if (group_window_word_seq(word) != seq)
        return DECISION_EXPIRED;
    if (word & abort_bit)
        return DECISION_ABORT;
    return group_window_word_done(word) >= members ? DECISION_COMMIT : DECISION_PENDING;
}

int64_t group_window_after_vote(int64_t before, uint32_t seq, uint32_t members,
                                enum decision_vote vote, enum decision *decision)
{
    uint64_t word = vote == VOTE_OPEN ? group_window_fresh_word(seq) : (uint64_t)before;
    if (group_window_read_word(word, seq, members) == DECISION_PENDING &&
        vote == VOTE_DONE)
        word++;
    else if (group_window_read_word(word, seq, members) == DECISION_PENDING &&
             vote == VOTE_ABORT)
        word |= abort_bit;
    CHECK(vote == VOTE_OPEN || (word == (uint64_t)before) ||
          group_window_read_word((uint64_t)before, seq, members) == DECISION_PENDING);
    CHECK(group_window_word_seq(word) ==
          (vote == VOTE_OPEN ? seq : group_window_word_seq((uint64_t)before)));
    *decision = group_window_read_word(word, seq, members);
    return (int64_t)word;
}

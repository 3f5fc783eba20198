/* SPDX-License-Identifier: Apache-2.0 */
/* The word on which the members of a group agree; see decision.h. */
#include "protocol/group/decision.h"

#include "base/check.h"

static const uint64_t abort_bit = (uint64_t)1 << 31;

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
    return word & (abort_bit - 1);
}

static enum decision read_word(uint64_t word, uint32_t seq, uint32_t members)
{
    if (seq_of(word) != seq)
        return DECISION_EXPIRED;
    if (word & abort_bit)
        return DECISION_ABORT;
    return done_of(word) >= members ? DECISION_COMMIT : DECISION_PENDING;
}

int64_t decision_after(int64_t before, uint32_t seq, uint32_t members,
                       enum decision_vote vote, enum decision *decision)
{
    uint64_t word = vote == VOTE_OPEN ? fresh(seq) : (uint64_t)before;
    if (read_word(word, seq, members) == DECISION_PENDING && vote == VOTE_DONE)
        word++;
    else if (read_word(word, seq, members) == DECISION_PENDING && vote == VOTE_ABORT)
        word |= abort_bit;
    CHECK(vote == VOTE_OPEN || (word == (uint64_t)before) ||
          read_word((uint64_t)before, seq, members) == DECISION_PENDING);
    CHECK(seq_of(word) == (vote == VOTE_OPEN ? seq : seq_of((uint64_t)before)));
    *decision = read_word(word, seq, members);
    return (int64_t)word;
}

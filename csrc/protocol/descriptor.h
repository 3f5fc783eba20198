/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank and whoever activates a round have to agree on, in one word, so that one
 * compare-and-swap changes all of it: how many rounds were activated here, which slot
 * holds the deposit for the next one, which one was frozen by the last, whether the
 * deposit arrived, whether the rank goes away. With it a deposit and an activation that
 * race are ordered: the deposit is in the round, or stored, never half of each; and
 * whoever is late for a round that has been activated meanwhile finds the word changed,
 * because the number of rounds is part of it and only grows.
 *
 * The rest of struct member is the rank's own. Pure bookkeeping.
 */
#ifndef PCOLL_PROTOCOL_DESCRIPTOR_H
#define PCOLL_PROTOCOL_DESCRIPTOR_H

#include "base/check.h"
#include "protocol/member.h"

/* Bits from the lowest: pending, frozen slot (7: none), arrived, joining, left; then
 * the rounds: 2^55 of them. */
enum { DESCRIPTOR_NO_SLOT = 7, DESCRIPTOR_ROUNDS = 9 };

static inline uint64_t descriptor_of(const struct member *m)
{
    CHECK(m->contribution.pending < MAX_SLOTS && m->contribution.frozen < MAX_SLOTS);
    uint64_t pending = (uint64_t)m->contribution.pending & 7,
             frozen = (uint64_t)m->contribution.frozen & 7;
    uint64_t joining = m->joining && m->joined_in == NO_ROUND;
    return pending | frozen << 3 | (uint64_t)m->arrived << 6 | joining << 7 |
           (uint64_t)m->left << 8 | m->frozen << DESCRIPTOR_ROUNDS;
}

static inline uint64_t descriptor_rounds(uint64_t word)
{
    return word >> DESCRIPTOR_ROUNDS;
}

static inline int descriptor_slot(uint64_t three_bits)
{
    int slot = (int)(three_bits & 7);
    return slot == DESCRIPTOR_NO_SLOT ? NO_SLOT : slot;
}

static inline int descriptor_pending(uint64_t word)
{
    return descriptor_slot(word);
}

static inline bool descriptor_arrived(uint64_t word)
{
    return word >> 6 & 1;
}

static inline bool descriptor_joining(uint64_t word)
{
    return word >> 7 & 1;
}

static inline bool descriptor_left(uint64_t word)
{
    return word >> 8 & 1;
}

/* The rank no longer announces that it joins. */
enum { DESCRIPTOR_JOINING = 1 << 7 };

/* What others may have changed. */
static inline void descriptor_load(uint64_t word, struct member *m)
{
    CHECK(descriptor_pending(word) == NO_SLOT ||
          descriptor_pending(word) != descriptor_slot(word >> 3));
    m->contribution.pending = descriptor_pending(word);
    m->contribution.frozen = descriptor_slot(word >> 3);
    m->arrived = descriptor_arrived(word);
    m->frozen = descriptor_rounds(word);
}

/* After an activation: one more round, the pending deposit frozen. */
static inline uint64_t descriptor_freeze(uint64_t word)
{
    CHECK(descriptor_rounds(word) + 1 < (uint64_t)1 << (64 - DESCRIPTOR_ROUNDS));
    uint64_t gone = word & ((uint64_t)3 << 7);
    return DESCRIPTOR_NO_SLOT | (word & 7) << 3 | gone |
           (descriptor_rounds(word) + 1) << DESCRIPTOR_ROUNDS;
}

/* What an activation that swapped this word says of the rank, in its header. */
static inline void descriptor_announce(uint64_t word, uint32_t rank,
                                       struct round_header *h, uint32_t ranks)
{
    CHECK(rank < ranks);
    bool active = descriptor_pending(word) != NO_SLOT;
    if (active)
        bitset_add(round_mask(h, ranks, ROUND_ACTIVE), rank);
    if (active && !descriptor_arrived(word))
        bitset_add(round_mask(h, ranks, ROUND_STORED), rank);
    if (descriptor_joining(word))
        bitset_add(round_mask(h, ranks, ROUND_JOINED), rank);
    if (descriptor_left(word))
        bitset_add(round_mask(h, ranks, ROUND_LEFT), rank);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Merging headers: sets by union, the initiator by minimum. */
#include "protocol/round.h"
#include "base/check.h"
#include "base/error.h"

size_t round_header_bytes(uint32_t ranks)
{
    CHECK(ranks > 0);
    size_t bytes = sizeof(struct round_header) +
                   ROUND_MASKS * bitset_words(ranks) * sizeof(uint64_t);
    return (bytes + 63) / 64 * 64;
}

void round_header_clear(struct round_header *h, uint32_t ranks, uint64_t round)
{
    CHECK(ranks > 0);
    memset(h, 0, round_header_bytes(ranks));
    h->round = round;
    h->initiator = ROUND_NOBODY;
}

uint64_t *round_mask(struct round_header *h, uint32_t ranks, enum round_mask which)
{
    CHECK(which < ROUND_MASKS);
    return h->masks + (size_t)which * bitset_words(ranks);
}

const uint64_t *round_mask_const(const struct round_header *h, uint32_t ranks,
                                 enum round_mask which)
{
    CHECK(which < ROUND_MASKS);
    return h->masks + (size_t)which * bitset_words(ranks);
}

int round_header_check(const struct round_header *h, uint32_t ranks, uint64_t round)
{
    size_t words = bitset_words(ranks);
    const uint64_t *active = h->masks, *stored = active + words * ROUND_STORED;
    const uint64_t *joined = active + words * ROUND_JOINED;
    const uint64_t *left = active + words * ROUND_LEFT;
    const uint64_t *failed = active + words * ROUND_FAILED;
    uint64_t beyond = ranks % 64 ? ~(uint64_t)0 << ranks % 64 : 0, bad = 0;
    for (size_t i = 0; i < words; i++)
        bad |= (stored[i] & ~active[i]) | (failed[i] & ~left[i]);
    bad |= beyond & (active[words - 1] | joined[words - 1] | left[words - 1]);
    bad |= h->round ^ round;
    bad |= h->flags & ~(uint32_t)ROUND_BELOW_QUORUM;
    bad |= h->initiator >= ranks && h->initiator != ROUND_NOBODY;
    return bad ? fail(PCOLL_EPROTOCOL,
                      "a header of round %llu came that cannot be one of round %llu",
                      (unsigned long long)h->round, (unsigned long long)round)
               : PCOLL_OK;
}

void round_header_merge(struct round_header *out, const struct round_header *a,
                        const struct round_header *b, uint32_t ranks)
{
    CHECK(a->round == b->round);
    out->round = a->round;
    out->initiator = a->initiator < b->initiator ? a->initiator : b->initiator;
    out->flags = a->flags | b->flags;
    for (size_t i = 0; i < ROUND_MASKS * bitset_words(ranks); i++)
        out->masks[i] = a->masks[i] | b->masks[i];
}

void round_header_bury(struct round_header *h, uint32_t ranks, const uint64_t *failed)
{
    CHECK(ranks > 0);
    for (size_t i = 0; failed && i < bitset_words(ranks); i++) {
        round_mask(h, ranks, ROUND_LEFT)[i] |= failed[i];
        round_mask(h, ranks, ROUND_FAILED)[i] |= failed[i];
    }
}

bool round_header_is_blank(const struct round_header *h, uint32_t ranks)
{
    CHECK(ranks > 0);
    return !h->round && !h->initiator && !h->flags &&
           bitset_empty(h->masks, ROUND_MASKS * bitset_words(ranks));
}

bool round_is_null(const struct round_header *h, uint32_t ranks)
{
    CHECK(ranks > 0);
    return bitset_empty(round_mask_const(h, ranks, ROUND_ACTIVE), bitset_words(ranks));
}

/* Of a header that may be written to meanwhile, where the answer is then not used (node.h). */
bool round_all_gone(const struct round_header *h, uint32_t ranks)
{
    CHECK(ranks > 0);
    const uint64_t *joined = round_mask_const(h, ranks, ROUND_JOINED);
    const uint64_t *left = round_mask_const(h, ranks, ROUND_LEFT);
    uint32_t gone = 0;
    for (size_t i = 0; i < bitset_words(ranks); i++)
        gone += (uint32_t)__builtin_popcountll(joined[i] | left[i]);
    return gone == ranks;
}

void round_live(const struct round_header *h, uint32_t ranks, uint64_t *live)
{
    CHECK(live != h->masks);
    const uint64_t *joined = round_mask_const(h, ranks, ROUND_JOINED);
    const uint64_t *left = round_mask_const(h, ranks, ROUND_LEFT);
    bool back = round_all_gone(h, ranks);
    bitset_fill(live, ranks);
    for (size_t i = 0; i < bitset_words(ranks); i++)
        live[i] &= ~(left[i] | (back ? 0 : joined[i]));
}

static void bury(uint64_t *live, const uint64_t *gone, size_t words)
{
    for (size_t i = 0; gone && i < words; i++)
        live[i] &= ~gone[i];
}

void round_live_now(const struct round_header *h, uint32_t ranks,
                    const uint64_t *failed, uint64_t *live)
{
    CHECK(ranks > 0);
    size_t words = bitset_words(ranks);
    if (h)
        round_live(h, ranks, live);
    else
        bitset_fill(live, ranks);
    for (size_t i = 0; h && i < words; i++) /* others may have their numbers now */
        live[i] |= round_mask_const(h, ranks, ROUND_FAILED)[i];
    bury(live, failed, words);
    if (!h || !bitset_empty(live, words))
        return;
    bitset_fill(live, ranks); /* those who died were the last that had not joined */
    bury(live, round_mask_const(h, ranks, ROUND_LEFT), words);
    bury(live, failed, words);
}

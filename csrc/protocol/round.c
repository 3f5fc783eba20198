/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of rounds; see round.h. Merging unites the sets and takes the lowest initiator. */
#include "protocol/round.h"
#include "base/check.h"
#include "base/error.h"
#include "base/random.h"

/* Bytes of the struct and its sets, before the wire form. */
static size_t round_sets_bytes(uint32_t ranks)
{
    size_t bytes = sizeof(struct round_header) +
                   ROUND_MASKS * bitset_words(ranks) * sizeof(uint64_t);
    return (bytes + 63) / 64 * 64;
}

size_t round_header_bytes(uint32_t ranks)
{
    CHECK(ranks > 0);
    return round_sets_bytes(ranks) + (ranks > ROUND_PLAIN_RANKS ? ROUND_WIRE_BYTES : 0);
}

void round_header_clear(struct round_header *h, uint32_t ranks, uint64_t round)
{
    CHECK(ranks > 0);
    bitset_clear_sparse(h->masks,
                        (round_header_bytes(ranks) - sizeof *h) / sizeof *h->masks);
    h->round = round;
    h->initiator = ROUND_NOBODY;
    h->flags = 0;
    h->intent = 0;
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

/* Encoding and decoding. */

/* Return the first rank from `from` on that is in the set, or is not in it; `ranks` if
 * there is none. */
static uint32_t round_next(const uint64_t *set, uint32_t ranks, uint32_t from, bool in)
{
    for (size_t i = from / 64; i < bitset_words(ranks); i++) {
        uint64_t word = in ? set[i] : ~set[i];
        if (i == from / 64)
            word &= ~(uint64_t)0 << from % 64;
        uint32_t rank =
            (uint32_t)(64 * i) + (word ? (uint32_t)__builtin_ctzll(word) : 0);
        if (word)
            return rank < ranks ? rank : ranks;
    }
    return ranks;
}

/* Append the runs of a set to those that are there. False: there is no room. */
static bool round_add_runs(struct round_wire *wire, uint32_t *used, const uint64_t *set,
                           uint32_t ranks)
{
    uint32_t begin = round_next(set, ranks, 0, true), end;
    for (; begin < ranks; begin = round_next(set, ranks, end, true)) {
        end = round_next(set, ranks, begin, false);
        if (*used == ROUND_RUNS)
            return false;
        wire->run[*used].begin = begin;
        wire->run[(*used)++].end = end;
    }
    return true;
}

size_t round_header_encode(struct round_header *h, uint32_t ranks)
{
    size_t bytes = round_header_bytes(ranks);
    if (ranks <= ROUND_PLAIN_RANKS)
        return bytes;
    struct round_wire wire = {.round = h->round,
                              .initiator = h->initiator,
                              .flags = (uint16_t)h->flags,
                              .intent = h->intent};
    uint32_t used = 0;
    bool fits = true;
    for (uint32_t m = 0; m < ROUND_MASKS && fits; m++) {
        uint32_t before = used;
        fits = round_add_runs(&wire, &used,
                              round_mask_const(h, ranks, (enum round_mask)m), ranks);
        wire.form |= (uint16_t)((used - before) << 3 * m);
    }
    if (!fits)
        wire.form = ROUND_LONG;
    memcpy((char *)h + bytes - sizeof wire, &wire, sizeof wire);
    return fits ? sizeof wire : bytes;
}

size_t round_header_encoded_bytes(const void *last, uint32_t ranks)
{
    struct round_wire wire;
    memcpy(&wire, last, sizeof wire);
    bool is_long = ranks > ROUND_PLAIN_RANKS && wire.form == ROUND_LONG;
    return is_long ? round_header_bytes(ranks) : sizeof wire;
}

/* Add ranks begin to end - 1. */
static void round_add_run(uint64_t *set, uint32_t begin, uint32_t end)
{
    for (uint32_t bits; begin < end; begin += bits) {
        bits = 64 - begin % 64 < end - begin ? 64 - begin % 64 : end - begin;
        set[begin / 64] |= ~(uint64_t)0 >> (64 - bits) << begin % 64;
    }
}

/* False: the runs are not runs of ranks. */
static bool round_decode_runs(struct round_header *h, const struct round_wire *wire,
                              uint32_t ranks)
{
    uint32_t used = 0;
    for (uint32_t m = 0; m < ROUND_MASKS; m++)
        for (uint32_t n = wire->form >> 3 * m & 7; n; n--, used++) {
            if (used == ROUND_RUNS || wire->run[used].begin >= wire->run[used].end ||
                wire->run[used].end > ranks)
                return false;
            round_add_run(round_mask(h, ranks, (enum round_mask)m),
                          wire->run[used].begin, wire->run[used].end);
        }
    return wire->form < ROUND_LONG;
}

int round_header_decode(struct round_header *h, const void *encoded, size_t bytes,
                        uint32_t ranks, uint64_t round)
{
    struct round_wire wire;
    CHECK(bytes == ROUND_WIRE_BYTES || bytes == round_header_bytes(ranks));
    if (bytes == round_header_bytes(ranks)) {
        memcpy(h, encoded, bytes);
        return round_header_check(h, ranks, round);
    }
    memcpy(&wire, encoded, sizeof wire);
    round_header_clear(h, ranks, wire.round);
    h->initiator = wire.initiator;
    h->flags = wire.flags;
    h->intent = wire.intent;
    if (!round_decode_runs(h, &wire, ranks))
        return fail(PCOLL_EPROTOCOL,
                    "a header of round %llu came with sets of ranks that "
                    "cannot be",
                    (unsigned long long)wire.round);
    return round_header_check(h, ranks, round);
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
    out->intent = a->intent | b->intent;
    for (size_t i = 0; i < ROUND_MASKS * bitset_words(ranks); i++)
        if (out->masks[i] != (a->masks[i] | b->masks[i])) /* See bitset_clear_sparse. */
            out->masks[i] = a->masks[i] | b->masks[i];
}

void round_header_copy(struct round_header *to, const struct round_header *from,
                       uint32_t ranks)
{
    CHECK(to != from);
    to->round = from->round;
    to->initiator = from->initiator;
    to->flags = from->flags;
    to->intent = from->intent;
    for (size_t i = 0; i < ROUND_MASKS * bitset_words(ranks); i++)
        if (to->masks[i] != from->masks[i]) /* See bitset_clear_sparse. */
            to->masks[i] = from->masks[i];
}

void round_header_add_failed(struct round_header *h, uint32_t ranks,
                             const uint64_t *failed)
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
    return !h->round && !h->initiator && !h->flags && !h->intent &&
           bitset_empty(h->masks, ROUND_MASKS * bitset_words(ranks));
}

uint64_t round_intent(uint64_t number)
{
    uint32_t half = (uint32_t)splitmix_mix(number);
    return number ? (uint64_t)~half << 32 | half : 0;
}

bool round_intents_differ(uint64_t word)
{
    return __builtin_popcountll(word) > 32;
}

bool round_is_null(const struct round_header *h, uint32_t ranks)
{
    CHECK(ranks > 0);
    return round_intents_differ(h->intent) ||
           bitset_empty(round_mask_const(h, ranks, ROUND_ACTIVE), bitset_words(ranks));
}

/* The header may be written to meanwhile; the result is not used then (node.h). */
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

/* Return 64 ranks of round_live_now: all but the dead and those that left; unless all are
 * back, without those that joined. Ranks that died before may have new processes. */
static uint64_t round_live_word(const struct round_header *h, uint32_t ranks,
                                const uint64_t *failed, size_t i, bool back)
{
    size_t words = bitset_words(ranks);
    uint64_t live = ~(uint64_t)0;
    if (i + 1 == words && ranks % 64)
        live = ((uint64_t)1 << ranks % 64) - 1;
    if (h) {
        uint64_t left = round_mask_const(h, ranks, ROUND_LEFT)[i];
        live &= ~(left | (back ? 0 : round_mask_const(h, ranks, ROUND_JOINED)[i]));
        live |= round_mask_const(h, ranks, ROUND_FAILED)[i];
    }
    return failed ? live & ~failed[i] : live;
}

/* Return whether the ranks that joined are live again: all have joined or left, or those
 * that had not joined are dead. */
static bool round_all_back(const struct round_header *h, uint32_t ranks,
                           const uint64_t *failed)
{
    if (!h || round_all_gone(h, ranks))
        return true;
    for (size_t i = 0; i < bitset_words(ranks); i++)
        if (round_live_word(h, ranks, failed, i, false))
            return false;
    return true;
}

void round_live_now(const struct round_header *h, uint32_t ranks,
                    const uint64_t *failed, uint64_t *live)
{
    CHECK(ranks > 0);
    bool back = round_all_back(h, ranks, failed);
    for (size_t i = 0; i < bitset_words(ranks); i++)
        live[i] = round_live_word(h, ranks, failed, i, back);
}

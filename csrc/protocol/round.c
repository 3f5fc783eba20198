/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of rounds; see round.h. Merging unites the sets and takes the lowest initiator. */
#include "protocol/round.h"
#include "base/check.h"
#include "base/error.h"
#include "base/random.h"

_Static_assert(sizeof(struct round_header) == 64, "a header is one line of the cache");

/* Return the bytes of a long header's sets. */
static size_t round_sets_bytes(uint32_t ranks)
{
    size_t bytes = ROUND_MASKS * bitset_words(ranks) * sizeof(uint64_t);
    return ranks > ROUND_PLAIN_RANKS ? (bytes + 63) / 64 * 64 : 0;
}

size_t round_header_bytes(uint32_t ranks)
{
    return round_sets_bytes(ranks) + sizeof(struct round_header);
}

size_t round_header_length(const void *last, uint32_t ranks)
{
    struct round_header h;
    memcpy(&h, last, sizeof h);
    bool is_long = ranks > ROUND_PLAIN_RANKS && h.form == ROUND_LONG;
    return is_long ? round_header_bytes(ranks) : sizeof h;
}

/* Sets and runs. Another member may be writing the header that a member reads (node.h), so
 * whatever it has, no index is out of bounds. */

/* Return a set of a header that has sets. NULL: it has runs. */
static uint64_t *round_set(const struct round_header *h, uint32_t ranks,
                           enum round_mask which)
{
    CHECK(which < ROUND_MASKS);
    uintptr_t sets = (uintptr_t)h->set;
    if (ranks > ROUND_PLAIN_RANKS)
        sets = h->form == ROUND_LONG ? (uintptr_t)h - round_sets_bytes(ranks) : 0;
    return sets ? (uint64_t *)sets + which * bitset_words(ranks) : NULL;
}

/* Return the first run of a set, and one past its last. */
static uint32_t round_runs(const struct round_header *h, enum round_mask which,
                           uint32_t *end)
{
    uint32_t form = h->form, begin = 0;
    for (uint32_t m = 0; m < which; m++)
        begin += form >> 3 * m & 7;
    *end = begin + (form >> 3 * which & 7);
    *end = *end < ROUND_RUNS ? *end : ROUND_RUNS;
    return begin;
}

static bool round_covers(const struct round_header *h, enum round_mask which,
                         uint32_t begin, uint32_t end)
{
    uint32_t last, k = round_runs(h, which, &last);
    while (k < last && !(h->run[k].begin <= begin && end <= h->run[k].end))
        k++;
    return k < last;
}

bool round_has(const struct round_header *h, uint32_t ranks, enum round_mask which,
               uint32_t rank)
{
    const uint64_t *set = round_set(h, ranks, which);
    return set ? bitset_has(set, rank) : round_covers(h, which, rank, rank + 1);
}

uint32_t round_count(const struct round_header *h, uint32_t ranks,
                     enum round_mask which)
{
    const uint64_t *set = round_set(h, ranks, which);
    if (set)
        return bitset_count(set, bitset_words(ranks));
    uint32_t count = 0, end, k = round_runs(h, which, &end);
    for (; k < end; k++)
        count += h->run[k].end - h->run[k].begin;
    return count;
}

/* Add ranks begin to end - 1 to a set, or take them out of it. */
static void round_apply_run(uint64_t *set, uint32_t begin, uint32_t end, bool add)
{
    for (uint32_t bits; begin < end; begin += bits) {
        bits = 64 - begin % 64 < end - begin ? 64 - begin % 64 : end - begin;
        uint64_t word = ~(uint64_t)0 >> (64 - bits) << begin % 64;
        set[begin / 64] = add ? set[begin / 64] | word : set[begin / 64] & ~word;
    }
}

void round_apply(const struct round_header *h, uint32_t ranks, enum round_mask which,
                 uint64_t *set, bool add)
{
    const uint64_t *own = round_set(h, ranks, which);
    for (size_t i = 0; own && i < bitset_words(ranks); i++)
        if (own[i])
            set[i] = add ? set[i] | own[i] : set[i] & ~own[i];
    if (own)
        return;
    uint32_t end, k = round_runs(h, which, &end);
    for (; k < end; k++)
        round_apply_run(set, h->run[k].begin,
                        h->run[k].end < ranks ? h->run[k].end : ranks, add);
}

/* Unite the runs of two headers. False: there is no room. */
static bool round_unite(struct round_header *h, const struct round_header *other)
{
    struct round_header both = *h;
    uint32_t used = 0;
    both.form = 0;
    for (uint32_t m = 0; m < ROUND_MASKS; m++) {
        uint32_t first = used, last[2], k[2];
        const struct round_header *from[2] = {h, other};
        for (int i = 0; i < 2; i++)
            k[i] = round_runs(from[i], m, &last[i]);
        while (k[0] < last[0] || k[1] < last[1]) {
            int i = k[0] == last[0] ||
                    (k[1] < last[1] && other->run[k[1]].begin < h->run[k[0]].begin);
            uint32_t begin = from[i]->run[k[i]].begin, end = from[i]->run[k[i]++].end;
            if (used > first && begin <= both.run[used - 1].end) {
                if (end > both.run[used - 1].end)
                    both.run[used - 1].end = end;
                continue;
            }
            if (used == ROUND_RUNS)
                return false;
            both.run[used].begin = begin;
            both.run[used++].end = end;
        }
        both.form |= (uint16_t)((used - first) << 3 * m);
    }
    *h = both;
    return true;
}

/* Add the sets of another header: as runs, if there is room, else as sets, cleared here. */
static void round_absorb(struct round_header *h, const struct round_header *other,
                         uint32_t ranks)
{
    const struct round_header runs = *h;
    const uint64_t *more = round_set(other, ranks, 0);
    size_t words = ROUND_MASKS * bitset_words(ranks);
    if (!round_set(h, ranks, 0)) {
        if (!more && round_unite(h, other))
            return;
        h->form = ROUND_LONG;
        bitset_clear_sparse(round_set(h, ranks, 0), words);
        for (enum round_mask m = 0; m < ROUND_MASKS; m++)
            round_apply(&runs, ranks, m, round_set(h, ranks, m), true);
    }
    uint64_t *own = round_set(h, ranks, 0);
    for (size_t i = 0; more && i < words; i++)
        if (more[i])
            own[i] |= more[i];
    for (enum round_mask m = 0; !more && m < ROUND_MASKS; m++)
        round_apply(other, ranks, m, round_set(h, ranks, m), true);
}

void round_add(struct round_header *h, uint32_t ranks, enum round_mask which,
               uint32_t begin, uint32_t end)
{
    CHECK(begin < end && end <= ranks);
    uint64_t *set = round_set(h, ranks, which);
    struct round_header run = {.form = (uint16_t)(1 << 3 * which),
                               .run = {{.begin = begin, .end = end}}};
    if (set)
        round_apply_run(set, begin, end, true);
    else
        round_absorb(h, &run, ranks);
}

void round_add_set(struct round_header *h, uint32_t ranks, enum round_mask which,
                   const uint64_t *set)
{
    for (uint32_t begin = 0, end; begin < ranks; begin = end) {
        bool in = bitset_has(set, begin);
        for (end = begin + 1; end < ranks && bitset_has(set, end) == in; end++)
            if (end % 64 == 0 && set[end / 64] == (in ? UINT64_MAX : 0))
                end += 63;
        if (in)
            round_add(h, ranks, which, begin, end < ranks ? end : ranks);
    }
}

/* Headers from other ranks. */

/* Return whether the sets are sets of ranks, and agree with each other. */
static bool round_sets_are_legal(const struct round_header *h, uint32_t ranks)
{
    size_t words = bitset_words(ranks);
    const uint64_t *set[ROUND_MASKS];
    uint64_t beyond = ranks % 64 ? ~(uint64_t)0 << ranks % 64 : 0, bad = 0;
    for (enum round_mask m = 0; m < ROUND_MASKS; m++) {
        set[m] = round_set(h, ranks, m);
        bad |= beyond & set[m][words - 1];
    }
    for (size_t i = 0; i < words; i++)
        bad |= (set[ROUND_STORED][i] & ~set[ROUND_ACTIVE][i]) |
               (set[ROUND_FAILED][i] & ~set[ROUND_LEFT][i]);
    return !bad;
}

static bool round_runs_are_legal(const struct round_header *h, uint32_t ranks)
{
    uint32_t k = 0;
    for (enum round_mask m = 0; m < ROUND_MASKS; m++)
        for (uint32_t least = 0, n = h->form >> 3 * m & 7; n; n--, k++) {
            if (k == ROUND_RUNS || h->run[k].begin < least ||
                h->run[k].begin >= h->run[k].end || h->run[k].end > ranks)
                return false;
            least = h->run[k].end + 1;
            enum round_mask in = m == ROUND_STORED   ? ROUND_ACTIVE
                                 : m == ROUND_FAILED ? ROUND_LEFT
                                                     : m;
            if (!round_covers(h, in, h->run[k].begin, h->run[k].end))
                return false;
        }
    return h->form < ROUND_LONG;
}

int round_header_decode(struct round_header *h, const void *wire, size_t bytes,
                        uint32_t ranks, uint64_t round)
{
    CHECK(bytes == sizeof *h || bytes == round_header_bytes(ranks));
    if ((char *)(h + 1) - bytes != wire)
        memcpy((char *)(h + 1) - bytes, wire, bytes);
    if (round_header_length(h, ranks) != bytes)
        return fail(PCOLL_EPROTOCOL, "a header of round %llu came without its sets",
                    (unsigned long long)h->round);
    return round_header_check(h, ranks, round);
}

int round_header_check(const struct round_header *h, uint32_t ranks, uint64_t round)
{
    bool good = round_set(h, ranks, 0) ? round_sets_are_legal(h, ranks)
                                       : round_runs_are_legal(h, ranks);
    if (good && h->round == round && !(h->flags & ~ROUND_BELOW_QUORUM) &&
        (ranks > ROUND_PLAIN_RANKS || !h->form) &&
        (h->initiator < ranks || h->initiator == ROUND_NOBODY))
        return PCOLL_OK;
    return fail(PCOLL_EPROTOCOL,
                "a header of round %llu came that cannot be one of round %llu",
                (unsigned long long)h->round, (unsigned long long)round);
}

void round_header_merge(struct round_header *out, const struct round_header *a,
                        const struct round_header *b, uint32_t ranks)
{
    CHECK(a->round == b->round);
    const struct round_header *other = out == b ? a : b;
    if (out != a && out != b)
        round_header_copy(out, a, ranks);
    if (other->initiator < out->initiator)
        out->initiator = other->initiator;
    out->flags |= other->flags;
    out->intent |= other->intent;
    round_absorb(out, other, ranks);
}

void round_header_copy(struct round_header *to, const struct round_header *from,
                       uint32_t ranks)
{
    CHECK(to != from);
    size_t bytes = round_header_length(from, ranks);
    memcpy((char *)(to + 1) - bytes, (const char *)(from + 1) - bytes, bytes);
}

uint64_t round_intent(uint64_t number)
{
    uint32_t half = (uint32_t)splitmix_mix(number);
    return number ? (uint64_t)~half << 32 | half : 0;
}

bool round_is_null(const struct round_header *h, uint32_t ranks)
{
    const uint64_t *active = round_set(h, ranks, ROUND_ACTIVE);
    return round_intents_differ(h->intent) ||
           (active ? bitset_empty(active, bitset_words(ranks)) : !(h->form & 7));
}

/* The header may be written to meanwhile; the result is not used then (node.h). */
bool round_all_gone(const struct round_header *h, uint32_t ranks)
{
    const uint64_t *joined = round_set(h, ranks, ROUND_JOINED);
    const uint64_t *left = round_set(h, ranks, ROUND_LEFT);
    uint32_t gone = 0, last, first = round_runs(h, ROUND_JOINED, &last);
    for (size_t i = 0; joined && left && i < bitset_words(ranks); i++)
        gone += (uint32_t)__builtin_popcountll(joined[i] | left[i]);
    round_runs(h, ROUND_LEFT, &last); /* the runs of LEFT follow those of JOINED */
    for (int pass = 0; !joined && pass < ROUND_RUNS; pass++)
        for (uint32_t k = first; k < last; k++)
            if (h->run[k].begin <= gone && gone < h->run[k].end)
                gone = h->run[k].end;
    return gone == ranks;
}

/* Return word i of a set. */
static uint64_t round_word(const struct round_header *h, uint32_t ranks,
                           enum round_mask which, size_t i)
{
    const uint64_t *set = round_set(h, ranks, which);
    if (set)
        return set[i];
    uint64_t word = 0;
    uint32_t first = (uint32_t)(64 * i), last, k = round_runs(h, which, &last);
    for (; k < last; k++) {
        uint32_t begin = h->run[k].begin > first ? h->run[k].begin - first : 0;
        uint32_t end = h->run[k].end > first ? h->run[k].end - first : 0;
        if (begin < 64 && begin < end)
            word |= ~(uint64_t)0 << begin & ~(uint64_t)0 >> (end < 64 ? 64 - end : 0);
    }
    return word;
}

/* Return word i of the set of the live ranks: all but the dead and those that left, and unless
 * all are back, those that joined. Ranks that died before may have new processes. */
static uint64_t round_live_word(const struct round_header *h, uint32_t ranks,
                                const uint64_t *failed, bool back, size_t i)
{
    uint64_t gone = round_word(h, ranks, ROUND_LEFT, i);
    uint32_t rest = ranks - (uint32_t)(64 * i);
    gone |= back ? 0 : round_word(h, ranks, ROUND_JOINED, i);
    gone &= ~round_word(h, ranks, ROUND_FAILED, i);
    gone |= failed ? failed[i] : 0;
    return ~gone & ~(uint64_t)0 >> (rest < 64 ? 64 - rest : 0);
}

/* All are back if all have joined or left, or if those that had not joined are dead. */
uint32_t round_live(const struct round_header *h, uint32_t ranks,
                    const uint64_t *failed, size_t first, size_t words, uint64_t *live)
{
    CHECK(!h || live != h->set);
    static const struct round_header none;
    h = h ? h : &none;
    if (!failed && !round_count(h, ranks, ROUND_LEFT) &&
        !round_count(h, ranks, ROUND_JOINED)) {
        size_t bits = ranks - 64 * first;
        bitset_fill(live, (uint32_t)(bits < 64 * words ? bits : 64 * words));
        return ranks;
    }
    bool back = h == &none || round_all_gone(h, ranks);
    uint32_t count = 0;
    for (;; back = true) {
        for (size_t i = 0; i < bitset_words(ranks); i++)
            count += (uint32_t)__builtin_popcountll(
                round_live_word(h, ranks, failed, back, i));
        if (count || back)
            break;
    }
    for (size_t i = 0; i < words; i++)
        live[i] = round_live_word(h, ranks, failed, back, first + i);
    return count;
}

void round_arrivals(const struct round_header *h, uint32_t ranks, uint64_t *arrived,
                    uint64_t *active)
{
    bitset_clear_sparse(arrived, bitset_words(ranks));
    bitset_clear_sparse(active, bitset_words(ranks));
    round_apply(h, ranks, ROUND_ACTIVE, active, true);
    round_apply(h, ranks, ROUND_ACTIVE, arrived, true);
    round_apply(h, ranks, ROUND_STORED, arrived, false);
    round_apply(h, ranks, ROUND_JOINED, arrived, true);
    round_apply(h, ranks, ROUND_LEFT, arrived, true);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a round: the sets of ranks that contributed, joined, left or died. It
 * travels next to the data of every message and is merged as the data is reduced. After
 * the round every rank holds the same header.
 *
 * A header has the same form in memory and on the wire. struct round_header has 64 bytes.
 * Up to ROUND_PLAIN_RANKS ranks, its sets are words in it. With more ranks there are two
 * forms:
 *
 *   short   The runs of consecutive ranks of all sets, at most ROUND_RUNS in all. A set of
 *           no rank has no run, and a set of one rank or of all ranks has one run.
 *   long    ROUND_MASKS sets of ranks, padded to a multiple of 64 bytes, before the struct.
 *           They are written only when there are more runs than fit.
 *
 * So the header of many ranks needs room before the struct, which is not touched while the
 * header is short, and a message begins there or at the struct. All ranks of a job have the
 * same byte order; messages are not kept beyond the job. The algorithm `native`, which lets
 * MPI combine headers, sends the sets of all ranks.
 *
 * Intents. A contribution may carry a word that says what its rank calls: a number of 32
 * bits and its complement. Headers are merged by OR, so two different numbers leave a word
 * with more than 32 ones, in whatever order they are merged: the ranks differ, and all of
 * them find this in the header of the round. A word of zeros agrees with every other one.
 * Any word that a message brings is legal: the ranks differ, or they do not.
 */
#pragma once

#include "base/bitset.h"

enum round_mask {
    ROUND_ACTIVE, /* Ranks that contributed data. */
    ROUND_STORED, /* The active ranks that had not arrived: their deposit is older. */
    ROUND_JOINED, /* Ranks that have joined: they contribute nothing. */
    ROUND_LEFT,   /* Ranks that have left for good. */
    ROUND_FAILED, /* The ranks in LEFT that have died. */
    ROUND_MASKS
};

enum { ROUND_NOBODY = UINT32_MAX };

/* The last round that a message may name: no job reaches it, and no shift leaves its range. */
#define ROUND_LAST ((uint64_t)1 << 43)

enum round_flag {
    ROUND_BELOW_QUORUM = 1
}; /* A deadline ended the wait for the policy. */

/* Ranks whose sets are one word each. */
#ifdef PCOLL_TEST_PLAIN_RANKS
enum { ROUND_PLAIN_RANKS = PCOLL_TEST_PLAIN_RANKS };
#else
enum { ROUND_PLAIN_RANKS = 64 };
#endif

enum { ROUND_RUNS = 5, ROUND_LONG = 1 << 15 };

struct round_header {
    uint64_t round;
    uint32_t initiator; /* The lowest rank that started it itself, or ROUND_NOBODY. */
    uint16_t flags;     /* enum round_flag */
    uint16_t form;      /* Of more than ROUND_PLAIN_RANKS ranks: the number of runs of
                           each set, three bits for each; or ROUND_LONG. Else 0. */
    uint64_t intent;    /* The intents of the ranks that contributed, merged. */
    union {
        uint64_t set[ROUND_MASKS];
        struct {
            uint32_t begin, end; /* Ranks begin to end - 1. */
        } run[ROUND_RUNS];       /* Set by set, ascending, with gaps between them. */
    };
};

/* Return the bytes of a long header, a multiple of 64, of which the struct is the last part. */
size_t round_header_bytes(uint32_t ranks);
/* Return the length of a message's header. Its last bytes need no alignment, and may be hostile. */
size_t round_header_length(const void *last, uint32_t ranks);
/* Check a header of another rank, which is copied from bytes without alignment, unless it ends
 * where h ends. PCOLL_EPROTOCOL. */
int round_header_decode(struct round_header *h, const void *wire, size_t bytes,
                        uint32_t ranks, uint64_t round);
/* Clear a header of any number of ranks: it is short. */
static inline void round_header_clear(struct round_header *h, uint64_t round)
{
    *h = (struct round_header){.round = round, .initiator = ROUND_NOBODY};
}

/* Add ranks begin to end - 1 to a set of the header, or the ranks of another set. */
void round_add(struct round_header *h, uint32_t ranks, enum round_mask which,
               uint32_t begin, uint32_t end);
void round_add_set(struct round_header *h, uint32_t ranks, enum round_mask which,
                   const uint64_t *set);
bool round_has(const struct round_header *h, uint32_t ranks, enum round_mask which,
               uint32_t rank);
uint32_t round_count(const struct round_header *h, uint32_t ranks,
                     enum round_mask which);
/* Add the ranks of a set of the header to another set, or take them out of it. */
void round_apply(const struct round_header *h, uint32_t ranks, enum round_mask which,
                 uint64_t *set, bool add);
/* Check a header from another rank: its round, its ranks, and that sets agree. PCOLL_EPROTOCOL. */
int round_header_check(const struct round_header *h, uint32_t ranks, uint64_t round);
void round_header_copy(struct round_header *to, const struct round_header *from,
                       uint32_t ranks);
/* Merge a and b into out, which may be a or b. */
void round_header_merge(struct round_header *out, const struct round_header *a,
                        const struct round_header *b, uint32_t ranks);

/* The word of a rank that makes no call any more; it differs from the word of every call. */
#define ROUND_INTENT_ENDED UINT64_MAX

/* Return the word of an intent, which may be any number; 0 is none. */
uint64_t round_intent(uint64_t number);
/* Return whether this word is merged from different intents. */
static inline bool round_intents_differ(uint64_t word)
{
    return __builtin_popcountll(word) > 32;
}

/* Return whether no data goes with this header: no rank contributed, or intents differ. */
bool round_is_null(const struct round_header *h, uint32_t ranks);
/* Find the ranks that had arrived at the round, or announced that they join or leave, and
 * those whose data it has. */
void round_arrivals(const struct round_header *h, uint32_t ranks, uint64_t *arrived,
                    uint64_t *active);
/* Return whether all ranks have joined with this round, or left. */
bool round_all_gone(const struct round_header *h, uint32_t ranks);
/* Compute which ranks are live after the round (h is NULL before the first one) if exactly the ranks
 * in `failed` are dead now (NULL: none): `words` words of their set, from word `first` on. Return
 * the number of all live ranks. When all ranks have joined, all are live again. If those that had
 * not joined are dead, the others are live again, so that they announce the join again. */
uint32_t round_live(const struct round_header *h, uint32_t ranks,
                    const uint64_t *failed, size_t first, size_t words, uint64_t *live);

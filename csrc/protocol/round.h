/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a round: the sets of ranks that contributed, joined, left or died. It
 * travels next to the data of every message and is merged as the data is reduced. After
 * the round every rank holds the same header.
 *
 * In memory: struct round_header followed by ROUND_MASKS sets of ranks, then padding to
 * a multiple of 64 bytes. With more than ROUND_PLAIN_RANKS ranks, struct round_wire
 * follows as the last 64 bytes.
 *
 * On the wire: up to ROUND_PLAIN_RANKS ranks, the header as in memory, which has 64
 * bytes. With more ranks there are two forms, and both end with struct round_wire:
 *
 *   short   struct round_wire alone, 64 bytes. It lists the runs of consecutive ranks
 *           of all sets, at most ROUND_RUNS in all. A set of no rank has no run, and a
 *           set of one rank or of all ranks has one run.
 *   long    everything in memory, if the sets have more runs than that. The algorithm
 *           `native`, which lets MPI combine headers, always sends a form of this size.
 *
 * Both are the last bytes of the header in memory, so a header is encoded in place. All
 * ranks of a job have the same byte order; messages are not kept beyond the job.
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

/* The last round that a message may name. No job reaches it, and sums and shifts of rounds
 * stay in range. */
#define ROUND_LAST ((uint64_t)1 << 43)

enum round_flag {
    ROUND_BELOW_QUORUM = 1
}; /* A deadline ended the wait for the policy. */

struct round_header {
    uint64_t round;
    uint32_t initiator; /* The lowest rank that started it itself, or ROUND_NOBODY. */
    uint32_t flags;     /* enum round_flag */
    uint64_t intent;    /* The intents of the ranks that contributed, merged. */
    uint64_t masks[];
};

/* Ranks whose sets are one word each, so that a header has ROUND_WIRE_BYTES. */
#ifdef PCOLL_TEST_PLAIN_RANKS
enum { ROUND_PLAIN_RANKS = PCOLL_TEST_PLAIN_RANKS };
#else
enum { ROUND_PLAIN_RANKS = 64 };
#endif

enum { ROUND_WIRE_BYTES = 64, ROUND_RUNS = 5 };

/* The last bytes of a header on the wire. */
struct round_wire {
    uint64_t round;
    uint32_t initiator;
    uint16_t flags;
    uint16_t form; /* The runs of each set, three bits for each; or ROUND_LONG. */
    uint64_t intent;
    struct {
        uint32_t begin, end; /* Ranks begin to end - 1. */
    } run[ROUND_RUNS];       /* Set by set. */
};

enum { ROUND_LONG = 1 << 15 };

/* Return the size in memory, a multiple of 64, which is also the most on the wire. */
size_t round_header_bytes(uint32_t ranks);

/* Encode a header in place. Return the number of bytes on the wire: they are the last
 * bytes of the header in memory. */
size_t round_header_encode(struct round_header *h, uint32_t ranks);

/* Return the number of bytes of an encoded header, of which these are the last
 * ROUND_WIRE_BYTES. The bytes need no alignment and may be hostile. */
size_t round_header_encoded_bytes(const void *last, uint32_t ranks);

/* Decode `bytes` bytes from another rank into a header, and check them as
 * round_header_check does. The bytes need no alignment. PCOLL_EPROTOCOL. */
int round_header_decode(struct round_header *h, const void *wire, size_t bytes,
                        uint32_t ranks, uint64_t round);

void round_header_clear(struct round_header *h, uint32_t ranks, uint64_t round);
/* Return whether all fields are zero, as in memory that was never written to. No round
 * has such a header: rank 0 would have started it without taking part. */
bool round_header_is_blank(const struct round_header *h, uint32_t ranks);
uint64_t *round_mask(struct round_header *h, uint32_t ranks, enum round_mask which);
const uint64_t *round_mask_const(const struct round_header *h, uint32_t ranks,
                                 enum round_mask which);

/* Check a header from another rank: it is for this round, all ranks in it exist, and its
 * sets agree with each other. PCOLL_EPROTOCOL. */
int round_header_check(const struct round_header *h, uint32_t ranks, uint64_t round);

/* Copy the header, but not its wire form. */
void round_header_copy(struct round_header *to, const struct round_header *from,
                       uint32_t ranks);

/* Merge a and b into out, which may be a or b. */
void round_header_merge(struct round_header *out, const struct round_header *a,
                        const struct round_header *b, uint32_t ranks);

/* Note that the ranks of a set have died and thus left. NULL: none. */
void round_header_add_failed(struct round_header *h, uint32_t ranks,
                             const uint64_t *failed);

/* The word of a rank that makes no call any more; it differs from the word of every call. */
#define ROUND_INTENT_ENDED UINT64_MAX

/* Return the word of an intent, which may be any number; 0 is none. */
uint64_t round_intent(uint64_t number);
/* Return whether this word is merged from different intents. */
bool round_intents_differ(uint64_t word);

/* Return whether no data goes with this header: no rank contributed, or the ranks differ
 * in their intents. */
bool round_is_null(const struct round_header *h, uint32_t ranks);

/* Return whether all ranks have joined with this round, or left. */
bool round_all_gone(const struct round_header *h, uint32_t ranks);
/* Compute the ranks that are live after the round. When all have joined, all are
 * live again. */
void round_live(const struct round_header *h, uint32_t ranks, uint64_t *live);
/* Compute the same if exactly the ranks in `failed` are dead now (NULL: none). If all
 * others have joined, they are live again, so that they announce the join again. h is NULL before
 * the first round. */
void round_live_now(const struct round_header *h, uint32_t ranks,
                    const uint64_t *failed, uint64_t *live);

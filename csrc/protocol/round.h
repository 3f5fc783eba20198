/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a round: who is in it. It travels in front of every data message and is
 * reduced with the data, so that after the round every rank holds the same one.
 *
 * Wire format: the struct below followed by ROUND_MASKS sets of ranks, padded to 64
 * bytes. All ranks of a job have one byte order; messages are not kept beyond it.
 */
#ifndef PCOLL_PROTOCOL_ROUND_H
#define PCOLL_PROTOCOL_ROUND_H

#include "base/bitset.h"

enum round_mask {
    ROUND_ACTIVE, /* contributed fresh data */
    ROUND_STORED, /* of them: had not arrived, only a deposit from before */
    ROUND_JOINED, /* have joined: contribute nothing, are not waited for */
    ROUND_LEFT,   /* have left for good */
    ROUND_FAILED, /* of them: have died */
    ROUND_MASKS
};

enum { ROUND_NOBODY = UINT32_MAX };

/* No message names a later round: no job gets there, and sums and shifts of rounds stay
 * in range. */
#define ROUND_LAST ((uint64_t)1 << 43)

enum round_flag {
    ROUND_BELOW_QUORUM = 1
}; /* set in a result: a deadline cut it short */

struct round_header {
    uint64_t round;
    uint32_t initiator; /* lowest rank that started the round itself, or ROUND_NOBODY */
    uint32_t flags;     /* enum round_flag */
    uint64_t masks[];
};

/* Size on the wire, a multiple of 64. */
size_t round_header_bytes(uint32_t ranks);
void round_header_clear(struct round_header *h, uint32_t ranks, uint64_t round);
/* All zeros, as in memory that nothing was written to: a round 0 that rank 0 has started and that
 * nobody is in. No round is so. */
bool round_header_is_blank(const struct round_header *h, uint32_t ranks);
uint64_t *round_mask(struct round_header *h, uint32_t ranks, enum round_mask which);
const uint64_t *round_mask_const(const struct round_header *h, uint32_t ranks,
                                 enum round_mask which);

/* The checked decoder: a header that came from elsewhere, for this round. Every rank in it
 * is one, and the sets fit to each other. PCOLL_EPROTOCOL: no round has it. */
int round_header_check(const struct round_header *h, uint32_t ranks, uint64_t round);

/* out = a merged with b; out may be a or b. */
void round_header_merge(struct round_header *out, const struct round_header *a,
                        const struct round_header *b, uint32_t ranks);

/* These have died: they have left for good. NULL: nobody. */
void round_header_bury(struct round_header *h, uint32_t ranks, const uint64_t *failed);

/* Nobody has contributed: there is no data behind this header. */
bool round_is_null(const struct round_header *h, uint32_t ranks);

/* All ranks have joined with this round, or left. */
bool round_all_gone(const struct round_header *h, uint32_t ranks);
/* The ranks that are live after it: when all have joined, all are back. */
void round_live(const struct round_header *h, uint32_t ranks, uint64_t *live);
/* The same, of whom these are dead now (NULL: nobody), and no others; if all others have joined, they
 * are back to say so once more. h is NULL before the first round. */
void round_live_now(const struct round_header *h, uint32_t ranks,
                    const uint64_t *failed, uint64_t *live);

#endif

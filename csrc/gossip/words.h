/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words, slot headers and block notes of a gossip window, checked when they are read:
 * other ranks write them. These are the only code that takes one for what it says.
 *
 * Bad words. A number below 0 or beyond all use, a state that does not exist, a count
 * that is ahead of the one that it follows, a version that goes back: the call that finds
 * one returns PCOLL_EPROTOCOL, with this rank's model as it was or with whole chunks
 * averaged. A queued message whose header cannot be is thrown away and counted, as one
 * that does not decode (decode_failures). A model in a register that lacks its raw plane
 * is refused with PCOLL_EPROTOCOL once it was read whole. Nothing waits for anything, and
 * later calls work if what they read is sound.
 */
#ifndef PCOLL_GOSSIP_WORDS_H
#define PCOLL_GOSSIP_WORDS_H

#include <math.h>
#include <stdbool.h>

#include "base/error.h"
#include "gossip/layout.h"

/* No version, count or generation gets there. */
#define GOSSIP_LAST_WORD ((int64_t)1 << 62)

enum slot_state { FREE = 0, WRITING = 1, FULL = 2, STATES = 4 };

static inline int gossip_refuse(uint32_t rank, const char *what, int64_t word)
{
    return fail(PCOLL_EPROTOCOL, "the window of rank %u has %s that cannot be: %lld",
                rank, what, (long long)word);
}

static inline bool gossip_is_number(int64_t word)
{
    return word >= 0 && word < GOSSIP_LAST_WORD;
}

/* The state of a slot of the queue. */
static inline int gossip_decode_state(uint32_t rank, int64_t word,
                                      enum slot_state *state)
{
    *state = (enum slot_state)(word & (STATES - 1));
    return gossip_is_number(word) && *state <= FULL
               ? PCOLL_OK
               : gossip_refuse(rank, "a state of its queue", word);
}

/* A version that is read after that one (0: the first). */
static inline int gossip_decode_version(uint32_t rank, int64_t word, uint64_t before,
                                        uint64_t *version)
{
    *version = (uint64_t)word;
    return gossip_is_number(word) && *version >= before
               ? PCOLL_OK
               : gossip_refuse(rank, "a version", word);
}

/* By how much a count of the accumulator is ahead of another; it may be below 0 where
 * they were not read in an order that forbids it. */
static inline int gossip_decode_lead(uint32_t rank, int64_t ahead, int64_t behind,
                                     bool ordered, int64_t *lead)
{
    bool sound = gossip_is_number(ahead) && gossip_is_number(behind);
    *lead = sound ? ahead - behind : 0;
    return sound && (!ordered || *lead >= 0)
               ? PCOLL_OK
               : gossip_refuse(rank, "a count of its accumulator", ahead);
}

static inline bool gossip_header_fits(const struct layout *l,
                                      const struct slot_header *h)
{
    return h->source < l->ranks &&
           !(h->planes & ~(uint32_t)(PLANE_LOW | PLANE_HIGH | PLANE_RAW)) &&
           gossip_is_number((int64_t)h->number);
}

/* Is there something to decode in this block? */
static inline bool gossip_note_fits(const struct block_note *note)
{
    return note->coded == 1 && note->step >= 0 && isfinite(note->step);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which send meets which receive. Messages from one rank to another with the same tag
 * are matched in the order in which they were written down: the n-th send meets the
 * n-th receive, whenever they are carried out. So every message of a pair of ranks has
 * a number of its own, its edge: the place of (tag, n) among those of the pair. Both
 * sides count alike, if they have the same messages; whether they do, the ranks
 * compare.
 */
#ifndef PCOLL_USER_SCHEDULE_MATCHING_H
#define PCOLL_USER_SCHEDULE_MATCHING_H

#include "user_schedule/builder.h"

/* Fill in ordinal, edge and partner of the builder's operations, and tags.
 * PCOLL_ENOMEM.
 */
int messages_number(struct builder *d);

/*
 * A sum over all ranks of these is zero if every send has its receive, of the same size
 * and dtype; if not, it is zero once in 2^128 times.
 */
enum { DIGEST_WORDS = 2 };
void messages_digest(const struct builder *d, uint64_t digest[DIGEST_WORDS]);

/* All messages of the builder in words, to find out which do not match. */
enum { MESSAGE_WORDS = 4 };
uint32_t messages_count(const struct builder *d);
/* Given how many each rank has: how many come before this rank's, and all. Other ranks
 * say so: PCOLL_EPROTOCOL on this rank if it cannot be, and nothing is committed. */
int messages_place(const struct builder *d, const uint64_t *counts, uint64_t *before,
                   uint64_t *total);
void messages_write(const struct builder *d, uint64_t *words);
/* PCOLL_EMISMATCH with the first that does not match, both sides named; PCOLL_OK if
 * there is none. `words` are those of all ranks, and are sorted. */
int messages_compare(uint64_t *words, uint64_t count);

#endif

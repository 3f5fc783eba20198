/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program asks of the rounds of a communicator, as text: that of a policy
 * (docs/semantics.md), with two more modifiers, each at most once:
 *
 *   "history=" rounds      how many rounds a rank may lag before the others wait for it
 *   "deliver=" one | all   whether a call returns one round, or all that this rank has not
 *                          seen: their sum (MPI_SUM), or the newest (other ops)
 */
#ifndef PCOLL_COMPAT_MPI_SHAPED_QUORUM_H
#define PCOLL_COMPAT_MPI_SHAPED_QUORUM_H

#include <stdbool.h>

#include "include/partialcoll.h"

/* Zeros and the kind PCOLL_FULL: complete rounds. */
struct quorum {
    pcoll_policy policy;
    uint32_t history; /* 0: 8 */
    int32_t deliver;  /* enum pcoll_deliver */
};

/* PCOLL_EINVAL says what is wrong; *quorum is then as it was. */
int quorum_parse(const char *text, struct quorum *quorum);

bool quorum_same(const struct quorum *a, const struct quorum *b);

/* A number by which ranks compare theirs. */
uint64_t quorum_hash(const struct quorum *quorum);

/* Does a round need the agent: may it complete without somebody, or at a time? */
bool quorum_is_partial(const struct quorum *quorum);

#endif

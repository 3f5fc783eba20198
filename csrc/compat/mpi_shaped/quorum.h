/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program asks of the rounds of a communicator.
 *
 * A quorum is the text of a policy (docs/semantics.md) with two more modifiers, each at most
 * once:
 *
 *   "history=" rounds      how many rounds a rank may lag before the others wait for it
 *   "deliver=" one | all   whether a call returns one round, or all rounds that this rank has
 *                          not seen: their sum (MPI_SUM), or the newest (other ops)
 *
 * A choice is a quorum and the other settings that the environment has for both drop-ins.
 */
#ifndef PCOLL_COMPAT_MPI_SHAPED_QUORUM_H
#define PCOLL_COMPAT_MPI_SHAPED_QUORUM_H

#include <stdbool.h>

#include "include/partialcoll.h"

enum { QUORUM_TEXT = 200 }; /* Bytes of the longest text, with its end. */

struct quorum {
    pcoll_policy policy;
    uint32_t history; /* 0 stands for 8. */
    int32_t deliver;  /* enum pcoll_deliver */
};
#define QUORUM_FULL ((struct quorum){.policy.kind = PCOLL_FULL})

/* Parse a text. PCOLL_EINVAL says what is wrong, and leaves *quorum as it was. */
int quorum_parse(const char *text, struct quorum *quorum);
bool quorum_same(const struct quorum *a, const struct quorum *b);
/* Return a number by which ranks compare their quorums. */
uint64_t quorum_hash(const struct quorum *quorum);
/* Return whether a round may complete without some ranks, or at a time. It then needs the agent. */
bool quorum_is_partial(const struct quorum *quorum);

/* Zeros and QUORUM_FULL are the defaults. */
struct choice {
    struct quorum quorum;  /* PARTIALCOLL_QUORUM */
    int32_t algorithm;     /* PARTIALCOLL_ALGORITHM */
    int32_t domain;        /* PARTIALCOLL_DOMAIN */
    uint32_t domain_ranks; /* The number of ranks that PARTIALCOLL_DOMAIN may name. */
    int32_t progress;      /* PARTIALCOLL_PROGRESS */
    bool asked; /* An algorithm or a domain is given: complete rounds are ours. */
};

enum choice_variable {
    CHOICE_ALGORITHM,
    CHOICE_DOMAIN,
    CHOICE_QUORUM,
    CHOICE_PROGRESS,
    CHOICE_VARIABLES
};
extern const char *const choice_names[CHOICE_VARIABLES];

/* Read one variable of the environment, if it is set. PCOLL_EINVAL. */
int choice_read(struct choice *choice, enum choice_variable variable);
/* Return a number by which ranks compare the algorithm and the domain. */
uint64_t choice_hash(const struct choice *choice);

#endif

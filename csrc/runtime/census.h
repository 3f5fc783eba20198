/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all who are left find out about the objects that they had (recovery.h): who has each
 * of them, and how many rounds are complete anywhere. Each rank writes down what it has;
 * the maxima over all are what all know. Pure.
 */
#ifndef PCOLL_RUNTIME_CENSUS_H
#define PCOLL_RUNTIME_CENSUS_H

#include <stdbool.h>
#include <stdint.h>

enum { CENSUS_WORDS = 3 };

/* By slot. */
struct census {
    uint64_t *lacking; /* does anybody lack it? */
    uint64_t *claim;   /* rounds complete, and who has them */
    uint64_t *least;   /* ~ of the fewest rounds that are complete */
};

/* What is known of an object on all ranks. */
struct recovery_plan {
    uint32_t slot;
    uint64_t complete; /* rounds, the most anywhere */
    uint32_t source;   /* the lowest rank that has completed so many; … */
    bool some_lack;    /* … some have not */
};

/* In CENSUS_WORDS for each slot: a rank that has nothing. */
void census_begin(struct census *s, uint64_t *words, uint64_t slots);
/* It has this one, with so many rounds complete. */
void census_note(struct census *s, uint32_t slot, uint64_t complete, uint32_t rank);
/* Of the maxima, which are checked: who has the rounds is one of so many ranks, and nobody
 * has more. `own`: the rounds complete here, 0 of what this rank lacks. PCOLL_EPROTOCOL:
 * the maxima cannot be; the recovery then fails on this rank. */
int census_plan(const struct census *s, uint32_t slot, uint32_t ranks, uint64_t own,
                struct recovery_plan *plan);

#endif

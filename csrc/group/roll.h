/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who takes part, as far as this rank has been told. Ranks say themselves that they go
 * and that they are back; that one is silent is said by those who have waited for it.
 * What was said of a rank before its last return is out of date: every return has a
 * number, and word of an earlier one is dropped. One that is back asks the others where
 * they are, joins the latest of them, and says so: those who are in an earlier round do
 * not wait for it there. No I/O.
 */
#ifndef PCOLL_GROUP_ROLL_H
#define PCOLL_GROUP_ROLL_H

#include <stdbool.h>
#include <stdint.h>

enum standing { STANDING_LIVE, STANDING_AWAY, STANDING_SUSPECT };

struct roll_entry {
    enum standing standing;
    uint32_t returns; /* how often it has come back */
    uint64_t from;    /* live, and takes part from this round on */
};

struct roll {
    struct roll_entry *entries; /* by rank */
    uint32_t ranks, live;
};

/* All live. PCOLL_ENOMEM. */
int roll_init(struct roll *r, uint32_t ranks);
void roll_destroy(struct roll *r);

/* What is said of a rank after so many returns. Is it news? */
bool roll_set(struct roll *r, uint32_t rank, enum standing standing, uint32_t returns);

/* It joins in this round, and says so after so many returns. Is it news? */
bool roll_join(struct roll *r, uint32_t rank, uint32_t returns, uint64_t from);
/* How many other ranks can be asked: all but those that are silent. */
uint32_t roll_others(const struct roll *r, uint32_t rank);
/* How many take part in a round. */
uint32_t roll_count(const struct roll *r, uint64_t round);

static inline bool roll_is_live(const struct roll *r, uint32_t rank)
{
    return r->entries[rank].standing == STANDING_LIVE;
}

static inline bool roll_takes_part(const struct roll *r, uint32_t rank, uint64_t round)
{
    return roll_is_live(r, rank) && r->entries[rank].from <= round;
}

#endif

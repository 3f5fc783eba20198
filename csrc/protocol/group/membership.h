/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who takes part, as far as this rank has been told. Ranks say themselves that they go
 * and that they are back; that one is silent is said by those who have waited for it.
 * What was said of a rank before its last return is out of date: every return has a
 * number, and word of an earlier one is dropped. One that is back asks the others where
 * they are, joins the latest of them, and says so: those who are in an earlier round do
 * not wait for it there. No I/O.
 */
#ifndef PCOLL_PROTOCOL_GROUP_MEMBERSHIP_H
#define PCOLL_PROTOCOL_GROUP_MEMBERSHIP_H

#include <stdbool.h>
#include <stdint.h>

/* DEAD is for good: no word of anybody changes it. */
enum member_status { MEMBER_LIVE, MEMBER_AWAY, MEMBER_SUSPECT, MEMBER_DEAD };

struct membership_entry {
    enum member_status status;
    uint32_t returns; /* how often it has come back */
    uint64_t from;    /* live, and takes part from this round on */
};

struct membership {
    struct membership_entry *entries; /* by rank */
    uint32_t ranks, live;
};

/* All live. PCOLL_ENOMEM. */
int membership_init(struct membership *r, uint32_t ranks);
void membership_destroy(struct membership *r);

/* What is said of a rank after so many returns. Is it news? */
bool membership_set(struct membership *r, uint32_t rank, enum member_status status,
                    uint32_t returns);

/* It joins in this round, and says so after so many returns. Is it news? */
bool membership_join(struct membership *r, uint32_t rank, uint32_t returns,
                     uint64_t from);
/* What all who live have agreed on, when ranks have died: how it is with this one, which
 * takes part from this round on. */
void membership_agreed(struct membership *r, uint32_t rank, enum member_status status,
                       uint32_t returns, uint64_t from);
/* How many other ranks can be asked: all but those that are silent, or dead. */
uint32_t membership_others(const struct membership *r, uint32_t rank);
/* How many take part in a round. */
uint32_t membership_count(const struct membership *r, uint64_t round);

static inline bool membership_is_live(const struct membership *r, uint32_t rank)
{
    return r->entries[rank].status == MEMBER_LIVE;
}

static inline bool membership_takes_part(const struct membership *r, uint32_t rank,
                                         uint64_t round)
{
    return membership_is_live(r, rank) && r->entries[rank].from <= round;
}

#endif

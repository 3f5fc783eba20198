/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks take part, as far as this rank knows. A rank announces itself that it
 * leaves and that it is back. The ranks that have waited for a silent rank say that it
 * is silent. Each return of a rank has a number. A statement about a rank from before
 * its last return is out of date, and is dropped. A rank that is back asks the others
 * for their rounds, joins the latest of them, and says so: ranks in an earlier round do
 * not wait for it there. No I/O.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* DEAD is final: no statement changes it. */
enum member_status { MEMBER_LIVE, MEMBER_AWAY, MEMBER_SUSPECT, MEMBER_DEAD };

struct membership_entry {
    enum member_status status;
    uint32_t returns; /* Number of its returns. */
    uint64_t from;    /* It is live, and takes part from this round on. */
};

struct membership {
    struct membership_entry *entries; /* By rank. */
    uint32_t ranks, live;
};

/* Initialize with all ranks live. PCOLL_ENOMEM. */
int membership_init(struct membership *r, uint32_t ranks);
void membership_destroy(struct membership *r);

/* Take a statement about a rank after its return number `returns`. True: it is new. */
bool membership_set(struct membership *r, uint32_t rank, enum member_status status,
                    uint32_t returns);

/* Take a rank's own statement that it joins in round `from`. True: it is new. */
bool membership_join(struct membership *r, uint32_t rank, uint32_t returns,
                     uint64_t from);
/* Set what all live ranks have agreed on after ranks have died. */
void membership_agreed(struct membership *r, uint32_t rank, enum member_status status,
                       uint32_t returns, uint64_t from);
/* Return the number of other ranks that can be asked: all but silent and dead ones. */
uint32_t membership_others(const struct membership *r, uint32_t rank);
/* Return the number of ranks that take part in a round. */
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

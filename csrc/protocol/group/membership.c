/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks take part; see membership.h. */
#include "protocol/group/membership.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"

int membership_init(struct membership *r, uint32_t ranks)
{
    CHECK(ranks >= 1);
    *r = (struct membership){
        .entries = calloc(ranks, sizeof *r->entries), .ranks = ranks, .live = ranks};
    return r->entries ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for %u ranks", ranks);
}

void membership_destroy(struct membership *r)
{
    CHECK(r->live <= r->ranks);
    free(r->entries);
    r->entries = NULL;
}

/* Is the statement new? A rank that has left is not suspected as well. */
static bool membership_is_news(const struct membership_entry *e,
                               enum member_status status, uint32_t returns)
{
    if (e->status == MEMBER_DEAD)
        return false;
    if (returns != e->returns)
        return returns > e->returns;
    return status != MEMBER_LIVE && e->status != MEMBER_AWAY && status != e->status;
}

bool membership_set(struct membership *r, uint32_t rank, enum member_status status,
                    uint32_t returns)
{
    CHECK(rank < r->ranks);
    struct membership_entry *e = &r->entries[rank];
    if (!membership_is_news(e, status, returns))
        return false;
    r->live += (status == MEMBER_LIVE) - (e->status == MEMBER_LIVE);
    CHECK(r->live <= r->ranks && returns >= e->returns);
    *e = (struct membership_entry){.status = status, .returns = returns};
    return true;
}

bool membership_join(struct membership *r, uint32_t rank, uint32_t returns,
                     uint64_t from)
{
    CHECK(rank < r->ranks);
    struct membership_entry *e = &r->entries[rank];
    if (e->status == MEMBER_DEAD || returns != e->returns || from <= e->from)
        return false;
    e->from = from;
    return true;
}

void membership_agreed(struct membership *r, uint32_t rank, enum member_status status,
                       uint32_t returns, uint64_t from)
{
    CHECK(rank < r->ranks && status != MEMBER_SUSPECT);
    struct membership_entry *e = &r->entries[rank];
    CHECK(e->status != MEMBER_DEAD || status == MEMBER_DEAD);
    r->live += (status == MEMBER_LIVE) - (e->status == MEMBER_LIVE);
    *e = (struct membership_entry){.status = status, .returns = returns, .from = from};
}

uint32_t membership_others(const struct membership *r, uint32_t rank)
{
    CHECK(rank < r->ranks);
    uint32_t others = 0;
    for (uint32_t i = 0; i < r->ranks; i++)
        others += i != rank && r->entries[i].status != MEMBER_SUSPECT &&
                  r->entries[i].status != MEMBER_DEAD;
    return others;
}

uint32_t membership_count(const struct membership *r, uint64_t round)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < r->ranks; rank++)
        count += membership_takes_part(r, rank, round);
    CHECK(count <= r->live);
    return count;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes part. */
#include "roll.h"

#include <stdlib.h>

#include "../base/error.h"

int roll_init(struct roll *r, uint32_t ranks)
{
    *r = (struct roll){
        .entries = calloc(ranks, sizeof *r->entries), .ranks = ranks, .live = ranks};
    return r->entries ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for %u ranks", ranks);
}

void roll_destroy(struct roll *r)
{
    free(r->entries);
    r->entries = NULL;
}

/* A rank that has left is not suspected besides. */
static bool is_news(const struct roll_entry *e, enum standing standing,
                    uint32_t returns)
{
    if (returns != e->returns)
        return returns > e->returns;
    return standing != STANDING_LIVE && e->standing != STANDING_AWAY &&
           standing != e->standing;
}

bool roll_set(struct roll *r, uint32_t rank, enum standing standing, uint32_t returns)
{
    struct roll_entry *e = &r->entries[rank];
    if (!is_news(e, standing, returns))
        return false;
    r->live += (standing == STANDING_LIVE) - (e->standing == STANDING_LIVE);
    *e = (struct roll_entry){.standing = standing, .returns = returns};
    return true;
}

bool roll_join(struct roll *r, uint32_t rank, uint32_t returns, uint64_t from)
{
    struct roll_entry *e = &r->entries[rank];
    if (returns != e->returns || from <= e->from)
        return false;
    e->from = from;
    return true;
}

uint32_t roll_others(const struct roll *r, uint32_t rank)
{
    uint32_t others = 0;
    for (uint32_t i = 0; i < r->ranks; i++)
        others += i != rank && r->entries[i].standing != STANDING_SUSPECT;
    return others;
}

uint32_t roll_count(const struct roll *r, uint64_t round)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < r->ranks; rank++)
        count += roll_takes_part(r, rank, round);
    return count;
}

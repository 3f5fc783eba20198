/* SPDX-License-Identifier: Apache-2.0 */
/* See group.h. Hosts are numbered by their first rank. The k-th connection between hosts a and b
 * is held by member (b + k) of a and member (a + k) of b. */
#include "watch/group.h"

#include "base/check.h"

enum { GROUP_PAIRS = 2 };

/* Does a watch run in this rank's process? */
static bool group_has_watch(const struct watch_group *g, uint32_t rank)
{
    return g->cards[rank].port != 0;
}

static uint32_t group_members(const struct watch_group *g, uint64_t host)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < g->size; r++)
        count += group_has_watch(g, r) && g->hosts[r] == host;
    return count;
}

static uint32_t group_member(const struct watch_group *g, uint64_t host, uint32_t which)
{
    for (uint32_t r = 0; r < g->size; r++)
        if (group_has_watch(g, r) && g->hosts[r] == host && !which--)
            return r;
    CHECK(false);
    return 0;
}

static bool group_is_first(const struct watch_group *g, uint32_t rank)
{
    for (uint32_t r = 0; r < rank; r++)
        if (group_has_watch(g, r) && g->hosts[r] == g->hosts[rank])
            return false;
    return group_has_watch(g, rank);
}

static uint32_t group_number_of(const struct watch_group *g, uint64_t host)
{
    uint32_t number = 0;
    for (uint32_t r = 0; !(group_is_first(g, r) && g->hosts[r] == host); r++) {
        CHECK(r + 1 < g->size);
        number += group_is_first(g, r);
    }
    return number;
}

void group_each_peer(const struct watch_group *g,
                     void (*each)(void *arg, const struct watch_card *peer,
                                  uint64_t host),
                     void *arg)
{
    if (!group_has_watch(g, g->rank))
        return;
    uint64_t own = g->hosts[g->rank];
    uint32_t here = group_members(g, own), a = group_number_of(g, own), b = 0;
    for (uint32_t r = 0; r < g->size; r++) {
        uint64_t host = g->hosts[r];
        if (!group_is_first(g, r))
            continue;
        uint32_t there = group_members(g, host), pairs = here > there ? here : there;
        for (uint32_t k = 0; host != own && k < GROUP_PAIRS && k < pairs; k++)
            if (group_member(g, own, (b + k) % here) == g->rank)
                each(arg, &g->cards[group_member(g, host, (a + k) % there)], host);
        b++;
    }
}

bool group_has_host(const struct watch_group *g, uint64_t host)
{
    for (uint32_t r = 0; r < g->size; r++)
        if (g->hosts[r] == host)
            return true;
    return false;
}

bool group_has_process(const struct watch_group *g, uint64_t id)
{
    for (uint32_t r = 0; g->cards && r < g->size; r++)
        if (g->cards[r].port && g->cards[r].id == id)
            return true;
    return false;
}

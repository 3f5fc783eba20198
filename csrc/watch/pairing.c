/* SPDX-License-Identifier: Apache-2.0 */
/* See pairing.h. Hosts are numbered by their first rank; the k-th connection of hosts a and b is
 * that of members (b + k) of a and (a + k) of b. */
#include "watch/pairing.h"

#include "base/check.h"

enum { PAIRS = 2 };

/* Of the ranks that take part. */
static bool is_there(const struct watch_party *p, uint32_t rank)
{
    return p->cards[rank].port != 0;
}

static uint32_t members(const struct watch_party *p, uint64_t host)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < p->size; r++)
        count += is_there(p, r) && p->hosts[r] == host;
    return count;
}

static uint32_t member(const struct watch_party *p, uint64_t host, uint32_t which)
{
    for (uint32_t r = 0; r < p->size; r++)
        if (is_there(p, r) && p->hosts[r] == host && !which--)
            return r;
    CHECK(false);
    return 0;
}

static bool is_first(const struct watch_party *p, uint32_t rank)
{
    for (uint32_t r = 0; r < rank; r++)
        if (is_there(p, r) && p->hosts[r] == p->hosts[rank])
            return false;
    return is_there(p, rank);
}

static uint32_t number_of(const struct watch_party *p, uint64_t host)
{
    uint32_t number = 0;
    for (uint32_t r = 0; !(is_first(p, r) && p->hosts[r] == host); r++) {
        CHECK(r + 1 < p->size);
        number += is_first(p, r);
    }
    return number;
}

void pairing_each(const struct watch_party *p,
                  void (*each)(void *arg, const struct watch_card *peer, uint64_t host),
                  void *arg)
{
    if (!is_there(p, p->rank))
        return;
    uint64_t own = p->hosts[p->rank];
    uint32_t here = members(p, own), a = number_of(p, own), b = 0;
    for (uint32_t r = 0; r < p->size; r++) {
        uint64_t host = p->hosts[r];
        if (!is_first(p, r))
            continue;
        uint32_t there = members(p, host), pairs = here > there ? here : there;
        for (uint32_t k = 0; host != own && k < PAIRS && k < pairs; k++)
            if (member(p, own, (b + k) % here) == p->rank)
                each(arg, &p->cards[member(p, host, (a + k) % there)], host);
        b++;
    }
}

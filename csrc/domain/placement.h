/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The placement of a handle's ranks: which ranks share memory and form a domain, and the fabric,
 * whose endpoints are the domains. The lowest rank of a domain, its leader, acts for it. Every
 * rank computes the same placement from data that all have.
 */
#pragma once

#include <stdbool.h>

#include "include/partialcoll.h"

enum { PLACEMENT_NOWHERE = UINT32_MAX };

struct placement {
    uint32_t ranks;
    uint32_t domains;
    uint32_t index;    /* of this rank's domain */
    uint32_t per_host; /* domains on each host; 0: not the same number on all */
    uint32_t *leader;  /* By domain: its lowest rank. Domains are numbered host by host,
                          hosts in the order of their lowest rank. NULL: each rank is the
                          domain of the same number, so that no table is needed. */
    uint32_t *domain;  /* By rank: its domain; PLACEMENT_NOWHERE: it has died. NULL as
                          `leader`. */
    uint32_t members;  /* of this rank's domain */
    uint32_t *member;  /* its ranks, in order */
    uint32_t who;      /* this rank among them */
    bool leads;
};

/*
 * hosts[r] is the host of rank r: ranks with equal values can share memory (NULL: no two
 * can). A domain has at most `most` ranks, 0: no limit; the ranks are then distributed
 * evenly, neighbors together. Ranks that have died (a set; NULL: none) are left
 * out. PCOLL_ENOMEM.
 */
int placement_init(struct placement *p, uint32_t rank, uint32_t ranks,
                   const uint64_t *hosts, const uint64_t *failed, uint32_t most);
void placement_destroy(struct placement *p);

/* Return the lowest rank of a domain. */
static inline uint32_t placement_leader(const struct placement *p, uint32_t domain)
{
    return p->leader ? p->leader[domain] : domain;
}

/* Return the domain of a rank; PLACEMENT_NOWHERE: the rank has died. */
static inline uint32_t placement_domain(const struct placement *p, uint32_t rank)
{
    return p->domain ? p->domain[rank] : rank;
}

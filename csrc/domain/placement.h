/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The placement of a handle's ranks: which ranks share memory and form a domain, and the fabric,
 * whose endpoints are the domains. The lowest rank of a domain, its leader, acts for it. Every
 * rank computes the same placement from data that all have.
 */
#ifndef PCOLL_DOMAIN_PLACEMENT_H
#define PCOLL_DOMAIN_PLACEMENT_H

#include <stdbool.h>

#include "include/partialcoll.h"

enum { PLACEMENT_NOWHERE = UINT32_MAX };

struct placement {
    uint32_t ranks;
    uint32_t domains;
    uint32_t index;    /* of this rank's domain */
    uint32_t per_host; /* domains on each host; 0: not the same number on all */
    uint32_t *leader;  /* by domain: its lowest rank. Domains are numbered host by host,
                          hosts in the order of their lowest rank */
    uint32_t *domain;  /* by rank; of one that has died PLACEMENT_NOWHERE */
    uint32_t members;  /* of this rank's domain */
    uint32_t *member;  /* its ranks, in order */
    uint32_t who;      /* this rank among them */
    bool leads;
};

/*
 * hosts[r] tells where rank r is: ranks with equal values can share memory (NULL: no two
 * can). At most `most` ranks to a domain, 0: as many as there are; they are then dealt
 * out evenly, neighbors together. Ranks that have died (a set; NULL: nobody) are left
 * out. PCOLL_ENOMEM.
 */
int placement_init(struct placement *p, uint32_t rank, uint32_t ranks,
                   const uint64_t *hosts, const uint64_t *failed, uint32_t most);
void placement_destroy(struct placement *p);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Who shares memory with whom; see placement.h. */
#include "domain/placement.h"

#include <stdlib.h>
#include <string.h>

#include "base/bitset.h"
#include "base/check.h"
#include "base/error.h"

static bool has_failed(const uint64_t *failed, uint32_t rank)
{
    return failed && bitset_has(failed, rank);
}

/* How many ranks are where rank r is, and how many of them come before it. */
static uint32_t neighbors(const uint64_t *hosts, uint32_t ranks, uint32_t rank,
                          const uint64_t *failed, uint32_t *before)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        *before = i == rank ? count : *before;
        count += hosts[i] == hosts[rank] && !has_failed(failed, i);
    }
    return count;
}

/* Is this the first rank of a part of its host's ranks? They are cut as evenly as
 * possible into as few parts as `most` allows. */
static bool begins_part(uint32_t position, uint32_t count, uint32_t most)
{
    if (!most || most >= count)
        return position == 0;
    uint32_t parts = (count + most - 1) / most;
    for (uint32_t k = 0; k < parts; k++)
        if ((uint32_t)((uint64_t)count * k / parts) == position)
            return true;
    return false;
}

/* The domain that the rank joins: that of the neighbor just before it. */
static uint32_t domain_before(const struct placement *p, const uint64_t *hosts,
                              uint32_t rank)
{
    for (uint32_t i = rank; i-- > 0;)
        if (hosts[i] == hosts[rank] && p->domain[i] != PLACEMENT_NOWHERE)
            return p->domain[i];
    return PLACEMENT_NOWHERE;
}

static void deal(struct placement *p, const uint64_t *hosts, const uint64_t *failed,
                 uint32_t most)
{
    for (uint32_t r = 0; r < p->ranks; r++) {
        p->domain[r] = PLACEMENT_NOWHERE;
        if (has_failed(failed, r))
            continue;
        uint32_t position = 0,
                 count = hosts ? neighbors(hosts, p->ranks, r, failed, &position) : 1;
        if (begins_part(position, count, most)) {
            p->domain[r] = p->domains;
            p->leader[p->domains++] = r;
        } else
            p->domain[r] = domain_before(p, hosts, r);
    }
}

int placement_init(struct placement *p, uint32_t rank, uint32_t ranks,
                   const uint64_t *hosts, const uint64_t *failed, uint32_t most)
{
    CHECK(rank < ranks && !has_failed(failed, rank));
    *p = (struct placement){.ranks = ranks};
    p->leader = calloc(ranks, sizeof *p->leader);
    p->domain = calloc(ranks, sizeof *p->domain);
    p->member = calloc(ranks, sizeof *p->member);
    if (!p->leader || !p->domain || !p->member) {
        placement_destroy(p);
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", ranks);
    }
    deal(p, hosts, failed, most);
    p->index = p->domain[rank];
    p->leads = p->leader[p->index] == rank;
    for (uint32_t r = 0; r < ranks; r++) {
        if (p->domain[r] != p->index)
            continue;
        p->who = r == rank ? p->members : p->who;
        p->member[p->members++] = r;
    }
    CHECK(p->who < p->members && p->member[p->who] == rank);
    CHECK(p->domains > 0 && p->index < p->domains);
    CHECK(p->leader[p->index] == p->member[0]);
    return PCOLL_OK;
}

void placement_destroy(struct placement *p)
{
    CHECK(p);
    free(p->leader);
    free(p->domain);
    free(p->member);
    *p = (struct placement){0};
}

int pcoll_domain_parse(const char *text, int32_t *domain, uint32_t *domain_ranks)
{
    static const char *const words[] = {[PCOLL_DOMAIN_NODE] = "node",
                                        [PCOLL_DOMAIN_RANK] = "rank",
                                        [PCOLL_DOMAIN_AUTO] = "auto"};
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++) {
        unsigned long most = 0;
        char *end = NULL;
        if (strlen(words[i]) != length || strncmp(words[i], text, length) != 0)
            continue;
        if (colon && colon[1] >= '1' && colon[1] <= '9' && i != PCOLL_DOMAIN_RANK)
            most = strtoul(colon + 1, &end, 10);
        if (colon && (!end || *end || most > UINT32_MAX))
            break;
        *domain = i;
        *domain_ranks = (uint32_t)most;
        return PCOLL_OK;
    }
    return fail(PCOLL_EINVAL,
                "domain: expected \"node\", \"rank\", \"auto\", \"node:K\" or "
                "\"auto:K\" with at most K ranks in a domain, got \"%.50s\"",
                text);
}

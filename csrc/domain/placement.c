/* SPDX-License-Identifier: Apache-2.0 */
/* See placement.h. */
#include "domain/placement.h"

#include <stdlib.h>
#include <string.h>

#include "base/bitset.h"
#include "base/check.h"
#include "base/error.h"

static bool placement_has_failed(const uint64_t *failed, uint32_t rank)
{
    return failed && bitset_has(failed, rank);
}

/* Does a domain begin with this rank of a host? The host's ranks are cut as evenly as possible into
 * as few domains as `most` allows. */
static bool placement_begins_part(uint32_t position, uint32_t count, uint32_t most)
{
    if (!most || most >= count)
        return position == 0;
    uint32_t parts = (count + most - 1) / most;
    for (uint32_t k = 0; k < parts; k++)
        if ((uint32_t)((uint64_t)count * k / parts) == position)
            return true;
    return false;
}

static bool placement_is_on_host(const uint64_t *hosts, const uint64_t *failed,
                                 uint32_t rank, uint32_t first)
{
    return hosts[rank] == hosts[first] && !placement_has_failed(failed, rank);
}

/* Make the domains of the host whose lowest live rank is `first`. */
static void placement_deal_host(struct placement *p, const uint64_t *hosts,
                                const uint64_t *failed, uint32_t most, uint32_t first)
{
    uint32_t count = 0, position = 0;
    for (uint32_t r = first; r < p->ranks; r++)
        count += placement_is_on_host(hosts, failed, r, first);
    for (uint32_t r = first; r < p->ranks; r++) {
        if (!placement_is_on_host(hosts, failed, r, first))
            continue;
        if (placement_begins_part(position++, count, most))
            p->leader[p->domains++] = r;
        p->domain[r] = p->domains - 1;
    }
}

/* Number the domains host by host, so that domains with neighboring numbers are on the same host
 * where possible. */
static void placement_deal(struct placement *p, const uint64_t *hosts,
                           const uint64_t *failed, uint32_t most)
{
    for (uint32_t r = 0; r < p->ranks; r++)
        p->domain[r] = PLACEMENT_NOWHERE;
    for (uint32_t r = 0; r < p->ranks; r++) {
        uint32_t before = p->domains;
        if (p->domain[r] != PLACEMENT_NOWHERE || placement_has_failed(failed, r))
            continue;
        if (hosts)
            placement_deal_host(p, hosts, failed, most, r);
        else
            p->leader[p->domain[r] = p->domains++] = r;
        uint32_t made = p->domains - before;
        p->per_host = before && p->per_host != made ? 0 : made;
    }
}

int placement_init(struct placement *p, uint32_t rank, uint32_t ranks,
                   const uint64_t *hosts, const uint64_t *failed, uint32_t most)
{
    CHECK(rank < ranks && !placement_has_failed(failed, rank));
    *p = (struct placement){.ranks = ranks};
    p->leader = calloc(ranks, sizeof *p->leader);
    p->domain = calloc(ranks, sizeof *p->domain);
    p->member = calloc(ranks, sizeof *p->member);
    if (!p->leader || !p->domain || !p->member) {
        placement_destroy(p);
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", ranks);
    }
    placement_deal(p, hosts, failed, most);
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
    int rc = fail_if_null(text, domain, domain_ranks);
    if (rc != PCOLL_OK)
        return rc;
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

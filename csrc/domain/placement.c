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

struct placement_rank {
    uint64_t host;
    uint32_t rank;
};

static int placement_order(const void *a, const void *b)
{
    const struct placement_rank *left = a, *right = b;
    if (left->host != right->host)
        return left->host < right->host ? -1 : 1;
    return left->rank < right->rank ? -1 : left->rank > right->rank;
}

/* Make the domains of a host. Its ranks are cut as evenly as possible into as few domains as
 * `most` allows. */
static void placement_deal_host(struct placement *p, const struct placement_rank *ranks,
                                uint32_t count, uint32_t most)
{
    uint32_t parts = most && most < count ? (count + most - 1) / most : 1;
    uint32_t i = 0;
    for (uint32_t k = 0; k < parts; k++) {
        uint32_t end = (uint32_t)((uint64_t)count * (k + 1) / parts);
        p->leader[p->domains] = ranks[i].rank;
        for (; i < end; i++)
            p->domain[ranks[i].rank] = p->domains;
        p->domains++;
    }
    p->per_host = p->domains > parts && p->per_host != parts ? 0 : parts;
}

/* Number the domains host by host, hosts in the order of their lowest live rank, so that domains
 * with neighboring numbers are on the same host where possible. `sorted` has room for all ranks. */
static void placement_deal(struct placement *p, const uint64_t *hosts,
                           const uint64_t *failed, uint32_t most,
                           struct placement_rank *sorted)
{
    uint32_t *first =
        p->member; /* by rank: where a host begins with it; not used yet */
    uint32_t live = 0;
    for (uint32_t r = 0; r < p->ranks; r++) {
        p->domain[r] = first[r] = PLACEMENT_NOWHERE;
        if (!placement_has_failed(failed, r))
            sorted[live++] = (struct placement_rank){hosts ? hosts[r] : r, r};
    }
    qsort(sorted, live, sizeof *sorted, placement_order);
    for (uint32_t i = 0; i < live; i++)
        if (i == 0 || sorted[i].host != sorted[i - 1].host)
            first[sorted[i].rank] = i;
    for (uint32_t r = 0; r < p->ranks; r++) {
        uint32_t begin = first[r], end = begin;
        while (begin != PLACEMENT_NOWHERE && end < live &&
               sorted[end].host == sorted[begin].host)
            end++;
        if (begin != PLACEMENT_NOWHERE)
            placement_deal_host(p, sorted + begin, end - begin, most);
    }
}

/* No two ranks share memory, and none has died. */
static int placement_init_identity(struct placement *p, uint32_t rank)
{
    p->member = malloc(sizeof *p->member);
    if (!p->member)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", p->ranks);
    p->member[0] = p->index = rank;
    p->members = p->per_host = 1;
    p->domains = p->ranks;
    p->leads = true;
    return PCOLL_OK;
}

int placement_init(struct placement *p, uint32_t rank, uint32_t ranks,
                   const uint64_t *hosts, const uint64_t *failed, uint32_t most)
{
    CHECK(rank < ranks && !placement_has_failed(failed, rank));
    *p = (struct placement){.ranks = ranks};
    if (!hosts && !failed)
        return placement_init_identity(p, rank);
    p->leader = calloc(ranks, sizeof *p->leader);
    p->domain = calloc(ranks, sizeof *p->domain);
    p->member = calloc(ranks, sizeof *p->member);
    struct placement_rank *sorted = calloc(ranks, sizeof *sorted);
    if (!p->leader || !p->domain || !p->member || !sorted) {
        free(sorted);
        placement_destroy(p);
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", ranks);
    }
    placement_deal(p, hosts, failed, most, sorted);
    free(sorted);
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

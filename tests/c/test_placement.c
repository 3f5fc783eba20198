/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks share memory, and the words by which users request it. */
#include <stdlib.h>
#include <string.h>

#include "allreduce/tuning.h"
#include "domain/placement.h"
#include "check.h"

enum { MAX_RANKS = 12 };

/* Check that every rank computes these domains. */
static void expect(const char *what, uint32_t ranks, const uint64_t *hosts,
                   uint32_t most, const uint32_t *domain)
{
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct placement p;
        uint32_t members = 0;
        EXPECT_OK(placement_init(&p, rank, ranks, hosts, NULL, most));
        EXPECT(p.ranks == ranks && p.index == domain[rank],
               "%s: rank %u is in domain %u", what, rank, p.index);
        for (uint32_t r = 0; r < ranks; r++) {
            EXPECT(placement_domain(&p, r) == domain[r],
                   "%s: rank %u says that %u is in domain %u", what, rank, r,
                   placement_domain(&p, r));
            EXPECT(placement_domain(&p, r) < p.domains &&
                       placement_leader(&p, placement_domain(&p, r)) <= r,
                   "%s: domain %u of %u is led by rank %u", what,
                   placement_domain(&p, r), p.domains,
                   placement_leader(&p, placement_domain(&p, r)));
            if (domain[r] != domain[rank])
                continue;
            EXPECT(members < p.members && p.member[members] == r,
                   "%s: rank %u is not member %u", what, r, members);
            EXPECT(r != rank || p.who == members, "%s: rank %u is %u", what, r, p.who);
            members++;
        }
        EXPECT(members == p.members, "%s: %u members", what, p.members);
        EXPECT(p.leads == (p.member[0] == rank) &&
                   placement_leader(&p, p.index) == p.member[0],
               "%s: rank %u leads: %d", what, rank, p.leads);
        placement_destroy(&p);
        EXPECT(!p.domain && !p.leader && !p.member, "%s: not destroyed", what);
    }
}

#define PLACED(what, hosts, most, ...)                                                 \
    do {                                                                               \
        static const uint32_t domain[] = {__VA_ARGS__};                                \
        expect(what, sizeof domain / sizeof *domain, hosts, most, domain);             \
    } while (0)

static void test_planes(void)
{
    static const uint64_t one[MAX_RANKS] = {0};
    static const uint64_t strided[] = {7, 3, 7, 3, 7, 3, 7};
    static const uint64_t uneven[] = {5, 9, 9, 9, 9, 1, 1};
    static const uint64_t apart[] = {UINT64_MAX, 0, UINT64_MAX, 4, 0};
    PLACED("one rank", one, 0, 0);
    PLACED("no ranks share", NULL, 0, 0, 1, 2, 3);
    PLACED("no ranks share, whatever the most", NULL, 2, 0, 1, 2, 3);
    PLACED("all", one, 0, 0, 0, 0, 0, 0);
    PLACED("as many as are allowed", one, 5, 0, 0, 0, 0, 0);
    PLACED("more than there are", one, UINT32_MAX, 0, 0, 0, 0, 0);
    PLACED("at most 1", one, 1, 0, 1, 2, 3);
    PLACED("pairs", one, 2, 0, 0, 1, 1, 2, 2);
    PLACED("dealt out evenly: 2 and 3", one, 4, 0, 0, 1, 1, 1);
    PLACED("dealt out evenly: 3, 3 and 4", one, 4, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2);
    PLACED("uneven hosts", uneven, 0, 0, 1, 1, 1, 1, 2, 2);
    PLACED("uneven hosts, at most 3", uneven, 3, 0, 1, 1, 2, 2, 3, 3);
    PLACED("every other", strided, 0, 0, 1, 0, 1, 0, 1, 0);
    PLACED("every other, at most 2", strided, 2, 0, 2, 0, 3, 1, 3, 1);
    PLACED("each on its own, host by host", strided, 1, 0, 4, 1, 5, 2, 6, 3);
    PLACED("far apart", apart, 0, 0, 1, 0, 2, 1);
}

static uint32_t per_host(uint32_t ranks, const uint64_t *hosts, uint32_t most)
{
    struct placement p;
    EXPECT_OK(placement_init(&p, 0, ranks, hosts, NULL, most));
    uint32_t count = p.per_host;
    placement_destroy(&p);
    return count;
}

/* An algorithm is chosen by the number of domains that share the link of a host. */
static void test_per_host(void)
{
    static const uint64_t even[] = {7, 3, 7, 3, 3, 7, 3, 7};
    static const uint64_t uneven[] = {7, 3, 7, 7};
    EXPECT(per_host(4, NULL, 0) == 1, "no hosts");
    EXPECT(per_host(8, even, 0) == 1, "one domain on each host");
    EXPECT(per_host(8, even, 1) == 4, "each rank on its own");
    EXPECT(per_host(8, even, 3) == 2, "two domains on each host");
    EXPECT(per_host(4, uneven, 1) == 0, "one and three");
}

static void test_tuning(void)
{
    struct placement single = {.domains = 8, .per_host = 1};
    struct placement four = {.domains = 8, .per_host = 4};
    struct placement three = {.domains = 6, .per_host = 3};
    enum pcoll_algorithm a;
    setenv("PARTIALCOLL_TUNE", "none", 1);
    EXPECT_OK(tuning_choose(&four, 1 << 20, true, &a));
    EXPECT(a == PCOLL_ALGORITHM_RABENSEIFNER, "shared links: %d", a);
    EXPECT_OK(tuning_choose(&three, 1 << 20, true, &a));
    EXPECT(a == PCOLL_ALGORITHM_RING, "no power of two: %d", a);
    EXPECT_OK(tuning_choose(&single, 1 << 20, true, &a));
    EXPECT(a == PCOLL_ALGORITHM_RING, "links of their own: %d", a);
    EXPECT_OK(tuning_choose(&four, 1 << 20, false, &a));
    EXPECT(a == PCOLL_ALGORITHM_RABENSEIFNER, "one host: %d", a);
}

/* Check the number of a word and the maximal number of ranks. -1: refused. */
static void expect_words(const char *text, int32_t domain, uint32_t most)
{
    int32_t got = -77;
    uint32_t got_most = 77;
    int rc = pcoll_domain_parse(text, &got, &got_most);
    if (domain >= 0) {
        EXPECT(rc == PCOLL_OK && got == domain && got_most == most,
               "\"%s\": %d, domain %d, at most %u", text, rc, got, got_most);
        return;
    }
    EXPECT(rc == PCOLL_EINVAL && got == -77 && got_most == 77,
           "\"%s\": %d, domain %d, at most %u", text, rc, got, got_most);
    EXPECT(strstr(pcoll_last_error(), "domain: expected \"node\"") &&
               (!*text || strstr(pcoll_last_error(), text)),
           "\"%s\": %s", text, pcoll_last_error());
}

static void test_words(void)
{
    static const char *const bad[] = {"",
                                      "nod",
                                      "nodes",
                                      "Node",
                                      " node",
                                      "node ",
                                      "node:",
                                      "node:0",
                                      "node:-1",
                                      "node:+1",
                                      "node: 1",
                                      "node:1 ",
                                      "node:1x",
                                      "node:0x2",
                                      "node:01",
                                      "node:1:2",
                                      "rank:1",
                                      "rank:",
                                      "auto:0",
                                      "auto:",
                                      ":4",
                                      "4",
                                      "node:1.5",
                                      "node:4294967296",
                                      "node:99999999999999999999999"};
    expect_words("node", PCOLL_DOMAIN_NODE, 0);
    expect_words("rank", PCOLL_DOMAIN_RANK, 0);
    expect_words("auto", PCOLL_DOMAIN_AUTO, 0);
    expect_words("node:1", PCOLL_DOMAIN_NODE, 1);
    expect_words("auto:12", PCOLL_DOMAIN_AUTO, 12);
    expect_words("node:4294967295", PCOLL_DOMAIN_NODE, UINT32_MAX);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_words(bad[i], -1, 0);
}

int main(void)
{
    test_planes();
    test_per_host();
    test_tuning();
    test_words();
    printf("placement: all tests passed\n");
    return 0;
}

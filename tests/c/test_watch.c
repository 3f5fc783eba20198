/* SPDX-License-Identifier: Apache-2.0 */
/* Which hosts are watched by whom, who may come in, and what is told. That a host is lost
 * because nothing is heard of it is for hosts: tests/faults/test_hosts.py. */
#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "check.h"
#include "watch/neighbors.h"
#include "watch/pairing.h"
#include "watch/watch.h"

enum { MAX_RANKS = 24 };

/* Connections by rank and rank, as each of the two sees them. */
static uint32_t seen[MAX_RANKS][MAX_RANKS];

static void note_pair(void *arg, const struct watch_card *peer, uint64_t host)
{
    const struct watch_party *p = arg;
    uint32_t other = (uint32_t)peer->cookie;
    EXPECT(p->hosts[other] == host && host != p->hosts[p->rank], "rank %u is elsewhere",
           other);
    seen[p->rank][other]++;
}

static uint32_t between(const struct watch_party *p, uint64_t a, uint64_t b)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->size; i++)
        for (uint32_t j = 0; j < p->size; j++)
            count += p->hosts[i] == a && p->hosts[j] == b ? seen[i][j] : 0;
    return count;
}

static void check_pairs(const struct watch_party *p, const uint32_t *members)
{
    for (uint32_t i = 0; i < p->size; i++)
        for (uint32_t j = 0; j < p->size; j++)
            INVARIANT("hosts", seen[i][j] == seen[j][i] && seen[i][j] <= 1,
                      "ranks %u and %u: %u, %u", i, j, seen[i][j], seen[j][i]);
    for (uint64_t a = 0; a < MAX_RANKS; a++)
        for (uint64_t b = 0; b < MAX_RANKS; b++) {
            bool both = a != b && members[a] && members[b];
            bool several = members[a] > 1 || members[b] > 1;
            INVARIANT("hosts", between(p, a, b) == (uint32_t)(both ? 1 + several : 0),
                      "hosts of %u and %u ranks have %u connections", members[a],
                      members[b], between(p, a, b));
        }
}

/* Ranks anywhere on some hosts, some of them dead. */
static void pairs_of(uint64_t seed)
{
    struct watch_card cards[MAX_RANKS] = {0};
    uint64_t hosts[MAX_RANKS];
    uint32_t members[MAX_RANKS] = {0};
    uint32_t size = 1 + (uint32_t)(splitmix_mix(seed) % MAX_RANKS);
    uint64_t most = 1 + splitmix_mix(seed + 1) % size;
    memset(seen, 0, sizeof seen);
    for (uint32_t r = 0; r < size; r++) {
        hosts[r] = splitmix_mix(1000 * seed + r) % most;
        bool lives = splitmix_mix(1000 * seed + 500 + r) % 5;
        cards[r] = (struct watch_card){.cookie = r, .port = lives};
        members[hosts[r]] += lives;
    }
    struct watch_party p = {.size = size, .hosts = hosts, .cards = cards};
    for (p.rank = 0; p.rank < size; p.rank++)
        pairing_each(&p, note_pair, &p);
    check_pairs(&p, members);
}

/* A process of this test: each is on a host of its own but the two neighbors. */
struct one {
    struct doorbell doorbell;
    struct watch *watch;
    struct watch_party party;
};

enum { A, NEIGHBOR, B, ONES };
static const uint64_t hosts[ONES] = {1, 1, 2};

static void begin(struct one *ones, struct watch_card *cards)
{
    for (int i = 0; i < ONES; i++) {
        EXPECT_OK(doorbell_create(&ones[i].doorbell));
        EXPECT_OK(watch_create(10, ones[i].doorbell.page, false, &ones[i].watch));
        cards[i] = watch_own_card(ones[i].watch);
        EXPECT(cards[i].port, "it could not be started");
        memset(cards[i].address, 0, sizeof cards[i].address);
        cards[i].address[0] = htonl(INADDR_LOOPBACK);
    }
    for (uint32_t i = 0; i < ONES; i++) {
        ones[i].party = (struct watch_party){
            .rank = i, .size = ONES, .hosts = hosts, .cards = cards};
        watch_join(ones[i].watch, &ones[i].party);
    }
}

static bool comes_true(const struct one *o, uint32_t lost, int ms)
{
    for (int i = 0; i < ms && watch_lost(o->watch) < lost; i++)
        poll(NULL, 0, 1);
    return watch_lost(o->watch) >= lost;
}

static void expect_lost(const struct one *o, uint32_t lost)
{
    INVARIANT("hosts", comes_true(o, lost, 20000), "it was not told: %u, expected %u",
              watch_lost(o->watch), lost);
}

/* Losses of one host after the other, until the other side has its connection and hears
 * one. How many that took. */
static uint32_t tell_until_heard(const struct neighbors *voice, struct one *ones,
                                 const struct watch_card *cards)
{
    uint32_t told = 0;
    while (told < 40 && !watch_lost(ones[B].watch)) {
        neighbors_tell(voice, &cards[A], 100 + told++);
        expect_lost(&ones[A], told);
        comes_true(&ones[B], 1, 500);
    }
    INVARIANT("hosts", watch_lost(ones[B].watch), "no connection was made");
    return told;
}

/* All others are told first: they may know before this process's own waiters are woken. */
static bool rings(struct doorbell_page *page, uint32_t count)
{
    for (int i = 0; i < 20000 && atomic_load(&page->count) < count; i++)
        poll(NULL, 0, 1);
    return atomic_load(&page->count) >= count;
}

/* One that does not know the cookie. */
static void strangers_are_shown_out(const struct watch_card *card)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)card->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint64_t says[2] = {card->cookie + 1, 5};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd at = {.fd = fd, .events = POLLIN};
    char byte;
    EXPECT(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "nobody listens");
    EXPECT(send(fd, says, sizeof says, MSG_NOSIGNAL) == sizeof says, "it has gone");
    INVARIANT("hosts", poll(&at, 1, 20000) == 1 && recv(fd, &byte, 1, 0) <= 0,
              "a stranger may stay");
    close(fd);
}

static uint32_t on_lost_hosts;

static void count(void *arg, const struct watch_party *p, uint32_t rank)
{
    EXPECT(arg == &on_lost_hosts, "another's argument");
    INVARIANT("hosts", p->hosts[rank] == 2, "rank %u is not lost", rank);
    on_lost_hosts++;
}

static void what_is_told(void)
{
    struct one ones[ONES];
    struct watch_card cards[ONES], unknown;
    struct neighbors voice;
    begin(ones, cards);
    EXPECT(neighbors_open(&voice, (uint64_t)getpid() << 32 | 77), "no voice");
    uint32_t rang = atomic_load(&ones[A].doorbell.page->count);
    strangers_are_shown_out(&cards[A]);
    uint32_t told = tell_until_heard(&voice, ones, cards);
    expect_lost(&ones[NEIGHBOR], told); /* who is here is told everything */
    INVARIANT("hosts", rings(ones[A].doorbell.page, rang + 2 * told), "nobody rang");
    neighbors_tell(&voice, &cards[A],
                   1); /* the own one is not lost; nor is one twice */
    neighbors_tell(&voice, &cards[A], 100);
    unknown = cards[A];
    unknown.cookie++;
    neighbors_tell(&voice, &unknown, 300);
    neighbors_tell(&voice, &cards[A], 301);
    expect_lost(&ones[A], told + 1);
    INVARIANT("hosts", watch_lost(ones[A].watch) == told + 1, "%u are lost",
              watch_lost(ones[A].watch));
    watch_each_lost(ones[A].watch, count, &on_lost_hosts);
    INVARIANT("hosts", on_lost_hosts == 0, "ranks of a host that lives are lost");
    watch_destroy(&ones[B].watch); /* a process ends: its host does not */
    for (uint32_t i = 0; i < 2;
         i++) { /* it has looked at all when it hears the second */
        neighbors_tell(&voice, &cards[A], 302 + i);
        expect_lost(&ones[A], told + 2 + i);
    }
    expect_lost(&ones[NEIGHBOR], told + 3); /* by A alone: nobody else is there */
    watch_each_lost(ones[A].watch, count, &on_lost_hosts);
    INVARIANT("hosts", on_lost_hosts == 0, "a process that ends is a lost host");
    neighbors_tell(&voice, &cards[A], 2);
    expect_lost(&ones[A], told + 4);
    watch_each_lost(ones[A].watch, count, &on_lost_hosts);
    INVARIANT("hosts", on_lost_hosts == 1, "%u ranks of the lost host", on_lost_hosts);
    watch_leave(ones[A].watch, &ones[A].party);
    watch_destroy(&ones[A].watch);
    watch_destroy(&ones[NEIGHBOR].watch);
    neighbors_close(&voice);
    for (int i = 0; i < ONES; i++)
        doorbell_destroy(&ones[i].doorbell);
}

static void settings(void)
{
    static const char *const wrong[] = {"1", "-2", "2x", "nan", "inf", "x"};
    double seconds;
    unsetenv("PARTIALCOLL_HOST_TIMEOUT");
    EXPECT(watch_timeout(&seconds) == PCOLL_OK && seconds == 10, "%g", seconds);
    setenv("PARTIALCOLL_HOST_TIMEOUT", "0", 1);
    EXPECT(watch_timeout(&seconds) == PCOLL_OK && seconds == 0, "%g", seconds);
    setenv("PARTIALCOLL_HOST_TIMEOUT", "2.5", 1);
    EXPECT(watch_timeout(&seconds) == PCOLL_OK && seconds == 2.5, "%g", seconds);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("PARTIALCOLL_HOST_TIMEOUT", wrong[i], 1);
        EXPECT(watch_timeout(&seconds) == PCOLL_EINVAL, "%s", wrong[i]);
    }
    unsetenv("PARTIALCOLL_HOST_TIMEOUT");
}

int main(void)
{
    for (uint64_t seed = 1; seed <= 3000; seed++)
        pairs_of(seed);
    settings();
    what_is_told();
    printf("3000 jobs on some hosts: each two are connected\n");
    return 0;
}

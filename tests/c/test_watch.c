/* SPDX-License-Identifier: Apache-2.0 */
/* The watch of hosts: which processes are connected, what is reported, and what
 * foreign processes and broken peers cannot do. Hosts that stop answering need
 * several hosts: tests/faults/test_hosts.py. test_watch_fuzz.c sends hostile bytes
 * in large numbers. */
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "check.h"
#include "watch/link.h"
#include "watch/watch.h"

enum { MAX_RANKS = 24 };

/* Tags of the bytes 0, 1, 2, … with the key 0, 1, …, 15. Those of 0 and 1 bytes are the
 * authors' first two test vectors; all four equal OpenSSL's SIPHASH. */
static void vectors(void)
{
    static const struct {
        size_t bytes;
        unsigned char tag[16];
    } expected[] = {{0,
                     {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72,
                      0x14, 0xc7, 0x55, 0x02, 0x93}},
                    {1,
                     {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59,
                      0x11, 0x9b, 0x22, 0xfc, 0x45}},
                    {15,
                     {0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec,
                      0x0f, 0x97, 0xcf, 0xc3, 0xd9}},
                    {63,
                     {0x51, 0x50, 0xd1, 0x77, 0x2f, 0x50, 0x83, 0x4a, 0x50, 0x3e, 0x06,
                      0x9a, 0x97, 0x3f, 0xbd, 0x7c}}};
    unsigned char bytes[64];
    struct siphash_tag key;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)i;
    memcpy(&key, bytes, sizeof key);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct siphash_tag tag = siphash_tag_of(key, bytes, expected[i].bytes);
        EXPECT(!memcmp(&tag, expected[i].tag, sizeof tag), "tag of %zu bytes",
               expected[i].bytes);
    }
}

/* Connections by rank and rank, as seen by each of the two. */
static uint32_t seen[MAX_RANKS][MAX_RANKS];

static void note_pair(void *arg, const struct watch_card *peer, uint64_t host)
{
    const struct watch_group *g = arg;
    uint32_t other = (uint32_t)peer->id;
    EXPECT(g->hosts[other] == host && host != g->hosts[g->rank], "rank %u is elsewhere",
           other);
    seen[g->rank][other]++;
}

static uint32_t between(const struct watch_group *g, uint64_t a, uint64_t b)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < g->size; i++)
        for (uint32_t j = 0; j < g->size; j++)
            count += g->hosts[i] == a && g->hosts[j] == b ? seen[i][j] : 0;
    return count;
}

static void check_pairs(const struct watch_group *g, const uint32_t *members)
{
    for (uint32_t i = 0; i < g->size; i++)
        for (uint32_t j = 0; j < g->size; j++)
            INVARIANT("hosts", seen[i][j] == seen[j][i] && seen[i][j] <= 1,
                      "ranks %u and %u: %u, %u", i, j, seen[i][j], seen[j][i]);
    for (uint64_t a = 0; a < MAX_RANKS; a++)
        for (uint64_t b = 0; b < MAX_RANKS; b++) {
            bool both = a != b && members[a] && members[b];
            bool several = members[a] > 1 || members[b] > 1;
            INVARIANT("hosts", between(g, a, b) == (uint32_t)(both ? 1 + several : 0),
                      "hosts of %u and %u ranks have %u connections", members[a],
                      members[b], between(g, a, b));
        }
}

/* Return how many hosts with live ranks have lower numbers than a rank's host, the
 * rank's place on its host, and how many live ranks the host has. Follows watch.h with
 * a pass over all ranks. */
static uint32_t host_of(const struct watch_group *g, uint32_t rank, uint32_t *place,
                        uint32_t *members)
{
    uint32_t number = 0;
    *place = *members = 0;
    for (uint32_t r = 0; r < g->size; r++) {
        bool member = g->cards[r].port && g->hosts[r] == g->hosts[rank];
        *place += member && r < rank;
        *members += member;
        bool is_first = g->cards[r].port && g->hosts[r] < g->hosts[rank];
        for (uint32_t before = 0; before < r; before++)
            is_first &= !g->cards[before].port || g->hosts[before] != g->hosts[r];
        number += is_first;
    }
    return number;
}

/* The k-th connection is between member b + k of host a and member a + k of host b. */
static void check_numbers(const struct watch_group *g)
{
    for (uint32_t i = 0; i < g->size; i++)
        for (uint32_t j = 0; j < g->size; j++) {
            uint32_t at_a, at_b, of_a, of_b, expected = 0;
            uint32_t a = host_of(g, i, &at_a, &of_a), b = host_of(g, j, &at_b, &of_b);
            for (uint32_t k = 0; k < 2 && (k < of_a || k < of_b) && a != b; k++)
                expected += g->cards[i].port && g->cards[j].port &&
                            at_a == (b + k) % of_a && at_b == (a + k) % of_b;
            INVARIANT("hosts", seen[i][j] == expected, "ranks %u and %u: %u, not %u", i,
                      j, seen[i][j], expected);
        }
}

/* Random ranks on some hosts, some of them dead. */
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
        cards[r] = (struct watch_card){.id = r, .port = lives};
        members[hosts[r]] += lives;
    }
    struct watch_group g = {.size = size, .hosts = hosts, .cards = cards};
    for (g.rank = 0; g.rank < size; g.rank++)
        watch_group_each_peer(&g, note_pair, &g);
    check_pairs(&g, members);
    if (seed % 10 == 0)
        check_numbers(&g);
}

/* Evaluate the condition until it holds. Return false after 20 s. */
#define COMES_TRUE(condition)                                                          \
    ({                                                                                 \
        bool holds;                                                                    \
        for (int tries = 0; !(holds = (condition)) && tries < 20000; tries++)          \
            poll(NULL, 0, 1);                                                          \
        holds;                                                                         \
    })

static int open_descriptors(void)
{
    DIR *open = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(open))
        count++;
    closedir(open);
    return count;
}

/* Three watches of this process in one group: A and LOCAL on one host, B on another
 * one. FAKE, on a third host, is a peer that the test plays. The group has ranks on
 * more hosts, from FIRST on, whose processes have no watch. */
enum { A, LOCAL, B, WATCHES, FAKE = WATCHES, RANKS = 16 };
enum { FIRST = 100, UNKNOWN = 1000 };

struct job {
    struct doorbell doorbell[WATCHES];
    struct watch *watch[WATCHES];
    struct watch_group group[WATCHES];
    struct watch_card cards[RANKS];
    uint64_t hosts[RANKS];
};

static void job_begin(struct job *j)
{
    memset(j, 0, sizeof *j);
    for (uint64_t r = 0; r < RANKS; r++)
        j->hosts[r] = r <= LOCAL ? 1 : r <= FAKE ? r : FIRST + r - FAKE - 1;
    for (int i = 0; i < WATCHES; i++) {
        EXPECT_OK(doorbell_create(&j->doorbell[i]));
        EXPECT_OK(watch_create(10, j->doorbell[i].page, false, &j->watch[i]));
        j->cards[i] = watch_own_card(j->watch[i]);
        EXPECT(j->cards[i].port, "watch %d could not be started", i);
        EXPECT(j->cards[i].address[0] == htonl(INADDR_LOOPBACK) &&
                   !j->cards[i].address[1],
               "PARTIALCOLL_INTERFACE=lo");
    }
    EXPECT(card_fill(&j->cards[FAKE]), "no card");
    j->cards[FAKE].id = 1; /* the lowest id, so that it connects */
    j->cards[FAKE].port = 1;
    for (uint32_t i = 0; i < WATCHES; i++) {
        j->group[i] = (struct watch_group){.rank = i, .size = RANKS, .hosts = j->hosts};
        EXPECT_OK(watch_announce(j->watch[i], &j->group[i]));
    }
    for (uint32_t i = 0; i < WATCHES; i++)
        watch_join(j->watch[i], &j->group[i], j->cards);
}

static void job_end(struct job *j)
{
    for (int i = 0; i < WATCHES; i++)
        if (j->watch[i]) {
            watch_leave(j->watch[i], &j->group[i]);
            watch_destroy(&j->watch[i]);
        }
    for (int i = 0; i < WATCHES; i++)
        doorbell_destroy(&j->doorbell[i]);
}

/* Tell A about a lost host, like another process of its host. */
static void job_tell(struct job *j, uint64_t host)
{
    card_tell(&j->cards[A], host);
}

static void expect_lost(struct job *j, int who, uint32_t lost)
{
    INVARIANT("hosts", COMES_TRUE(watch_lost(j->watch[who]) >= lost),
              "watch %d was not told: %u, expected %u", who, watch_lost(j->watch[who]),
              lost);
    INVARIANT("hosts", watch_lost(j->watch[who]) == lost, "watch %d has lost %u", who,
              watch_lost(j->watch[who]));
}

static uint32_t ranks_lost;

static void count_lost(void *arg, const struct watch_group *g, uint32_t rank)
{
    EXPECT(arg == &ranks_lost, "another's argument");
    INVARIANT("hosts", g->hosts[rank] == B, "rank %u is not lost", rank);
    ranks_lost++;
}

static uint32_t count_ranks_lost(struct job *j, int who)
{
    ranks_lost = 0;
    watch_each_lost(j->watch[who], count_lost, &ranks_lost);
    return ranks_lost;
}

/* Other processes are told first, maybe before this process's waiters are woken. */
static bool is_woken(struct doorbell_page *page, uint32_t count)
{
    return COMES_TRUE(atomic_load(&page->count) >= count);
}

static void news_travels(void)
{
    struct job j;
    job_begin(&j);
    uint32_t rang = atomic_load(&j.doorbell[A].page->count);
    job_tell(&j, FIRST);
    for (int i = 0; i < WATCHES; i++)
        expect_lost(&j, i, 1);
    INVARIANT("hosts", is_woken(j.doorbell[A].page, rang + 2), "no waiter was woken");
    job_tell(&j, 1); /* its own host is not lost, and no host twice */
    job_tell(&j, FIRST);
    job_tell(&j, FIRST + 1);
    for (int i = 0; i < WATCHES; i++)
        expect_lost(&j, i, 2);
    INVARIANT("hosts", !count_ranks_lost(&j, A), "ranks of a host that lives are lost");
    watch_destroy(&j.watch[B]); /* the end of a process is not the loss of its host */
    job_tell(&j, FIRST + 2);
    expect_lost(&j, A, 3);
    job_tell(&j, FIRST + 3); /* A has seen all connections end before this */
    expect_lost(&j, A, 4);
    expect_lost(&j, LOCAL, 4); /* told by A alone: no other process is left */
    INVARIANT("hosts", !count_ranks_lost(&j, A), "a process that ends is a lost host");
    job_tell(&j, B);
    expect_lost(&j, A, 5);
    INVARIANT("hosts", count_ranks_lost(&j, A) == 1, "%u ranks of the lost host",
              ranks_lost);
    job_end(&j);
}

/* Far more unknown hosts than a table of lost hosts would hold. */
static void unknown_hosts_do_not_count(void)
{
    struct job j;
    job_begin(&j);
    for (uint64_t i = 0; i < 100; i++)
        job_tell(&j, UNKNOWN + i);
    job_tell(&j, FIRST);
    expect_lost(&j, A, 1);
    expect_lost(&j, B, 1);
    job_end(&j);
}

/* News of an earlier group may arrive between the two steps: a group whose hosts are
 * announced accepts it before it has cards. */
static void announced_hosts_count(void)
{
    struct job j;
    uint64_t hosts[] = {1, UNKNOWN};
    struct watch_group later = {.size = 2, .hosts = hosts};
    job_begin(&j);
    EXPECT_OK(watch_announce(j.watch[A], &later));
    job_tell(&j, UNKNOWN);
    expect_lost(&j, A, 1);
    INVARIANT("hosts", !count_ranks_lost(&j, A), "a rank without a card is lost");
    watch_leave(j.watch[A], &later);
    job_end(&j);
}

/* Read from the pipe of a process that it is told of each host of `most`, except the
 * first two, once. */
static void expect_all_told(int pipe, uint64_t most)
{
    bool told[256] = {false};
    uint64_t host, count = 0;
    while (count < most - 2) {
        INVARIANT("hosts",
                  poll(&(struct pollfd){.fd = pipe, .events = POLLIN}, 1, 20000) == 1,
                  "told of %d hosts only", (int)count);
        EXPECT(read(pipe, &host, sizeof host) == sizeof host, "a part of a number");
        INVARIANT("hosts", host >= 2 && host < most && !told[host], "host %d twice",
                  (int)host);
        told[host] = true;
        count++;
    }
    INVARIANT("hosts", read(pipe, &host, sizeof host) < 0, "host %d twice", (int)host);
}

/* Run `act` in a process of another user, if this one may change its user. */
static void as_another_user(const struct watch_card *card,
                            void (*act)(const struct watch_card *card))
{
    int status;
    pid_t pid = geteuid() ? 0 : fork();
    if (!pid && !geteuid()) {
        if (setuid(65534) == 0)
            act(card);
        _exit(0);
    }
    if (pid)
        EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "status %d", status);
}

static void tell_host_2(const struct watch_card *card)
{
    card_tell(card, 2);
}

/* A process that is stopped while many hosts are lost reads about each of them once
 * when it continues. A process that joins later is told of all earlier losses. Another
 * user cannot tell it, and news for an ended process does not reach another process. */
static void a_process_that_does_not_read(void)
{
    enum { HOSTS = 64 };
    struct doorbell doorbell;
    struct watch *watch;
    struct watch_card cards[HOSTS] = {0};
    uint64_t hosts[HOSTS] = {1, 1};
    struct watch_group g = {.size = HOSTS, .hosts = hosts}, later = g;
    struct stat s;
    int ends[2];
    for (uint32_t i = 2; i < HOSTS; i++)
        hosts[i] = i;
    EXPECT_OK(doorbell_create(&doorbell));
    EXPECT_OK(watch_create(10, doorbell.page, false, &watch));
    cards[0] = watch_own_card(watch);
    EXPECT(pipe2(ends, O_NONBLOCK) == 0 && fstat(ends[0], &s) == 0, "no pipe");
    cards[1] = (struct watch_card){.id = 1,
                                   .port = 1,
                                   .pid = (uint64_t)getpid(),
                                   .wake = (uint64_t)ends[0],
                                   .pipe = s.st_ino};
    as_another_user(&cards[1], tell_host_2);
    cards[1].pipe++;
    card_tell(&cards[1], 2);
    cards[1].pipe--;
    EXPECT_OK(watch_announce(watch, &g));
    watch_join(watch, &g, cards);
    for (uint32_t i = 2; i < HOSTS; i++)
        card_tell(&cards[0], i);
    EXPECT(COMES_TRUE(watch_lost(watch) == HOSTS - 2), "%u lost", watch_lost(watch));
    expect_all_told(ends[0], HOSTS);
    EXPECT_OK(watch_announce(watch, &later));
    watch_join(watch, &later, cards);
    expect_all_told(ends[0], HOSTS);
    watch_leave(watch, &g);
    watch_leave(watch, &later);
    watch_destroy(&watch);
    doorbell_destroy(&doorbell);
    close(ends[0]);
    close(ends[1]);
}

/* Connect to this process. */
static int connect_to(const struct watch_card *card)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)card->port),
                             .sin_addr.s_addr = card->address[0]};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0,
           "no listener");
    return fd;
}

/* Expect that the other end closes the connection. */
static void expect_closed(int fd)
{
    struct pollfd at = {.fd = fd, .events = POLLIN};
    char bytes[256];
    ssize_t got;
    do {
        INVARIANT("hosts", poll(&at, 1, 20000) == 1, "the connection is left open");
        got = recv(fd, bytes, sizeof bytes, 0);
    } while (got > 0);
    close(fd);
}

/* Play FAKE: act as a connecting process until the link has this state. */
static void fake_go(struct link *l, enum link_state state)
{
    uint64_t host;
    EXPECT(COMES_TRUE(l->state == state || (link_step(l, &host), l->state == state)),
           "state %d, expected %d", l->state, state);
}

static void fake_init(struct job *j, struct link *l)
{
    link_init(l, &j->cards[FAKE], &j->cards[A], 1, 10);
}

/* Expect that A sends news of this host on the connection. */
static void fake_expect_news(struct link *l, uint64_t host)
{
    uint64_t got = 0;
    EXPECT(COMES_TRUE(link_step(l, &got) == LINK_NEWS), "no news");
    INVARIANT("hosts", got == host, "news of host %llu", (unsigned long long)got);
}

static void strangers_are_refused(void)
{
    struct job j;
    struct link stranger, pending;
    char garbage[sizeof(struct link_hello)] = "GET / HTTP/1.1\r\nHost: partialcoll\r\n";
    job_begin(&j);
    int fd = connect_to(&j.cards[A]);
    EXPECT(link_send(fd, garbage, sizeof garbage), "not sent");
    expect_closed(fd);
    fake_init(&j, &stranger); /* a valid hello, but a wrong secret */
    stranger.key.word[0] ^= 1;
    fake_go(&stranger, LINK_CHALLENGED);
    fake_go(&stranger, LINK_ANSWERED);
    expect_closed(dup(stranger.fd));
    link_end(&stranger);
    fake_init(&j, &pending); /* sends nothing, and does not delay A */
    fd = connect_to(&j.cards[A]);
    fake_go(&pending, LINK_PROVEN);
    job_tell(&j, FIRST);
    fake_expect_news(&pending, FIRST);
    link_end(&pending);
    close(fd);
    job_end(&j);
}

/* Send this hello until A answers with a challenge. A does not answer before it has
 * seen the end of the proven connection. */
static int challenged(struct job *j, const struct link_hello *hello,
                      struct link_challenge *challenge)
{
    for (int tries = 0; tries < 20000; tries++) {
        int fd = connect_to(&j->cards[A]);
        EXPECT(link_send(fd, hello, sizeof *hello), "not sent");
        if (recv(fd, challenge, sizeof *challenge, MSG_WAITALL) == sizeof *challenge)
            return fd;
        close(fd);
        poll(NULL, 0, 1);
    }
    EXPECT(false, "no challenge");
    return -1;
}

/* The messages that proved one connection do not prove another one. */
static void a_recorded_handshake_is_refused(void)
{
    struct job j;
    struct link genuine;
    struct siphash_tag proof;
    struct link_challenge challenge;
    job_begin(&j);
    fake_init(&j, &genuine);
    fake_go(&genuine, LINK_PROVEN);
    proof = link_proof(&genuine, &genuine.handshake);
    link_end(&genuine);
    int fd = challenged(&j, &genuine.handshake.hello, &challenge);
    INVARIANT("hosts",
              memcmp(&challenge, &genuine.handshake.challenge, sizeof challenge) != 0,
              "the same challenge twice");
    EXPECT(link_send(fd, &proof, sizeof proof), "not sent");
    expect_closed(fd);
    job_end(&j);
}

/* A proven connection is not replaced, even by a proven one, until it has failed. */
static void a_proven_connection_is_not_replaced(void)
{
    struct job j;
    struct link first, second, third;
    job_begin(&j);
    fake_init(&j, &first);
    fake_init(&j, &second);
    fake_init(&j, &third);
    fake_go(&first, LINK_CHALLENGED);
    fake_go(&second, LINK_CHALLENGED);
    EXPECT(poll(&(struct pollfd){.fd = second.fd, .events = POLLIN}, 1, 20000) == 1,
           "no challenge");
    fake_go(&first, LINK_ANSWERED);
    fake_go(&first, LINK_PROVEN);
    fake_go(&second, LINK_ANSWERED);
    expect_closed(dup(second.fd));
    fake_go(&third, LINK_CHALLENGED);
    expect_closed(dup(third.fd));
    job_tell(&j, FIRST);
    fake_expect_news(&first, FIRST);
    link_end(&first);
    link_end(&second);
    link_end(&third);
    fake_init(&j, &second);
    fake_go(&second, LINK_PROVEN);
    fake_expect_news(&second, FIRST); /* news missed so far */
    link_end(&second);
    job_end(&j);
}

/* A proven but broken peer sends unknown hosts, garbage, or one host forever. */
static void broken_peers_are_closed(int how)
{
    struct job j;
    struct link peer;
    char garbage[sizeof(struct link_news)] = {1};
    job_begin(&j);
    fake_init(&j, &peer);
    fake_go(&peer, LINK_PROVEN);
    link_tell(&peer, FIRST);
    expect_lost(&j, A, 1);
    expect_lost(&j, B, 1);
    if (how == 0)
        link_tell(&peer, UNKNOWN);
    else if (how == 1)
        EXPECT(link_send(peer.fd, garbage, sizeof garbage), "not sent");
    for (int i = 0; how == 2 && i < 10000; i++)
        link_tell(&peer, FIRST);
    expect_closed(dup(peer.fd));
    link_end(&peer);
    job_tell(&j, FIRST + 1); /* A continues */
    expect_lost(&j, A, 2);
    expect_lost(&j, B, 2);
    job_end(&j);
}

/* More unproven connections than allowed. */
static void a_flood_of_connections(void)
{
    enum { FLOOD = 300 };
    struct job j;
    struct link genuine;
    int fds[FLOOD];
    job_begin(&j);
    int before = open_descriptors();
    for (int i = 0; i < FLOOD; i++)
        fds[i] = connect_to(&j.cards[A]);
    fake_init(&j, &genuine);
    fake_go(&genuine, LINK_PROVEN); /* after all of them */
    int ours = FLOOD + 1, theirs = open_descriptors() - before - ours;
    INVARIANT("hosts", theirs <= LISTENER_UNPROVEN + 8, "%d descriptors are used up",
              theirs);
    job_tell(&j, FIRST);
    fake_expect_news(&genuine, FIRST);
    for (int i = 0; i < FLOOD; i++)
        close(fds[i]);
    link_end(&genuine);
    job_end(&j);
}

/* All dropped connections are reported in one line. */
static void drops_are_reported_once(void)
{
    struct job j;
    char text[1024] = "";
    int log = memfd_create("log", MFD_CLOEXEC), before = dup(2);
    EXPECT(log >= 0 && dup2(log, 2) == 2, "no file");
    job_begin(&j);
    for (int i = 0; i < 3; i++) {
        struct link_hello garbage = {.magic = 1};
        int fd = connect_to(&j.cards[A]);
        EXPECT(link_send(fd, &garbage, sizeof garbage), "not sent");
        expect_closed(fd);
    }
    job_end(&j);
    dup2(before, 2);
    EXPECT(pread(log, text, sizeof text - 1, 0) > 0, "nothing is reported");
    const char *first = strstr(text, "dropped a connection");
    EXPECT(first && !strstr(first + 1, "dropped"), "%s", text);
    close(log);
    close(before);
}

/* With several addresses all interfaces are open, but only these are served. */
static void other_interfaces_are_not_served(void)
{
    struct watch_card card = {.address = {htonl(INADDR_LOOPBACK), 1}}, other;
    struct listener listener;
    EXPECT(listener_open(&listener, &card), "no listener");
    other = card;
    other.address[0] = htonl(INADDR_LOOPBACK + 1);
    int stranger = connect_to(&other), fd = connect_to(&card);
    EXPECT(listener_admit(&listener), "nothing was dropped");
    INVARIANT("hosts", listener.count == 1, "%d connections", listener.count);
    expect_closed(stranger);
    close(fd);
    listener_close(&listener);
}

static void limit_descriptors(rlim_t most)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = most;
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit of %d", (int)most);
}

static int lowest_free_descriptor(void)
{
    int fd = dup(0);
    EXPECT(fd >= 0, "no descriptor");
    close(fd);
    return fd;
}

/* Without free descriptors the listener pauses, and resumes when one is free. */
static void a_process_without_descriptors(void)
{
    struct listener listener = {0};
    struct watch_card card;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    EXPECT(card_fill(&card) && listener_open(&listener, &card), "no listener");
    int fd = connect_to(&card);
    limit_descriptors((rlim_t)lowest_free_descriptor());
    EXPECT(listener_admit(&listener), "a descriptor was left");
    limit_descriptors(limit.rlim_cur);
    INVARIANT("hosts", listener.fd >= 0, "the listener is closed for good");
    INVARIANT("hosts", listener.paused_to > clock_us() && !listener.count,
              "it does not pause");
    EXPECT(!listener_admit(&listener) && !listener.count, "it does not pause");
    listener.paused_to = 0;
    EXPECT(!listener_admit(&listener), "a connection was dropped");
    INVARIANT("hosts", listener.count == 1, "%d connections", listener.count);
    close(fd);
    listener_close(&listener);
}

/* A start that fails halfway leaves no descriptor open. */
static void a_failed_start(void)
{
    struct doorbell doorbell;
    struct watch *watch;
    struct rlimit limit;
    int started = 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_OK(doorbell_create(&doorbell));
    int before = open_descriptors();
    for (int more = 0; !started; more++) {
        EXPECT(more < 20, "it never starts");
        EXPECT_OK(watch_create(10, doorbell.page, false, &watch));
        for (int i = 0; i < 3; i++) {
            limit_descriptors((rlim_t)(lowest_free_descriptor() + more));
            started = watch_own_card(watch).port != 0;
            limit_descriptors(limit.rlim_cur);
            INVARIANT("hosts", started || open_descriptors() == before,
                      "%d descriptors leak", open_descriptors() - before);
        }
        watch_destroy(&watch);
        INVARIANT("hosts", open_descriptors() == before, "%d descriptors leak",
                  open_descriptors() - before);
    }
    doorbell_destroy(&doorbell);
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

/* The addresses of a card include loopback only on request. */
static void interfaces(void)
{
    static const char *const loopback[] = {"lo", "none,lo", "127.0.0.1", "127.0.0.0/8"};
    static const char *const none[] = {"none", "127.0.0.2", "127.0.0.0/0",
                                       "300.1.1.1/8", "0.0.0.0/99999999999"};
    struct watch_card card;
    uint32_t local = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++) {
        setenv("PARTIALCOLL_INTERFACE", loopback[i], 1);
        EXPECT(card_fill(&card) && card_has(&card, local) && !card.address[1], "%s",
               loopback[i]);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        setenv("PARTIALCOLL_INTERFACE", none[i], 1);
        EXPECT(!card_fill(&card) && !card.address[0], "%s", none[i]);
    }
    setenv("PARTIALCOLL_INTERFACE", "", 1);
    card_fill(&card);
    EXPECT(!card_has(&card, local), "loopback does not lead to other hosts");
    setenv("UCX_NET_DEVICES", "mlx5_0:1,lo", 1); /* the setting for MPI */
    EXPECT(card_fill(&card) && card_has(&card, local) && !card.address[1], "lo");
    unsetenv("UCX_NET_DEVICES");
}

int main(void)
{
    vectors();
    for (uint64_t seed = 1; seed <= 3000; seed++)
        pairs_of(seed);
    settings();
    interfaces();
    setenv("PARTIALCOLL_INTERFACE", "lo", 1);
    news_travels();
    unknown_hosts_do_not_count();
    announced_hosts_count();
    a_process_that_does_not_read();
    strangers_are_refused();
    a_recorded_handshake_is_refused();
    a_proven_connection_is_not_replaced();
    for (int how = 0; how < 3; how++)
        broken_peers_are_closed(how);
    a_flood_of_connections();
    drops_are_reported_once();
    other_interfaces_are_not_served();
    a_process_without_descriptors();
    a_failed_start();
    printf("3000 jobs on some hosts: each two are connected; strangers are refused\n");
    return 0;
}

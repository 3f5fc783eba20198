/* SPDX-License-Identifier: Apache-2.0 */
/* See link.h. */
#include "watch/link.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "watch/watch.h"

static const int64_t link_step_us = 3000000, link_longest_pause_us = 30000000;
static const uint32_t link_magic = 0x7063574c, link_version = 1;

/* SipHash. The names v0 to v3 are those of the specification. */

struct siphash_state {
    uint64_t v0, v1, v2, v3;
};

static uint64_t siphash_rotate(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

static void siphash_rounds(struct siphash_state *s, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = siphash_rotate(s->v1, 13) ^ s->v0;
        s->v3 = siphash_rotate(s->v3, 16) ^ s->v2;
        s->v0 = siphash_rotate(s->v0, 32);
        s->v2 += s->v1;
        s->v0 += s->v3;
        s->v1 = siphash_rotate(s->v1, 17) ^ s->v2;
        s->v3 = siphash_rotate(s->v3, 21) ^ s->v0;
        s->v2 = siphash_rotate(s->v2, 32);
    }
}

/* Read up to eight bytes as a little-endian number. */
static uint64_t siphash_word(const unsigned char *at, size_t bytes)
{
    uint64_t word = 0;
    for (size_t i = 0; i < bytes; i++)
        word |= (uint64_t)at[i] << 8 * i;
    return word;
}

static void siphash_absorb(struct siphash_state *s, uint64_t word)
{
    s->v3 ^= word;
    siphash_rounds(s, 2);
    s->v0 ^= word;
}

struct siphash_tag siphash_tag_of(struct siphash_tag key, const void *data,
                                  size_t bytes)
{
    const unsigned char *at = data;
    struct siphash_tag tag;
    struct siphash_state s = {.v0 = key.word[0] ^ 0x736f6d6570736575u,
                              .v1 = key.word[1] ^ 0x646f72616e646f6du ^ 0xee,
                              .v2 = key.word[0] ^ 0x6c7967656e657261u,
                              .v3 = key.word[1] ^ 0x7465646279746573u};
    for (size_t i = 0; i + 8 <= bytes; i += 8)
        siphash_absorb(&s, siphash_word(at + i, 8));
    siphash_absorb(&s,
                   siphash_word(at + bytes / 8 * 8, bytes % 8) | (uint64_t)bytes << 56);
    s.v2 ^= 0xee;
    siphash_rounds(&s, 4);
    tag.word[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    siphash_rounds(&s, 4);
    tag.word[1] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return tag;
}

/* Compare two tags in a time that does not depend on where they differ. */
static bool siphash_equal(struct siphash_tag a, struct siphash_tag b)
{
    return ((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1])) == 0;
}

/* The purpose of a tag or a key. */
enum link_label {
    LINK_KEY = 1,
    LINK_PROOF,
    LINK_ANSWER,
    LINK_SESSION,
    LINK_FROM_CONNECTING,
    LINK_FROM_LISTENING
};

/* Return whether this process connects, and not the peer. */
static bool link_connects(const struct link *l)
{
    return l->own->id < l->peer.id;
}

void link_init(struct link *l, const struct watch_card *own,
               const struct watch_card *peer, uint64_t host, double timeout)
{
    const struct watch_card *low = own->id < peer->id ? own : peer;
    const struct watch_card *high = low == own ? peer : own;
    const struct {
        uint64_t label, low, high;
        struct siphash_tag secret;
    } from = {LINK_KEY, low->id, high->id, high->secret};
    *l = (struct link){.own = own,
                       .timeout = timeout,
                       .peer = *peer,
                       .host = host,
                       .key = siphash_tag_of(low->secret, &from, sizeof from),
                       .fd = -1};
    /* An address that this host has, too, usually leads back to this host (a bridge for containers),
     * so it is tried last. */
    for (int last = 0, n = 0; last < 2; last++)
        for (int i = 0; i < CARD_ADDRESSES; i++)
            if (card_has(own, peer->address[i]) == last)
                l->peer.address[n++] = peer->address[i];
}

static struct siphash_tag link_tag(const struct link *l, enum link_label label,
                                   const struct link_handshake *handshake)
{
    const struct {
        uint64_t label;
        struct link_handshake handshake;
    } over = {label, *handshake};
    return siphash_tag_of(l->key, &over, sizeof over);
}

struct siphash_tag link_proof(const struct link *l,
                              const struct link_handshake *handshake)
{
    return link_tag(l, LINK_PROOF, handshake);
}

static struct siphash_tag link_news_tag(const struct link *l, bool connecting,
                                        uint64_t number, uint64_t host)
{
    const uint64_t over[] = {connecting ? LINK_FROM_CONNECTING : LINK_FROM_LISTENING,
                             number, host};
    return siphash_tag_of(l->session, over, sizeof over);
}

/* Sockets. */

static void link_set(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

bool link_send(int fd, const void *data, size_t bytes)
{
    return send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Read until *got is `bytes`. Return 1 then, 0 if more is to come, -1 at the end, with errno. */
static int link_read(int fd, void *into, size_t bytes, unsigned *got)
{
    ssize_t n = recv(fd, (char *)into + *got, bytes - *got, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    errno = 0;
    if (n == 0)
        return -1;
    *got += (unsigned)n;
    return *got == bytes;
}

static void link_close(struct link *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    l->got = 0;
    l->error = 0;
}

void link_end(struct link *l)
{
    link_close(l);
    l->state = LINK_OVER;
}

/* A proven connection. */

/* The kernel asks in each fifth of the timeout, and checks then how old the last answer is. */
static void link_begin_session(struct link *l)
{
    int every = l->timeout < 10 ? 1 : (int)(l->timeout / 5);
    link_set(l->fd, IPPROTO_TCP, TCP_KEEPIDLE, every);
    link_set(l->fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
    link_set(l->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(1000 * (l->timeout - every)));
    link_set(l->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    link_set(l->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    l->session = link_tag(l, LINK_SESSION, &l->handshake);
    l->sent = l->received = 0;
    l->told = 0;
    l->mute = false;
    l->got = 0;
    l->state = LINK_PROVEN;
}

void link_accept(struct link *l, int fd, const struct link_handshake *handshake)
{
    CHECK(l->state == LINK_AWAITED && l->fd < 0);
    l->fd = fd;
    l->handshake = *handshake;
    struct siphash_tag answer = link_tag(l, LINK_ANSWER, handshake);
    link_begin_session(l);
    l->mute = !link_send(fd, &answer, sizeof answer);
}

/* The kernel reports an error once. */
void link_tell(struct link *l, uint64_t host)
{
    if (l->state != LINK_PROVEN || l->mute)
        return;
    struct link_news news = {host, link_news_tag(l, link_connects(l), l->sent++, host)};
    errno = 0;
    if (!link_send(l->fd, &news, sizeof news)) {
        l->mute = true;
        l->error = errno;
    }
}

/* Return whether this error says that there is no answer, or no way to the host any more. Other
 * errors say that the process has ended or refuses, so its host is there. */
static bool link_is_silence(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
           error == EHOSTDOWN || error == ENETDOWN;
}

static enum link_event link_take_news(struct link *l, uint64_t *host)
{
    struct link_news *news = &l->incoming.news;
    bool connects = link_connects(l);
    int got = link_read(l->fd, news, sizeof *news, &l->got);
    if (got < 0) {
        bool lost = link_is_silence(errno ? errno : l->error);
        link_close(l);
        l->state = lost || connects ? LINK_OVER : LINK_AWAITED;
        return lost ? LINK_LOST : LINK_QUIET;
    }
    if (!got)
        return LINK_QUIET;
    l->got = 0;
    if (!siphash_equal(news->tag,
                       link_news_tag(l, !connects, l->received++, news->host))) {
        link_end(l);
        return LINK_BROKEN;
    }
    *host = news->host;
    return LINK_NEWS;
}

/* The side that connects. */

static void link_begin_step(struct link *l, enum link_state state)
{
    l->state = state;
    l->due = clock_us() + link_step_us;
    l->got = 0;
}

/* No rank knows which address leads there, so each is tried in turn. */
static void link_connect_next(struct link *l)
{
    link_close(l);
    while (l->attempt < CARD_ADDRESSES && !l->peer.address[l->attempt])
        l->attempt++;
    if (l->attempt == CARD_ADDRESSES) {
        l->attempt = 0;
        l->state = LINK_PAUSED;
        l->due = clock_us() +
                 (l->rounds < 5 ? 1000000 << l->rounds++ : link_longest_pause_us);
        return;
    }
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)l->peer.port),
                             .sin_addr.s_addr = l->peer.address[l->attempt++]};
    link_begin_step(l, LINK_CONNECTING);
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || (connect(l->fd, (struct sockaddr *)&to, sizeof to) != 0 &&
                      errno != EINPROGRESS))
        l->due = 0; /* The next address, at once. */
}

/* Continue the handshake as far as messages have arrived; false: it has failed. */
static bool link_shake_hands(struct link *l)
{
    int error = 0;
    socklen_t length = sizeof error;
    struct link_hello *hello = &l->handshake.hello;
    struct link_challenge *challenge = &l->handshake.challenge;
    struct siphash_tag *answer = &l->incoming.answer;
    if (l->state == LINK_CONNECTING) {
        if (poll(&(struct pollfd){.fd = l->fd, .events = POLLOUT}, 1, 0) <= 0)
            return true;
        link_begin_step(l, LINK_CHALLENGED);
        *hello = (struct link_hello){.magic = link_magic,
                                     .version = link_version,
                                     .to = l->peer.id,
                                     .from = l->own->id};
        getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &length);
        return !error && card_draw(hello->nonce, sizeof hello->nonce) &&
               link_send(l->fd, hello, sizeof *hello);
    }
    bool challenged = l->state == LINK_CHALLENGED;
    int got = challenged ? link_read(l->fd, challenge, sizeof *challenge, &l->got)
                         : link_read(l->fd, answer, sizeof *answer, &l->got);
    if (got <= 0)
        return !got;
    if (challenged) {
        struct siphash_tag proof = link_proof(l, &l->handshake);
        link_begin_step(l, LINK_ANSWERED);
        return link_send(l->fd, &proof, sizeof proof);
    }
    if (!siphash_equal(l->incoming.answer, link_tag(l, LINK_ANSWER, &l->handshake)))
        return false;
    link_begin_session(l);
    return true;
}

enum link_event link_step(struct link *l, uint64_t *host)
{
    if (l->state == LINK_PROVEN)
        return link_take_news(l, host);
    if (!link_connects(l) || l->state == LINK_OVER)
        return LINK_QUIET;
    if (l->state == LINK_AWAITED || clock_us() >= l->due ||
        (l->state != LINK_PAUSED && !link_shake_hands(l)))
        link_connect_next(l);
    return LINK_QUIET;
}

/* The listener. */

static const int64_t listener_proof_us = 5000000, listener_pause_us = 1000000;

/* With several addresses listen on all of the host: listener_is_selected drops the rest. */
bool listener_open(struct listener *l, struct watch_card *own)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr =
                                 own->address[1] ? INADDR_ANY : own->address[0]};
    socklen_t length = sizeof at;
    *l = (struct listener){.own = own};
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd >= 0 && bind(l->fd, (struct sockaddr *)&at, sizeof at) == 0 &&
        listen(l->fd, SOMAXCONN) == 0 &&
        getsockname(l->fd, (struct sockaddr *)&at, &length) == 0) {
        own->port = ntohs(at.sin_port);
        return true;
    }
    listener_close(l);
    return false;
}

void listener_close(struct listener *l)
{
    for (int i = 0; i < l->count; i++)
        close(l->incoming[i].fd);
    if (l->fd >= 0)
        close(l->fd);
    l->count = 0;
    l->fd = -1;
}

/* Remove incoming connection i without closing it. */
static void listener_forget(struct listener *l, int i)
{
    CHECK(i < l->count);
    l->count--;
    memmove(&l->incoming[i], &l->incoming[i + 1],
            (size_t)(l->count - i) * sizeof *l->incoming);
}

bool listener_add(struct listener *l, int fd)
{
    bool full = l->count == LISTENER_UNPROVEN;
    if (full) {
        close(l->incoming[0].fd);
        listener_forget(l, 0);
    }
    l->incoming[l->count++] =
        (struct incoming){.fd = fd, .due = clock_us() + listener_proof_us};
    return !full;
}

static bool listener_is_selected(int fd, const struct watch_card *own)
{
    struct sockaddr_in at = {0};
    socklen_t length = sizeof at;
    return getsockname(fd, (struct sockaddr *)&at, &length) == 0 &&
           card_has(own, at.sin_addr.s_addr);
}

const char *listener_admit(struct listener *l)
{
    const char *dropped = NULL;
    if (clock_us() < l->paused_to)
        return NULL;
    for (int i = 0; i < LISTENER_ADMITTED; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && errno == EAGAIN)
            break;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
                       errno == ENOMEM)) {
            l->paused_to = clock_us() + listener_pause_us;
            return "no connection for a while: this process has no descriptor left";
        }
        if (fd >= 0 && !listener_is_selected(fd, l->own)) {
            close(fd);
            dropped = "a connection to an interface that was not selected";
        } else if (fd >= 0 && !listener_add(l, fd))
            dropped = "a connection: too many have not proven whose they are";
    }
    return dropped;
}

enum listener_verdict { LISTENER_KEEP, LISTENER_CLOSE, LISTENER_REFUSE, LISTENER_GIVE };

static enum listener_verdict listener_continue(struct incoming *i, struct link *links,
                                               uint64_t own)
{
    struct link_hello *hello = &i->handshake.hello;
    struct link *link = links;
    int got = 1;
    if (clock_us() >= i->due)
        return LISTENER_CLOSE;
    if (i->state == INCOMING_HELLO)
        got = link_read(i->fd, hello, sizeof *hello, &i->got);
    else if (i->state == INCOMING_PROOF)
        got = link_read(i->fd, &i->proof, sizeof i->proof, &i->got);
    if (got <= 0)
        return got ? LISTENER_CLOSE : LISTENER_KEEP;
    if (i->state == INCOMING_HELLO &&
        (hello->magic != link_magic || hello->version != link_version ||
         hello->to != own || hello->from >= own))
        return LISTENER_REFUSE;
    while (link && link->peer.id != hello->from)
        link = link->next;
    if (i->state == INCOMING_PROOF) {
        if (!link || link->state != LINK_AWAITED)
            return LISTENER_CLOSE;
        if (!siphash_equal(i->proof, link_proof(link, &i->handshake)))
            return LISTENER_REFUSE;
        link_accept(link, i->fd, &i->handshake);
        return LISTENER_GIVE;
    }
    /* Answer a valid hello as soon as its sender is known here. */
    i->state = INCOMING_PENDING;
    if (!link)
        return LISTENER_KEEP;
    if (link->state != LINK_AWAITED ||
        !card_draw(&i->handshake.challenge, sizeof i->handshake.challenge) ||
        !link_send(i->fd, &i->handshake.challenge, sizeof i->handshake.challenge))
        return LISTENER_CLOSE;
    i->state = INCOMING_PROOF;
    i->got = 0;
    return LISTENER_KEEP;
}

const char *listener_step(struct listener *l, struct link *links)
{
    const char *dropped = NULL;
    for (int i = 0; i < l->count;) {
        enum listener_verdict verdict =
            listener_continue(&l->incoming[i], links, l->own->id);
        if (verdict == LISTENER_KEEP) {
            i++;
            continue;
        }
        if (verdict == LISTENER_REFUSE)
            dropped = "a connection that does not belong to this job";
        if (verdict != LISTENER_GIVE)
            close(l->incoming[i].fd);
        listener_forget(l, i);
    }
    return dropped;
}

/* Cards. */

bool card_draw(void *into, size_t bytes)
{
    return getrandom(into, bytes, 0) == (ssize_t)bytes;
}

bool card_has(const struct watch_card *card, uint32_t address)
{
    for (int i = 0; i < CARD_ADDRESSES; i++)
        if (address && card->address[i] == address)
            return true;
    return false;
}

static uint32_t card_address_of(const struct ifaddrs *i)
{
    return ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr.s_addr;
}

/* Return whether this item is the interface's name, address, or network, such as 10.0.0.0/8. */
static bool card_is_named(const struct ifaddrs *i, const char *item)
{
    char network[INET_ADDRSTRLEN] = "";
    struct in_addr wanted;
    const char *slash = strchr(item, '/');
    size_t length = slash ? (size_t)(slash - item) : strlen(item);
    long bits = slash ? strtol(slash + 1, NULL, 10) : 32;
    if (!strcmp(item, i->ifa_name))
        return true;
    if (length >= sizeof network || bits < 1 || bits > 32)
        return false;
    memcpy(network, item, length);
    return inet_pton(AF_INET, network, &wanted) == 1 &&
           !(ntohl(wanted.s_addr ^ card_address_of(i)) >> (32 - bits));
}

/* Without a list every interface is selected that leads to other hosts. */
static bool card_selects(const char *list, const struct ifaddrs *i)
{
    char copy[256], *rest;
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP))
        return false;
    if (!list)
        return !(i->ifa_flags & IFF_LOOPBACK);
    snprintf(copy, sizeof copy, "%s", list);
    for (char *item = strtok_r(copy, ",", &rest); item;
         item = strtok_r(NULL, ",", &rest))
        if (card_is_named(i, item))
            return true;
    return false;
}

static bool card_fill_addresses(struct watch_card *card, const struct ifaddrs *all,
                                const char *list)
{
    int known = 0;
    for (const struct ifaddrs *i = all; i && known < CARD_ADDRESSES; i = i->ifa_next)
        if (card_selects(list, i) && !card_has(card, card_address_of(i)))
            card->address[known++] = card_address_of(i);
    return known > 0;
}

/* MPI does not say which interfaces it uses. These variables tell it which to use: of Open MPI,
 * UCX, libfabric, and of MPICH and its launcher's option -iface. */
static const char *const card_settings_of_mpi[] = {
    "OMPI_MCA_btl_tcp_if_include",
    "UCX_NET_DEVICES",
    "FI_TCP_IFACE",
    "MPICH_NETWORK_IFACE",
    "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE",
    "MPIR_CVAR_CH3_NETWORK_IFACE"};

static atomic_flag card_reported =
    ATOMIC_FLAG_INIT; /* The missing interface has been reported. */

static bool card_find_addresses(struct watch_card *card, const struct ifaddrs *all)
{
    const char *list = environment_get("PARTIALCOLL_INTERFACE");
    if (list && *list) {
        bool found = card_fill_addresses(card, all, list);
        if (!found && !atomic_flag_test_and_set(&card_reported))
            fprintf(stderr,
                    "partialcoll: PARTIALCOLL_INTERFACE: this host has no interface "
                    "'%.200s' with an IPv4 address; it is not watched\n",
                    list);
        return found;
    }
    for (size_t i = 0; i < sizeof card_settings_of_mpi / sizeof *card_settings_of_mpi;
         i++) {
        list = environment_get(card_settings_of_mpi[i]);
        if (list && *list && card_fill_addresses(card, all, list))
            return true;
    }
    return card_fill_addresses(card, all, NULL);
}

bool card_fill(struct watch_card *card)
{
    struct ifaddrs *all = NULL;
    *card = (struct watch_card){0};
    if (!card_draw(&card->id, sizeof card->id) ||
        !card_draw(&card->secret, sizeof card->secret) || getifaddrs(&all) != 0)
        return false;
    bool found = card_find_addresses(card, all);
    freeifaddrs(all);
    gethostname(card->host, sizeof card->host - 1);
    return found;
}

/* The process may have ended, and another one may have its id: compare the inode of the pipe. */
void card_tell(const struct watch_card *to, uint64_t host)
{
    char path[64];
    struct statx s;
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)to->pid,
             (unsigned long long)to->wake);
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_TYPE, &s) != 0 ||
        !S_ISFIFO(s.stx_mode) || s.stx_ino != to->pipe)
        return;
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t sent = fd < 0 ? -1 : write(fd, &host, sizeof host);
    (void)sent;
    if (fd >= 0)
        close(fd);
}

/* The IPv4 address at the other end, which may be reported as an IPv6 one. */
static uint32_t card_peer_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    uint32_t peer = 0;
    if (getpeername(fd, (struct sockaddr *)&address, &length) != 0)
        return 0;
    const void *at = &address;
    if (address.ss_family == AF_INET)
        peer = ((const struct sockaddr_in *)at)->sin_addr.s_addr;
    else if (address.ss_family == AF_INET6 &&
             IN6_IS_ADDR_V4MAPPED(&((const struct sockaddr_in6 *)at)->sin6_addr))
        memcpy(&peer, ((const struct sockaddr_in6 *)at)->sin6_addr.s6_addr + 12,
               sizeof peer);
    return peer;
}

void card_cut(const struct watch_card *theirs, const struct watch_card *own)
{
    DIR *open = opendir("/proc/self/fd");
    if (!open)
        return;
    for (const struct dirent *e; (e = readdir(open));) {
        /* Work on a copy of the descriptor: the application may close the number and get it
         * again for another file between the two steps. */
        int fd = e->d_name[0] == '.' ? -1 : fcntl(atoi(e->d_name), F_DUPFD_CLOEXEC, 0);
        uint32_t peer = fd < 0 ? 0 : card_peer_of(fd);
        if (card_has(theirs, peer) && !card_has(own, peer))
            shutdown(fd, SHUT_RDWR);
        if (fd >= 0)
            close(fd);
    }
    closedir(open);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See link.h. No call here blocks. */
#include "watch/link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

static const int64_t link_step_us = 3000000, link_longest_pause_us = 30000000;
static const uint32_t link_magic = 0x7063574c, link_version = 1;

/* What a tag or a key is made for. */
enum link_label {
    LINK_KEY = 1,
    LINK_PROOF,
    LINK_ANSWER,
    LINK_SESSION,
    LINK_FROM_CONNECTING,
    LINK_FROM_LISTENING
};

bool link_connects(const struct link *l, const struct watch_card *own)
{
    return own->id < l->peer.id;
}

static struct siphash_key link_derive_key(const struct watch_card *a,
                                          const struct watch_card *b)
{
    const struct watch_card *low = a->id < b->id ? a : b, *high = low == a ? b : a;
    const struct {
        uint64_t label, low, high;
        struct siphash_key secret;
    } from = {LINK_KEY, low->id, high->id, high->secret};
    return siphash_derive(low->secret, &from, sizeof from);
}

void link_init(struct link *l, const struct watch_card *own,
               const struct watch_card *peer, uint64_t host)
{
    *l = (struct link){.peer = *peer,
                       .host = host,
                       .key = link_derive_key(own, peer),
                       .fd = -1,
                       .slot = -1};
}

bool link_is_valid_hello(const struct link_hello *hello, const struct watch_card *own)
{
    return hello->magic == link_magic && hello->version == link_version &&
           hello->to == own->id && hello->from < own->id;
}

bool link_draw_challenge(struct link_challenge *challenge)
{
    return card_draw(challenge->nonce, sizeof challenge->nonce);
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

static void link_set(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

/* The kernel asks in each fifth of the timeout. It counts from the last answer and checks when
 * it asks, so one fifth is left out. */
static void link_begin_session(struct link *l, double timeout)
{
    int every = timeout < 10 ? 1 : (int)(timeout / 5);
    struct siphash_tag tag = link_tag(l, LINK_SESSION, &l->handshake);
    link_set(l->fd, IPPROTO_TCP, TCP_KEEPIDLE, every);
    link_set(l->fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
    link_set(l->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(1000 * (timeout - every)));
    link_set(l->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    link_set(l->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    l->session = (struct siphash_key){{tag.word[0], tag.word[1]}};
    l->sent = l->received = 0;
    l->told = 0;
    l->mute = false;
    l->got = 0;
    l->error = 0;
    l->state = LINK_PROVEN;
}

void link_accept(struct link *l, int fd, const struct link_handshake *handshake,
                 double timeout)
{
    struct siphash_tag answer;
    CHECK(l->state == LINK_AWAITED && l->fd < 0);
    l->fd = fd;
    l->handshake = *handshake;
    answer = link_tag(l, LINK_ANSWER, handshake);
    link_begin_session(l, timeout);
    l->mute = !link_send(fd, &answer, sizeof answer);
}

bool link_send(int fd, const void *data, size_t bytes)
{
    return send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* The kernel reports an error once. */
void link_tell(struct link *l, const struct watch_card *own, uint64_t host)
{
    if (l->state != LINK_PROVEN || l->mute)
        return;
    struct link_news news = {host,
                             link_news_tag(l, link_connects(l, own), l->sent++, host)};
    errno = 0;
    if (!link_send(l->fd, &news, sizeof news)) {
        l->mute = true;
        l->error = errno;
    }
}

/* Set `attempt` to the next address of the peer; false: none is left. An address that this host
 * has, too, usually leads back to this host (a bridge for containers), so it is tried last. */
static bool link_next_address(struct link *l, const struct watch_card *own)
{
    for (; l->attempt < 2 * CARD_ADDRESSES; l->attempt++) {
        uint32_t address = l->peer.address[l->attempt % CARD_ADDRESSES];
        bool last = l->attempt >= CARD_ADDRESSES;
        if (address && card_has(own, address) == last)
            return true;
    }
    return false;
}

/* Nobody knows which address leads there, so each is tried in turn. */
static void link_connect_next(struct link *l, const struct watch_card *own)
{
    link_close(l);
    if (!link_next_address(l, own)) {
        int64_t pause = (int64_t)1000000 << (l->rounds < 5 ? l->rounds++ : 5);
        l->attempt = 0;
        l->state = LINK_PAUSED;
        l->due = clock_us() +
                 (pause < link_longest_pause_us ? pause : link_longest_pause_us);
        return;
    }
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)l->peer.port),
                             .sin_addr.s_addr =
                                 l->peer.address[l->attempt++ % CARD_ADDRESSES]};
    l->state = LINK_CONNECTING;
    l->due = clock_us() + link_step_us;
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || (connect(l->fd, (struct sockaddr *)&to, sizeof to) != 0 &&
                      errno != EINPROGRESS))
        l->due = 0; /* the next address, at once */
}

static int link_error_of(const struct link *l)
{
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    return error;
}

/* The connection is made, or has failed: send the hello. */
static void link_say_hello(struct link *l, const struct watch_card *own)
{
    struct pollfd at = {.fd = l->fd, .events = POLLOUT};
    struct link_hello *hello = &l->handshake.hello;
    if (poll(&at, 1, 0) <= 0)
        return;
    *hello = (struct link_hello){.magic = link_magic,
                                 .version = link_version,
                                 .to = l->peer.id,
                                 .from = own->id};
    if (link_error_of(l) || !card_draw(hello->nonce, sizeof hello->nonce) ||
        !link_send(l->fd, hello, sizeof *hello)) {
        link_connect_next(l, own);
        return;
    }
    l->state = LINK_CHALLENGED;
    l->due = clock_us() + link_step_us;
}

static void link_take_challenge(struct link *l, const struct watch_card *own)
{
    struct siphash_tag proof;
    int got =
        link_read(l->fd, &l->incoming.challenge, sizeof l->incoming.challenge, &l->got);
    if (!got)
        return;
    l->handshake.challenge = l->incoming.challenge;
    proof = link_proof(l, &l->handshake);
    l->got = 0;
    if (got < 0 || !link_send(l->fd, &proof, sizeof proof)) {
        link_connect_next(l, own);
        return;
    }
    l->state = LINK_ANSWERED;
    l->due = clock_us() + link_step_us;
}

static void link_take_answer(struct link *l, const struct watch_card *own,
                             double timeout)
{
    int got = link_read(l->fd, &l->incoming.answer, sizeof l->incoming.answer, &l->got);
    if (!got)
        return;
    if (got > 0 &&
        siphash_equal(l->incoming.answer, link_tag(l, LINK_ANSWER, &l->handshake)))
        link_begin_session(l, timeout);
    else
        link_connect_next(l, own);
}

int link_read(int fd, void *into, size_t bytes, unsigned *got)
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

/* Do these errors say that there is no answer, or no way to the host any more? Other errors say
 * that the process has ended or refuses, so its host is there. */
static bool link_is_silence(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
           error == EHOSTDOWN || error == ENETDOWN;
}

static enum link_event link_take_news(struct link *l, const struct watch_card *own,
                                      uint64_t *host)
{
    struct link_news *news = &l->incoming.news;
    bool connects = link_connects(l, own);
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

enum link_event link_step(struct link *l, const struct watch_card *own, double timeout,
                          uint64_t *host)
{
    if (l->state == LINK_PROVEN)
        return link_take_news(l, own, host);
    if (!link_connects(l, own) || l->state == LINK_OVER)
        return LINK_QUIET;
    if (l->state == LINK_AWAITED || clock_us() >= l->due)
        link_connect_next(l, own);
    else if (l->state == LINK_CONNECTING)
        link_say_hello(l, own);
    else if (l->state == LINK_CHALLENGED)
        link_take_challenge(l, own);
    else if (l->state == LINK_ANSWERED)
        link_take_answer(l, own, timeout);
    return LINK_QUIET;
}

short link_wants(const struct link *l)
{
    return l->state == LINK_CONNECTING ? POLLOUT : POLLIN;
}

bool link_is_timed(const struct link *l)
{
    return l->state == LINK_PAUSED || l->state == LINK_CONNECTING ||
           l->state == LINK_CHALLENGED || l->state == LINK_ANSWERED;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See link.h. Nothing here blocks. */
#include "watch/link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

static const int64_t patience_us = 3000000, longest_pause_us = 30000000;

void link_close(struct link *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    l->got = 0;
    l->error = 0;
}

static void set(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

/* The kernel asks in each fifth of the time; it counts from the last answer and looks
 * when it asks, so one of them is left out. */
static void hold(struct link *l, double timeout)
{
    int every = timeout < 10 ? 1 : (int)(timeout / 5);
    set(l->fd, IPPROTO_TCP, TCP_KEEPIDLE, every);
    set(l->fd, IPPROTO_TCP, TCP_KEEPINTVL, every);
    set(l->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(1000 * (timeout - every)));
    set(l->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(l->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    l->state = LINK_HELD;
}

static bool send_all(int fd, const void *data, size_t bytes)
{
    return send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* The kernel reports an error once. */
void link_tell(struct link *l, uint64_t host)
{
    errno = 0;
    if (l->state == LINK_HELD && !send_all(l->fd, &host, sizeof host))
        l->error = errno;
}

/* Which addresses lead there is not known: all are tried in turn. Those that this host has too
 * lead elsewhere. */
static void connect_next(struct link *l, const struct watch_card *own)
{
    link_close(l);
    while (l->at < CARD_ADDRESSES &&
           (!l->peer.address[l->at] || card_has(own, l->peer.address[l->at])))
        l->at++;
    if (l->at == CARD_ADDRESSES) {
        int64_t pause = (int64_t)1000000 << (l->tries < 5 ? l->tries++ : 5);
        l->at = 0;
        l->state = LINK_PAUSED;
        l->due = clock_us() + (pause < longest_pause_us ? pause : longest_pause_us);
        return;
    }
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)l->peer.port),
                             .sin_addr.s_addr = l->peer.address[l->at++]};
    l->state = LINK_CONNECTING;
    l->due = clock_us() + patience_us;
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || (connect(l->fd, (struct sockaddr *)&to, sizeof to) != 0 &&
                      errno != EINPROGRESS))
        l->due = 0; /* the next one, at once */
}

static int error_of(const struct link *l)
{
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    return error;
}

static void greet(struct link *l, const struct watch_card *own)
{
    const struct link_greeting greeting = {l->peer.cookie, own->cookie};
    struct pollfd at = {.fd = l->fd, .events = POLLOUT};
    if (poll(&at, 1, 0) <= 0)
        return; /* not yet */
    if (error_of(l) || !send_all(l->fd, &greeting, sizeof greeting)) {
        connect_next(l, own);
        return;
    }
    l->state = LINK_GREETING;
    l->due = clock_us() + patience_us;
}

/* A number, if it is there: 1; not yet: 0; never: -1, with the reason in errno. */
static int hear(struct link *l)
{
    char *into = (char *)&l->heard;
    ssize_t n = recv(l->fd, into + l->got, sizeof l->heard - l->got, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0) {
        errno = l->error;
        return -1;
    }
    l->got += (unsigned)n;
    if (l->got < sizeof l->heard)
        return 0;
    l->got = 0;
    return 1;
}

static void take_answer(struct link *l, const struct watch_card *own, double timeout)
{
    int heard = hear(l);
    if (heard < 0 || (heard && l->heard != l->peer.cookie))
        connect_next(l, own);
    else if (heard)
        hold(l, timeout);
}

/* No answer, or no way there any more: not that the process has ended, or refuses. */
static bool is_silence(int error)
{
    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
           error == EHOSTDOWN || error == ENETDOWN;
}

static enum link_event listen_on(struct link *l, bool connects, uint64_t *news)
{
    int heard = hear(l);
    *news = l->heard;
    if (heard >= 0)
        return heard ? LINK_NEWS : LINK_QUIET;
    bool lost = is_silence(errno);
    link_close(l);
    l->state = lost || connects ? LINK_OVER : LINK_AWAITED;
    return lost ? LINK_LOST : LINK_QUIET;
}

enum link_event link_step(struct link *l, const struct watch_card *own, double timeout,
                          uint64_t *news)
{
    bool connects = own->cookie < l->peer.cookie;
    if (l->state == LINK_HELD)
        return listen_on(l, connects, news);
    if (!connects || l->state == LINK_OVER)
        return LINK_QUIET;
    if (l->state == LINK_AWAITED || clock_us() >= l->due)
        connect_next(l, own);
    else if (l->state == LINK_CONNECTING)
        greet(l, own);
    else if (l->state == LINK_GREETING)
        take_answer(l, own, timeout);
    return LINK_QUIET;
}

void link_accept(struct link *l, int fd, const struct watch_card *own, double timeout)
{
    link_close(l);
    l->fd = fd;
    send_all(fd, &own->cookie, sizeof own->cookie);
    hold(l, timeout);
}

short link_wants(const struct link *l)
{
    return l->state == LINK_CONNECTING ? POLLOUT : POLLIN;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See listener.h. */
#include "watch/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

static const int64_t listener_proof_us = 5000000, listener_pause_us = 1000000;

/* The one address of a card, or all of the host: listener_is_selected() sorts out the rest. */
static uint32_t listener_address(const struct watch_card *own)
{
    return own->address[1] ? INADDR_ANY : own->address[0];
}

bool listener_open(struct listener *l, struct watch_card *own)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = listener_address(own)};
    socklen_t length = sizeof at;
    l->count = 0;
    l->paused_to = 0;
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

static void listener_drop(struct listener *l, int i)
{
    close(l->incoming[i].fd);
    listener_forget(l, i);
}

bool listener_add(struct listener *l, int fd)
{
    bool full = l->count == LISTENER_UNPROVEN;
    if (full)
        listener_drop(l, 0);
    l->incoming[l->count++] =
        (struct incoming){.fd = fd, .due = clock_us() + listener_proof_us};
    return !full;
}

/* Did it come to one of the addresses that were selected? */
static bool listener_is_selected(int fd, const struct watch_card *own)
{
    struct sockaddr_in at = {0};
    socklen_t length = sizeof at;
    return getsockname(fd, (struct sockaddr *)&at, &length) == 0 &&
           card_has(own, at.sin_addr.s_addr);
}

const char *listener_admit(struct listener *l, const struct watch_card *own)
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
        if (fd >= 0 && !listener_is_selected(fd, own)) {
            close(fd);
            dropped = "a connection to an interface that was not selected";
        } else if (fd >= 0 && !listener_add(l, fd))
            dropped = "a connection: too many have not proven whose they are";
    }
    return dropped;
}

static struct link *listener_find(struct link *links, uint64_t id)
{
    while (links && links->peer.id != id)
        links = links->next;
    return links;
}

enum listener_verdict { LISTENER_KEEP, LISTENER_CLOSE, LISTENER_REFUSE, LISTENER_GIVE };

/* Answer a valid hello as soon as its sender is known here. */
static enum listener_verdict listener_challenge(struct incoming *i, struct link *links)
{
    const struct link *link = listener_find(links, i->handshake.hello.from);
    i->state = INCOMING_PENDING;
    if (!link)
        return LISTENER_KEEP;
    if (link->state != LINK_AWAITED || !link_draw_challenge(&i->handshake.challenge) ||
        !link_send(i->fd, &i->handshake.challenge, sizeof i->handshake.challenge))
        return LISTENER_CLOSE;
    i->state = INCOMING_PROOF;
    i->got = 0;
    return LISTENER_KEEP;
}

static enum listener_verdict listener_take_hello(struct incoming *i, struct link *links,
                                                 const struct watch_card *own)
{
    struct link_hello *hello = &i->handshake.hello;
    int got = link_read(i->fd, hello, sizeof *hello, &i->got);
    if (got <= 0)
        return got ? LISTENER_CLOSE : LISTENER_KEEP;
    return link_is_valid_hello(hello, own) ? listener_challenge(i, links)
                                           : LISTENER_REFUSE;
}

static enum listener_verdict listener_take_proof(struct incoming *i, struct link *links,
                                                 double timeout)
{
    struct link *link = listener_find(links, i->handshake.hello.from);
    int got = link_read(i->fd, &i->proof, sizeof i->proof, &i->got);
    if (got <= 0)
        return got ? LISTENER_CLOSE : LISTENER_KEEP;
    if (!link || link->state != LINK_AWAITED)
        return LISTENER_CLOSE;
    if (!siphash_equal(i->proof, link_proof(link, &i->handshake)))
        return LISTENER_REFUSE;
    link_accept(link, i->fd, &i->handshake, timeout);
    return LISTENER_GIVE;
}

static enum listener_verdict listener_continue(struct incoming *i, struct link *links,
                                               const struct watch_card *own,
                                               double timeout)
{
    if (clock_us() >= i->due)
        return LISTENER_CLOSE;
    switch (i->state) {
    case INCOMING_HELLO:
        return listener_take_hello(i, links, own);
    case INCOMING_PENDING:
        return listener_challenge(i, links);
    case INCOMING_PROOF:
        return listener_take_proof(i, links, timeout);
    }
    return LISTENER_CLOSE;
}

const char *listener_step(struct listener *l, struct link *links,
                          const struct watch_card *own, double timeout)
{
    const char *dropped = NULL;
    for (int i = 0; i < l->count;) {
        switch (listener_continue(&l->incoming[i], links, own, timeout)) {
        case LISTENER_KEEP:
            i++;
            break;
        case LISTENER_REFUSE:
            dropped = "a connection that does not belong to this job";
            listener_drop(l, i);
            break;
        case LISTENER_CLOSE:
            listener_drop(l, i);
            break;
        case LISTENER_GIVE:
            listener_forget(l, i);
            break;
        }
    }
    return dropped;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See entrance.h. */
#include "watch/entrance.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum { MAX_GUESTS = 4096 };
static const int64_t patience_us = 5000000;

uint32_t entrance_open(struct entrance *e)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    e->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (e->fd >= 0 && bind(e->fd, (struct sockaddr *)&at, sizeof at) == 0 &&
        listen(e->fd, SOMAXCONN) == 0 &&
        getsockname(e->fd, (struct sockaddr *)&at, &length) == 0)
        return ntohs(at.sin_port);
    entrance_close(e);
    return 0;
}

void entrance_close(struct entrance *e)
{
    for (int i = 0; i < e->count; i++)
        close(e->guests[i].fd);
    free(e->guests);
    if (e->fd >= 0)
        close(e->fd);
    *e = (struct entrance){.fd = -1};
}

static bool reserve(struct entrance *e)
{
    if (e->count < e->capacity)
        return true;
    int capacity = e->capacity ? 2 * e->capacity : 16;
    struct guest *guests = capacity <= MAX_GUESTS
                               ? realloc(e->guests, (size_t)capacity * sizeof *guests)
                               : NULL;
    if (!guests)
        return false;
    e->guests = guests;
    e->capacity = capacity;
    return true;
}

void entrance_admit(struct entrance *e)
{
    errno = 0;
    for (int fd; (fd = accept4(e->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;)
        if (reserve(e))
            e->guests[e->count++] =
                (struct guest){.fd = fd, .due = clock_us() + patience_us};
        else
            close(fd);
    if (errno != EMFILE && errno != ENFILE)
        return;
    close(e->fd); /* it would have something to say for ever */
    e->fd = -1;
}

static void forget(struct entrance *e, int i)
{
    e->guests[i] = e->guests[--e->count];
}

/* Those who have said all wait, and say nothing more; if they go, that shows here. */
bool entrance_hear(struct entrance *e, int i, uint64_t cookie)
{
    struct guest *g = &e->guests[i];
    char *into = (char *)&g->said;
    size_t wanted = sizeof g->said - g->got;
    char more;
    ssize_t n =
        recv(g->fd, wanted ? into + g->got : &more, wanted ? wanted : 1, MSG_DONTWAIT);
    bool goes = n < 0 ? errno != EAGAIN && errno != EINTR : n == 0 || !wanted;
    if (n > 0 && wanted)
        g->got += (unsigned)n;
    bool known = g->said.to == cookie;
    if (g->got == sizeof g->said && known)
        g->due = INT64_MAX;
    goes = goes || (g->got == sizeof g->said && !known);
    if (!goes && clock_us() < g->due)
        return true;
    close(g->fd);
    forget(e, i);
    return false;
}

int entrance_take(struct entrance *e, uint64_t from)
{
    for (int i = 0; i < e->count; i++)
        if (e->guests[i].due == INT64_MAX && e->guests[i].said.from == from) {
            int fd = e->guests[i].fd;
            forget(e, i);
            return fd;
        }
    return -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See neighbors.h. The names of the sockets can be read by anybody on the host, so they do
 * not tell the cookies, which the messages have to name. */
#include "watch/neighbors.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/random.h"

struct message {
    uint64_t to, host;
};

static socklen_t address_of(uint64_t cookie, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length =
        snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                 "partialcoll-watch-%016llx", (unsigned long long)splitmix_mix(cookie));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

bool neighbors_open(struct neighbors *n, uint64_t cookie)
{
    struct sockaddr_un address;
    socklen_t length = address_of(cookie, &address);
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return n->fd >= 0 && bind(n->fd, (struct sockaddr *)&address, length) == 0;
}

void neighbors_close(struct neighbors *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

void neighbors_tell(const struct neighbors *n, const struct watch_card *to,
                    uint64_t host)
{
    struct sockaddr_un address;
    socklen_t length = address_of(to->cookie, &address);
    struct message message = {to->cookie, host};
    if (to->port)
        sendto(n->fd, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL,
               (struct sockaddr *)&address, length);
}

bool neighbors_hear(const struct neighbors *n, const struct watch_card *own,
                    uint64_t *host)
{
    struct message message;
    ssize_t got;
    while ((got = recv(n->fd, &message, sizeof message, MSG_DONTWAIT)) >= 0)
        if (got == (ssize_t)sizeof message && message.to == own->cookie) {
            *host = message.host;
            return true;
        }
    return false;
}

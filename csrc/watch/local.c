/* SPDX-License-Identifier: Apache-2.0 */
/* See local.h. */
#include "watch/local.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const uint32_t local_magic = 0x70634c4e, local_version = 1;

static socklen_t local_address(const struct watch_card *card,
                               struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                          "partialcoll-watch-%016llx%016llx",
                          (unsigned long long)card->local_name[0],
                          (unsigned long long)card->local_name[1]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static struct siphash_tag local_tag(const struct local_message *m,
                                    const struct watch_card *to)
{
    return siphash_tag_of(to->secret, m, offsetof(struct local_message, tag));
}

/* Ask for the sender's identity before there is a name that anybody can send to. */
bool local_open(struct local *l, const struct watch_card *own)
{
    struct sockaddr_un address;
    socklen_t length = local_address(own, &address);
    int on = 1;
    l->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd >= 0 && setsockopt(l->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 &&
        bind(l->fd, (struct sockaddr *)&address, length) == 0)
        return true;
    local_close(l);
    return false;
}

void local_close(struct local *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

bool local_tell(const struct local *l, const struct watch_card *to, uint64_t host)
{
    struct sockaddr_un address;
    socklen_t length = local_address(to, &address);
    struct local_message message = {
        .magic = local_magic, .version = local_version, .host = host};
    message.tag = local_tag(&message, to);
    return sendto(l->fd, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL,
                  (struct sockaddr *)&address, length) >= 0 ||
           (errno != EAGAIN && errno != ENOBUFS);
}

static bool local_is_from_us(struct msghdr *header)
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(header);
    struct ucred from;
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS)
        return false;
    memcpy(&from, CMSG_DATA(c), sizeof from);
    return from.uid == getuid();
}

/* The kernel installs descriptors that a sender attaches, if there is room to report them:
 * there is room for the credentials only. */
enum local_event local_receive(const struct local *l, const struct watch_card *own,
                               uint64_t *host)
{
    struct local_message m;
    struct siphash_tag tag;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec data = {.iov_base = &m, .iov_len = sizeof m};
    struct msghdr header = {.msg_iov = &data,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control};
    ssize_t got = recvmsg(l->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return LOCAL_NOTHING;
    if (got != sizeof m || header.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ||
        !local_is_from_us(&header) || m.magic != local_magic ||
        m.version != local_version)
        return LOCAL_REFUSED;
    tag = local_tag(&m, own);
    *host = m.host;
    return siphash_equal(tag, m.tag) ? LOCAL_NEWS : LOCAL_REFUSED;
}

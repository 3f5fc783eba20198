/* SPDX-License-Identifier: Apache-2.0 */
/* See card.h. */
#include "watch/card.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

bool card_has(const struct watch_card *card, uint32_t address)
{
    for (int i = 0; i < CARD_ADDRESSES; i++)
        if (address && card->address[i] == address)
            return true;
    return false;
}

static bool is_usable(const struct ifaddrs *i)
{
    return i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
           (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK);
}

void card_fill(struct watch_card *card)
{
    struct ifaddrs *all = NULL;
    int known = 0;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i && known < CARD_ADDRESSES; i = i->ifa_next)
        if (is_usable(i))
            card->address[known++] =
                ((const struct sockaddr_in *)(const void *)i->ifa_addr)
                    ->sin_addr.s_addr;
    freeifaddrs(all);
    gethostname(card->host, sizeof card->host - 1);
}

/* IPv4 may come as IPv6. */
static uint32_t peer_of(int fd)
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

/* A copy, so that it is the same one that is looked at and shut down. */
static void cut(int number, const struct watch_card *theirs,
                const struct watch_card *own)
{
    int fd = fcntl(number, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return;
    uint32_t peer = peer_of(fd);
    if (card_has(theirs, peer) && !card_has(own, peer))
        shutdown(fd, SHUT_RDWR);
    close(fd);
}

void card_cut(const struct watch_card *theirs, const struct watch_card *own)
{
    DIR *open = opendir("/proc/self/fd");
    if (!open)
        return;
    for (const struct dirent *e; (e = readdir(open));)
        if (e->d_name[0] != '.')
            cut(atoi(e->d_name), theirs, own);
    closedir(open);
}

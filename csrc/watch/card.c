/* SPDX-License-Identifier: Apache-2.0 */
/* See watch.h. */
#include "watch/watch.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/environment.h"

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

/* Return whether this item of a list is the interface's name, its address, or a network that the
 * address is in, such as 10.0.0.0/8. */
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
        !card_draw(&card->secret, sizeof card->secret) ||
        !card_draw(card->local_name, sizeof card->local_name) || getifaddrs(&all) != 0)
        return false;
    bool found = card_find_addresses(card, all);
    freeifaddrs(all);
    gethostname(card->host, sizeof card->host - 1);
    return found;
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

/* Work on a copy of the descriptor: the application may close the number and get it again for
 * another file between the two steps. */
static void card_cut_descriptor(int number, const struct watch_card *theirs,
                                const struct watch_card *own)
{
    int fd = fcntl(number, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return;
    uint32_t peer = card_peer_of(fd);
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
            card_cut_descriptor(atoi(e->d_name), theirs, own);
    closedir(open);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watch group: ranks that watch each other's hosts, those of one communicator. Between each two
 * hosts of a group two processes of each hold a connection to one of the other host (one, where
 * both hosts have one process); these are spread over the ranks of a host. Pure: all ranks choose
 * alike.
 */
#ifndef PCOLL_WATCH_GROUP_H
#define PCOLL_WATCH_GROUP_H

#include "watch/card.h"

/* The caller owns it, and keeps it from watch_announce to watch_leave. */
struct watch_group {
    uint32_t rank, size;
    const uint64_t *hosts; /* Number of each rank's host. */
    const struct watch_card
        *cards; /* By rank, zero of the dead; NULL until watch_join. */
    const void *owner;
    struct watch_group *next;
};

/* Call `each` for every peer on another host to which this rank holds a connection. */
void group_each_peer(const struct watch_group *g,
                     void (*each)(void *arg, const struct watch_card *peer,
                                  uint64_t host),
                     void *arg);
bool group_has_host(const struct watch_group *g, uint64_t host);
/* Is the process with this id a member? */
bool group_has_process(const struct watch_group *g, uint64_t id);

#endif

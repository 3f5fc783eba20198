/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The card of a process says how the watches of other processes reach it, and holds the secret
 * by which they prove that they belong to the job. Ranks exchange their cards by MPI messages,
 * word by word, so a card has the same size and byte order everywhere.
 *
 * Only `id` and `local_name` are public: the first is sent in clear, everybody on the host can
 * read the second in /proc/net/unix. They are drawn independently of `secret`.
 */
#ifndef PCOLL_WATCH_CARD_H
#define PCOLL_WATCH_CARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"

enum { CARD_ADDRESSES = 8 };

struct watch_card {
    uint64_t id;               /* Random, names the process. */
    struct siphash_key secret; /* Random, known to the ranks that share a group. */
    uint64_t local_name[2];    /* Random, the name of the datagram socket (local.h). */
    uint32_t port;             /* TCP port of the listener; 0: no watch runs there. */
    uint32_t reserved;
    uint32_t address[CARD_ADDRESSES]; /* IPv4, as in sockaddr_in; 0: none. */
    char host[40];
};

_Static_assert(sizeof(struct watch_card) % sizeof(uint64_t) == 0, "sent in words");

/* Draw the random fields and fill in the addresses and the name of this host. Return false if
 * there are no random numbers or no usable address. The setting PARTIALCOLL_INTERFACE selects
 * the addresses; without it they are those of the interfaces that MPI has been told to use, or
 * of all interfaces but loopback. */
bool card_fill(struct watch_card *card);
/* Fill this memory with random bytes; false: the kernel has none. */
bool card_draw(void *into, size_t bytes);
bool card_has(const struct watch_card *card, uint32_t address);
/* Shut down all connections of this process to the host of that card, except connections within
 * the own host. */
void card_cut(const struct watch_card *theirs, const struct watch_card *own);

#endif

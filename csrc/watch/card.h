/* SPDX-License-Identifier: Apache-2.0 */
/* How a process is reached by the watches of other hosts. Sent as it is: of equal size and order
 * everywhere. */
#ifndef PCOLL_WATCH_CARD_H
#define PCOLL_WATCH_CARD_H

#include <stdbool.h>
#include <stdint.h>

enum { CARD_ADDRESSES = 8 };

struct watch_card {
    uint64_t cookie; /* random: who knows it belongs to the job */
    uint32_t port;   /* 0: this process takes no part */
    uint32_t reserved;
    uint32_t address[CARD_ADDRESSES]; /* IPv4, as in sockaddr_in; 0: none */
    char host[40];
};

_Static_assert(sizeof(struct watch_card) % sizeof(uint64_t) == 0, "sent in words");

/* The addresses and the name of this host. */
void card_fill(struct watch_card *card);
bool card_has(const struct watch_card *card, uint32_t address);
/* Shut down this process's connections to who has that card; no connection within the own
 * host, which has the other one. */
void card_cut(const struct watch_card *theirs, const struct watch_card *own);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What all simulated ranks do together, agreements and a vendor's allreduces: the k-th
 * call of each rank on a channel belong together; reduced in the order of ranks. */
#ifndef PCOLL_TRANSPORT_SIM_GATHERING_H
#define PCOLL_TRANSPORT_SIM_GATHERING_H

#include "transport/transport.h"

/* Of one rank; of vendor's allreduces the k-th that each has opened. */
struct channel {
    uint32_t number;
    uint64_t calls;
};

/* The calls of all ranks that belong together; nothing of those that do not take part. */
struct gathering {
    uint32_t channel;
    uint64_t number;
    uint32_t arrived;
    size_t bytes;
    void (*reduce)(void *, const void *, const void *, size_t);
    struct native_call *calls; /* by rank */
    char **inputs;             /* copies: MPI may read whenever it likes */
    uint64_t *cookies;
    struct gathering *next;
};

/* One of so many ranks that take part enters. PCOLL_EPROTOCOL if another rank's call is
 * about something else. *complete: all have, and the results are in place; else NULL. */
int gathering_enter(struct gathering **list, uint32_t size, uint32_t parts,
                    uint32_t rank, struct channel *channel,
                    const struct native_call *call, uint64_t cookie,
                    struct gathering **complete);
/* Take it off the list and free it. */
void gathering_end(struct gathering **list, struct gathering *g, uint32_t size);

#endif

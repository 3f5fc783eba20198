/* SPDX-License-Identifier: Apache-2.0 */
/* A vendor's allreduce in a simulation: the k-th call of each rank on the k-th channel
 * that it opened belong together; added up in the order of ranks. */
#ifndef PCOLL_TRANSPORT_SIM_NATIVE_H
#define PCOLL_TRANSPORT_SIM_NATIVE_H

#include "transport/transport.h"

/* Of one rank. */
struct channel {
    uint32_t number;
    uint64_t calls;
};

/* The calls of all ranks that belong together. */
struct native_gathering {
    uint32_t channel;
    uint64_t number;
    uint32_t arrived;
    size_t bytes;
    struct native_call *calls; /* by rank */
    char **inputs;             /* copies: MPI may read whenever it likes */
    uint64_t *cookies;
    struct native_gathering *next;
};

/* A rank enters. PCOLL_EPROTOCOL if another rank's call is about something else.
 * *complete: all have, and the results are in place; else NULL. */
int native_enter(struct native_gathering **list, uint32_t size, uint32_t rank,
                 struct channel *channel, const struct native_call *call,
                 uint64_t cookie, struct native_gathering **complete);
/* Take it off the list and free it. */
void native_end(struct native_gathering **list, struct native_gathering *g,
                uint32_t size);

#endif

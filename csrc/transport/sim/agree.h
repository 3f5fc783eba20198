/* SPDX-License-Identifier: Apache-2.0 */
/* Agreements of all simulated ranks: the k-th of each rank belong together. */
#ifndef PCOLL_TRANSPORT_SIM_AGREE_H
#define PCOLL_TRANSPORT_SIM_AGREE_H

#include "transport/transport.h"

/* The k-th agreement of all ranks. */
struct gathering {
    uint64_t number;
    uint32_t arrived;
    int count;
    enum agree_op op;
    uint64_t *values;   /* so far */
    uint64_t **results; /* where each rank wants them */
    uint64_t *cookies;
    struct gathering *next;
};

/* A rank enters its agreement of that number. PCOLL_EPROTOCOL if another rank's is
 * about something else. *complete: all have, and the results are where they are wanted;
 * else NULL. */
int gathering_enter(struct gathering **list, uint32_t size, uint32_t rank,
                    const struct gathering *own, uint64_t *values, uint64_t cookie,
                    struct gathering **complete);
/* Take it off the list and free it. */
void gathering_end(struct gathering **list, struct gathering *g);

#endif

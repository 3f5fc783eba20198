/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a message takes in a simulation: LogGP (Alexandrov, Ionescu, Schauser,
 * Scheiman, SPAA 1995) with a latency that may be drawn at random, and MPI's order:
 * messages of one (sender, receiver, tag) never overtake each other, all others may.
 *
 * Sending k bytes keeps the sender's processor for o, then its outgoing link for
 * (k-1) G, and for g more before the next message; the last byte arrives L later;
 * taking it in keeps the receiver's incoming link for g and its processor for o. What
 * the model does not have: the receiver's link does not take (k-1) G again, so many
 * senders to one receiver slow each other down by g only; and reductions cost nothing.
 */
#ifndef PCOLL_TRANSPORT_SIM_SIM_NETWORK_H
#define PCOLL_TRANSPORT_SIM_SIM_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "include/simulator.h"
#include "transport/transport.h"

/* Without memory a simulation has no sense: it ends the program. */
static inline void *sim_must(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

struct sim_network;

/* PCOLL_EINVAL names the parameter that is impossible and its range. */
int sim_network_check(const pcoll_network *parameters);
struct sim_network *sim_network_create(const pcoll_network *parameters, uint32_t size,
                                       uint64_t seed);
void sim_network_free(struct sim_network **network);

struct sim_flight {
    int64_t sent;    /* the last byte has left: the sender's buffer is free */
    int64_t arrival; /* at the receiver's link */
};

/* A message that is handed over now. */
struct sim_flight sim_network_send(struct sim_network *network, uint32_t from,
                                   uint32_t to, uint32_t tag, size_t bytes,
                                   int64_t now);
/* When a message that arrives now has been taken in. */
int64_t sim_network_receive(struct sim_network *network, uint32_t to, int64_t now);
/* From when on all processors and links are free. */
int64_t sim_network_free_at(const struct sim_network *network);
/* A latency of its own. */
int64_t sim_network_latency(struct sim_network *network);

/* The network's stream of random numbers: uniform in [0, bound). */
uint32_t sim_network_random(struct sim_network *network, uint32_t bound);

/*
 * What is going to happen in a simulation, earliest first; equal times in the order in
 * which they were put in. A binary heap.
 */

enum sim_event_kind { SEND_OVER, ARRIVAL, DELIVERY, AGREEMENT_OVER, NATIVE_OVER, WAKE };

struct sim_message;
struct sim_endpoint;

struct sim_event {
    int64_t time;
    uint64_t order;
    enum sim_event_kind kind;
    uint32_t rank;
    uint64_t token; /* WAKE; AGREEMENT_OVER, NATIVE_OVER: cookie */
    struct sim_message *message;
    struct sim_endpoint *endpoint; /* AGREEMENT_OVER, NATIVE_OVER: whose */
};

struct sim_heap {
    struct sim_event *events;
    size_t count, capacity;
    uint64_t order;
};

void sim_heap_push(struct sim_heap *heap, struct sim_event event);
/* The queue must not be empty. */
struct sim_event sim_heap_pop(struct sim_heap *heap);

/* What all simulated ranks do together, agreements and a vendor's allreduces: the k-th
 * call of each rank on a channel belong together; reduced in the order of ranks. */

/* Of one rank; of vendor's allreduces the k-th that each has opened. */
struct sim_channel {
    uint32_t number;
    uint64_t calls;
};

/* The calls of all ranks that belong together; nothing of those that do not take part. */
struct sim_gathering {
    uint32_t channel;
    uint64_t number;
    uint32_t arrived;
    size_t bytes;
    void (*reduce)(void *, const void *, const void *, size_t);
    struct native_call *calls; /* by rank */
    char **inputs;             /* copies: MPI may read whenever it likes */
    uint64_t *cookies;
    struct sim_gathering *next;
};

/* One of so many ranks that take part enters. PCOLL_EPROTOCOL if another rank's call is
 * about something else. *complete: all have, and the results are in place; else NULL. */
int sim_gathering_enter(struct sim_gathering **list, uint32_t size, uint32_t parts,
                        uint32_t rank, struct sim_channel *channel,
                        const struct native_call *call, uint64_t cookie,
                        struct sim_gathering **complete);
/* Take it off the list and free it. */
void sim_gathering_end(struct sim_gathering **list, struct sim_gathering *gathering,
                       uint32_t size);

#endif

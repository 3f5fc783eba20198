/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is under way in a simulation: how long messages take, the events to come, and
 * the calls that all ranks make together. It knows no endpoints (sim_transport.h).
 *
 * Network: LogGP (Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995) with a latency
 * that may be random, and MPI's order: messages of one (sender, receiver, tag) never
 * overtake each other, all others may. Sending k bytes occupies the sender's processor
 * for o, then its outgoing link for (k-1) G, and for g more before the next message.
 * The last byte arrives L later. Receiving occupies the receiver's incoming link for g
 * and its processor for o. Not modeled: the receiver's link is not occupied for (k-1) G
 * again, so many senders to one receiver slow each other down by g only; and reductions
 * cost nothing.
 *
 * Events: a binary heap, earliest first. Events of the same time keep the order in
 * which they were pushed.
 *
 * Gatherings: agreements, and allreduces of the MPI library. The k-th call of each rank
 * on a channel belongs to the k-th calls of the other ranks; the inputs are reduced in
 * rank order.
 */
#ifndef PCOLL_TRANSPORT_SIM_SIM_NETWORK_H
#define PCOLL_TRANSPORT_SIM_SIM_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "include/simulator.h"
#include "transport/transport.h"

/* Return the memory that was allocated; without memory, end the program. */
static inline void *sim_must(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

struct sim_network;

/* Check the parameters. PCOLL_EINVAL names an impossible one and its range. */
int sim_network_check(const pcoll_network *parameters);
struct sim_network *sim_network_create(const pcoll_network *parameters, uint32_t size,
                                       uint64_t seed);
void sim_network_free(struct sim_network **network);

struct sim_flight {
    int64_t sent;    /* the last byte leaves; the sender's buffer is free */
    int64_t arrival; /* at the receiver's link */
};

/* Send a message now. */
struct sim_flight sim_network_send(struct sim_network *network, uint32_t from,
                                   uint32_t to, uint32_t tag, size_t bytes,
                                   int64_t now);
/* Receive a message that arrives now; return when that is complete. */
int64_t sim_network_receive(struct sim_network *network, uint32_t to, int64_t now);
/* Return the time from which all processors and links are free. */
int64_t sim_network_free_at(const struct sim_network *network);
/* Draw a latency. */
int64_t sim_network_latency(struct sim_network *network);

/* Draw a number of the network's random stream, uniform in [0, bound). */
uint32_t sim_network_random(struct sim_network *network, uint32_t bound);

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
    struct sim_endpoint *endpoint; /* AGREEMENT_OVER, NATIVE_OVER */
};

struct sim_heap {
    struct sim_event *events;
    size_t count, capacity;
    uint64_t order;
};

void sim_heap_push(struct sim_heap *heap, struct sim_event event);
/* The heap must not be empty. */
struct sim_event sim_heap_pop(struct sim_heap *heap);

/* A rank's end of a channel. Channel 0 is that of agreements; channel k > 0 is the k-th
 * that each rank has opened for allreduces of the library. */
struct sim_channel {
    uint32_t number;
    uint64_t calls;
};

/* Calls that belong together. */
struct sim_gathering {
    uint32_t channel;
    uint64_t number;
    uint32_t arrived;
    size_t bytes;
    void (*reduce)(void *, const void *, const void *, size_t);
    struct native_call *calls; /* by rank; empty for ranks that do not take part */
    char **inputs;             /* copies: MPI may read the buffers at any time */
    uint64_t *cookies;
    struct sim_gathering *next;
};

/* Enter a rank's call; `parts` ranks of `size` take part. PCOLL_EPROTOCOL if another
 * rank's call differs. *complete: the gathering, once all parts have entered and the
 * results are in place; else NULL. */
int sim_gathering_enter(struct sim_gathering **list, uint32_t size, uint32_t parts,
                        uint32_t rank, struct sim_channel *channel,
                        const struct native_call *call, uint64_t cookie,
                        struct sim_gathering **complete);
/* Remove a gathering from the list and free it. */
void sim_gathering_end(struct sim_gathering **list, struct sim_gathering *gathering,
                       uint32_t size);

#endif

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
static inline void *must(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

struct network;

/* PCOLL_EINVAL names the parameter that is impossible and its range. */
int network_check(const pcoll_network *parameters);
struct network *network_create(const pcoll_network *parameters, uint32_t size,
                               uint64_t seed);
void network_free(struct network **n);

struct flight {
    int64_t sent;    /* the last byte has left: the sender's buffer is free */
    int64_t arrival; /* at the receiver's link */
};

/* A message that is handed over now. */
struct flight network_send(struct network *n, uint32_t from, uint32_t to, uint32_t tag,
                           size_t bytes, int64_t now);
/* When a message that arrives now has been taken in. */
int64_t network_receive(struct network *n, uint32_t to, int64_t now);
/* From when on all processors and links are free. */
int64_t network_free_at(const struct network *n);
/* A latency of its own. */
int64_t network_latency(struct network *n);

/* The network's stream of random numbers: uniform in [0, bound). */
uint32_t network_random(struct network *n, uint32_t bound);

/*
 * What is going to happen in a simulation, earliest first; equal times in the order in
 * which they were put in. A binary heap.
 */

enum happening_kind { SEND_OVER, ARRIVAL, DELIVERY, AGREEMENT_OVER, NATIVE_OVER, WAKE };

struct message;
struct endpoint;

struct happening {
    int64_t time;
    uint64_t order;
    enum happening_kind kind;
    uint32_t rank;
    uint64_t token; /* WAKE; AGREEMENT_OVER, NATIVE_OVER: cookie */
    struct message *message;
    struct endpoint *endpoint; /* AGREEMENT_OVER, NATIVE_OVER: whose */
};

struct queue {
    struct happening *heap;
    size_t count, capacity;
    uint64_t order;
};

void sim_heap_push(struct queue *q, struct happening h);
/* The queue must not be empty. */
struct happening sim_heap_pop(struct queue *q);

/* What all simulated ranks do together, agreements and a vendor's allreduces: the k-th
 * call of each rank on a channel belong together; reduced in the order of ranks. */

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

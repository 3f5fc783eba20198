/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport (transport/transport.h) in virtual time: all ranks of a communicator in
 * one process and one thread, with seeded delays. The same protocol code runs over it
 * as over MPI. Time is in nanoseconds.
 *
 * The network (below) determines how long messages take. To find mistakes, a hostile
 * simulation also does everything that the interface of transports allows:
 *   - a send completes at a random time before its arrival, or only when it is received
 *     (rendezvous), and its buffer is read only then: a rank that writes to it earlier
 *     sends garbage;
 *   - a receive buffer is filled with NaNs when it is posted;
 *   - the events that one poll returns are shuffled, unless in_order;
 *   - a rank's agent stalls: events happen, but it does not poll for a while;
 *   - a rank is woken although nothing has happened.
 *
 * Ranks may die (sim_kill); the surviving ranks continue in a new communicator
 * (sim_shrink).
 *
 * Without memory a simulation ends the program.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "include/simulator.h"
#include "transport/transport.h"
#include "transport/window.h"

struct sim;

struct sim_options {
    uint32_t size;
    uint64_t seed;
    pcoll_network network;
    bool hostile;
    uint32_t
        stall_one_in; /* probability 1/n each time that a rank is woken; 0: never */
    int64_t stall_longest;
    uint32_t spurious_one_in;
    bool in_order; /* events of one poll are not shuffled */
};

/* PCOLL_EINVAL names an impossible option. */
int sim_create(const struct sim_options *options, struct sim **out);
void sim_free(struct sim **sim);

/* Return the transport of a rank in the newest communicator; the simulation owns it. */
struct transport *sim_endpoint(struct sim *sim, uint32_t rank);

/* Kill a rank: it is never stepped again. What it has sent arrives, or is lost from
 * some time on, which is drawn for each receiver. Its memory has to stay. */
void sim_kill(struct sim *sim, uint32_t rank);
/* Give the number of a dead rank to a new one. Wakes of the dead rank lose their
 * token. */
void sim_revive(struct sim *sim, uint32_t rank);
/* Make a new communicator of the living ranks, with new transports, which receive
 * nothing that was sent before. The old transports stay; messages to them still write
 * memory. */
void sim_shrink(struct sim *sim);

/* Let sim_step stop for this rank after `delay`. */
void sim_wake(struct sim *sim, uint32_t rank, int64_t delay, uint64_t token);

struct sim_stop {
    uint32_t rank;
    bool woken; /* by sim_wake; else there may be events to poll */
    uint64_t token;
};

/* Advance to the next event, up to a time, that a rank has to look at. False: no event is left
 * until then. The time is `until` afterwards, unless that is INT64_MAX. */
bool sim_step_until(struct sim *sim, int64_t until, struct sim_stop *stop);
static inline bool sim_step(struct sim *sim, struct sim_stop *stop)
{
    return sim_step_until(sim, INT64_MAX, stop);
}

int64_t sim_now(const struct sim *sim);
/* Return the time from which all processors and links are free. */
int64_t sim_free_at(const struct sim *sim);
/* Messages sent so far, by all ranks. */
uint64_t sim_messages(const struct sim *sim);

/* Draw a number of the simulation's random stream, uniform in [0, bound). */
uint32_t sim_random(struct sim *sim, uint32_t bound);

/*
 * Windows (transport/window.h) of simulated ranks, in one process and one thread. Every
 * access takes effect at once.
 *
 * The exception are parcels, if they are asked for. What a rank puts and adds into the
 * memory of another rank travels together with the change of the word that announces
 * it, after the flush. Nothing of a parcel takes effect before it is landed, and the
 * value of the word before that change is not known when the change is made.
 */

struct sim_windows;
struct sim_parcel;

/* Create windows of `bytes` for each rank. */
struct sim_windows *sim_windows_create(uint32_t ranks, size_t bytes, bool parcels);
void sim_windows_free(struct sim_windows **all);
struct window *sim_window(struct sim_windows *all, uint32_t rank);

/* Return the parcel that the rank has sent since the last call, or NULL. It has to be
 * landed once. */
struct sim_parcel *sim_windows_sent(struct sim_windows *all, uint32_t rank);
/* Let a parcel take effect; return the rank that receives it. */
uint32_t sim_windows_land(struct sim_windows *all, struct sim_parcel **parcel);

/*
 * The simulated network: transfer times of messages, future events, and collective
 * calls. It does not know endpoints.
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

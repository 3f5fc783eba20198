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
#ifndef PCOLL_TRANSPORT_SIM_NETWORK_H
#define PCOLL_TRANSPORT_SIM_NETWORK_H

#include <stdbool.h>
#include <stddef.h>

#include "include/simulator.h"

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

#endif

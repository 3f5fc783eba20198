/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport in virtual time: all ranks of a communicator in one process, one thread,
 * with seeded delays. The protocol that runs over it is the very one that runs over
 * MPI.
 *
 * What it does to find mistakes:
 *   - messages of different pairs or tags overtake each other at random, never those of
 * one (sender, receiver, tag), and never the control messages of one pair: MPI's rule;
 *   - a send is over at a random time before its delivery, and only then is its buffer
 * read: who writes to it earlier sends garbage;
 *   - a receive buffer is filled with NaNs when it is posted.
 *
 * Time is in nanoseconds.
 */
#ifndef PCOLL_TRANSPORT_SIM_H
#define PCOLL_TRANSPORT_SIM_H

#include "transport.h"

struct sim;

struct sim_options {
    uint32_t size;
    uint64_t seed;
    int64_t latency_min, latency_max; /* of a message, uniform */
};

/* PCOLL_EINVAL names an impossible option. */
int sim_create(const struct sim_options *options, struct sim **out);
void sim_free(struct sim **s);

/* The transport of a rank; freed with the simulation. */
struct transport *sim_endpoint(struct sim *s, uint32_t rank);

/* Have sim_step stop for this rank at a time from now. */
void sim_wake(struct sim *s, uint32_t rank, int64_t delay, uint64_t token);

struct sim_stop {
    uint32_t rank;
    bool woken; /* by sim_wake; else there is something to poll */
    uint64_t token;
};

/* Go on to the next thing that concerns a rank; false when nothing is left to happen.
 */
bool sim_step(struct sim *s, struct sim_stop *stop);

/* A number of the simulation's own stream: seeded, uniform in [0, bound). */
uint32_t sim_random(struct sim *s, uint32_t bound);

#endif

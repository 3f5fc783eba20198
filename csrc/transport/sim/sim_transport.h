/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport in virtual time: all ranks of a communicator in one process, one thread,
 * with seeded delays. The protocol that runs over it is the very one that runs over
 * MPI. Time is in nanoseconds.
 *
 * How long messages take is the business of sim_network.h. A hostile simulation does in
 * addition whatever the seam allows, to find mistakes:
 *   - a send is over at a random time before its arrival, or only when it is received
 *     (rendezvous), and only then is its buffer read: who writes to it earlier sends
 *     garbage;
 *   - a receive buffer is filled with NaNs when it is posted;
 *   - what one poll returns is shuffled, unless in_order;
 *   - a rank's agent stalls: things happen, but nobody looks for a while;
 *   - a rank is woken for nothing.
 *
 * Ranks may die (sim_kill), and those who live go on in a communicator of theirs
 * (sim_shrink).
 *
 * Without memory a simulation has no sense: it ends the program.
 */
#ifndef PCOLL_TRANSPORT_SIM_SIM_TRANSPORT_H
#define PCOLL_TRANSPORT_SIM_SIM_TRANSPORT_H

#include "include/simulator.h"
#include "transport/transport.h"

struct sim;

struct sim_options {
    uint32_t size;
    uint64_t seed;
    pcoll_network network;
    bool hostile;
    uint32_t stall_one_in; /* of the times that a rank is woken; 0: never */
    int64_t stall_longest;
    uint32_t spurious_one_in;
    bool in_order; /* what one poll returns is not shuffled */
};

/* PCOLL_EINVAL names an impossible option. */
int sim_create(const struct sim_options *options, struct sim **out);
void sim_free(struct sim **sim);

/* The transport of a rank, of the newest communicator; freed with the simulation. */
struct transport *sim_endpoint(struct sim *sim, uint32_t rank);

/* It does nothing any more. What it has sent arrives, or is lost from some time on, for
 * each receiver another one. Its memory is to stay. */
void sim_kill(struct sim *sim, uint32_t rank);
/* Another rank has its number, alone so far: what the dead one was to be woken for is over. */
void sim_revive(struct sim *sim, uint32_t rank);
/* A new communicator of those who live, with new transports, to which nothing comes that was
 * sent before. The old ones stay, and what comes there still writes to memory. */
void sim_shrink(struct sim *sim);

/* Have sim_step stop for this rank at a time from now. */
void sim_wake(struct sim *sim, uint32_t rank, int64_t delay, uint64_t token);

struct sim_stop {
    uint32_t rank;
    bool woken; /* by sim_wake; else there may be something to poll */
    uint64_t token;
};

/* Go on to the next thing that concerns a rank; false when nothing is left to happen.
 */
bool sim_step(struct sim *sim, struct sim_stop *stop);
/* The same up to a time; if false, it is that time. */
bool sim_step_until(struct sim *sim, int64_t until, struct sim_stop *stop);

int64_t sim_now(const struct sim *sim);
/* From when on the gaps and overheads of all messages are over. */
int64_t sim_free_at(const struct sim *sim);
/* Messages sent so far, by all ranks. */
uint64_t sim_messages(const struct sim *sim);

/* A number of the simulation's own stream: seeded, uniform in [0, bound). */
uint32_t sim_random(struct sim *sim, uint32_t bound);

#endif

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
    uint32_t stall_one_in; /* probability 1/n at each wake of a rank; 0: never */
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

/* Return the memory that was allocated; without memory, end the program. */
static inline void *sim_must(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

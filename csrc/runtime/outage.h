/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An outage of a communicator lasts from the first death of a rank that this process meets until
 * the objects of the communicator continue without the dead (recovery.h). A communicator whose
 * objects raise an error instead has no struct outage.
 *
 *   driver       begins the outage when it meets the failure (outage_begin), and polls the
 *                communicator no more until the outage ends.
 *   application  Calls that make or free an object agree with other ranks. They, and the calls
 *                of gossip buffers, pass a gate (base/lock.h) that is closed during an outage. A call
 *                that is inside when the outage begins returns PCOLL_EFAILED.
 *   recovery     The thread that recovers sleeps until an outage begins, waits until no call is
 *                inside, and ends the outage (outage_end), which begins the next epoch.
 *
 * Turns. One recovery of a process runs at a time, that of the oldest communicator first. Ranks
 * that make their communicators in one order therefore recover them in one order, and no two
 * threads of a process agree with other ranks at once (transport/mpi/mpi_transport.h says why that
 * matters). Ranks that make them in different orders may wait for each other's recoveries in a
 * circle, so no recovery waits for its turn longer than half a second.
 *
 * One mutex protects all outages of a process, except for the gates and the epochs, which are also
 * read without it. A stale value lets a call begin that fails as one inside does, or makes a call
 * wait a moment longer. The gate is closed and opened under the mutex.
 */
#pragma once

#include "base/error.h"
#include "base/lock.h"

struct outage {
    struct gate gate;        /* Closed during an outage. */
    _Atomic uint32_t epoch;  /* Outages that have ended. */
    bool ceased;             /* No further outage is recovered from. */
    int64_t began, ended;    /* Times of the last outage; base/clock.h, ns. */
    struct failed_ranks who; /* The dead, as this process met them. */
    uint64_t number;         /* Number of the communicator, in the order of creation. */
    bool has_turn;
    struct outage *next; /* In the list of outages that have begun. */
};

void outage_init(struct outage *o);
void outage_destroy(struct outage *o);

/* Driver: begin an outage due to these ranks. Return false if no outage is recovered from any
 * more: the failure is final. */
bool outage_begin(struct outage *o, const struct failed_ranks *who);
/* Return whether there is an outage. The functions from here to outage_leave accept NULL, which
 * never has one. */
bool outage_now(struct outage *o);
/* Return whether an outage has begun, or ended, since this epoch. */
bool outage_since(struct outage *o, uint32_t epoch);
uint32_t outage_epoch(struct outage *o);
/* Application: begin a call, which waits for the end of an outage, … */
void outage_enter(struct outage *o);
/* … or only if there is no outage; return whether the call has begun. */
bool outage_try_enter(struct outage *o);
void outage_leave(struct outage *o);
/* Return the number of outages, and when the last one began and ended on this rank. */
uint32_t outage_times(struct outage *o, int64_t *began, int64_t *ended);
/* Return PCOLL_EFAILED, the error of a call that an outage has interrupted. */
int outage_error(struct outage *o);

/* Recovery: sleep until there is an outage. Return false if none is recovered from any more. */
bool outage_await(struct outage *o);
/* Recovery: wait until no call is inside. */
void outage_await_calls(struct outage *o);
/* Recovery: wait for the turn, which lasts until the outage ends. */
void outage_take_turn(struct outage *o);
void outage_end(struct outage *o);
/* Recover from no further outage, once the present one has ended, … */
void outage_cease(struct outage *o);
/* … or, in the recovery, from the present one either. */
void outage_give_up(struct outage *o);

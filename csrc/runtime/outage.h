/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a communicator have died, and its objects are to go on without them: what the
 * driver, the application's threads and the thread that recovers (recovery.h) tell each
 * other. A communicator whose objects raise has none of this.
 *
 *   driver       the first failure of a rank that it meets stops the communicator
 *                (`outage_begin`): it polls nothing any more until the outage is over.
 *   application  calls that make or end something, which agree with other ranks, and those
 *                of gossip go through a gate (gate.h), which is closed during an outage:
 *                they do not begin, and those inside come back with PCOLL_EFAILED.
 *   recovery     sleeps until there is an outage, waits until nobody is inside, and says
 *                when it is over (`outage_end`), which counts the epoch.
 *
 * Everything but the gate under the mutex, also its closing and opening; whether it is
 * closed, which is whether there is an outage, and `epoch` are read without it too: what is
 * old lets a call begin that then fails as one inside does, or has one wait a moment longer.
 */
#ifndef PCOLL_RUNTIME_OUTAGE_H
#define PCOLL_RUNTIME_OUTAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/lock.h"
#include "runtime/gate.h"

/*
 * One recovery of a process at a time, the oldest communicator's first: all ranks that make
 * their communicators in the same order, as programs do, recover them in the same order, and
 * no two threads agree with others at once (transport/mpi/mpi_recovery.h says what that is for).
 * Elsewhere one may wait for another that waits for it on another rank: nobody waits for
 * longer than half a second.
 *
 * Under one mutex. A turn is announced by the driver when it meets the failure, taken and
 * given back by the thread that recovers.
 */

struct turn {
    uint64_t number; /* of the communicators, in the order in which they were made */
    bool held;
    struct turn *next; /* of those announced */
};

void turn_init(struct turn *t);
void turn_announce(struct turn *t);
void turn_take(struct turn *t);
/* Also one that was not taken. */
void turn_give(struct turn *t);

struct outage {
    struct lock mutex;
    pthread_cond_t changed;
    struct gate gate; /* for the application; closed: there is one */
    _Atomic uint32_t epoch;
    bool ends;            /* nobody recovers any more */
    int64_t began, ended; /* of the last one; base/clock.h, ns */
    struct failed_ranks who;
    struct turn turn; /* of the recovery */
};

void outage_init(struct outage *o);
void outage_destroy(struct outage *o);

/* Driver: due to these ranks. False: nobody recovers, so that is final. */
bool outage_begin(struct outage *o, const struct failed_ranks *who);
/* NULL is allowed in these five: there is none. Is there one? */
bool outage_now(struct outage *o);
/* Has one begun, or been over, since this epoch? */
bool outage_since(struct outage *o, uint32_t epoch);
uint32_t outage_epoch(struct outage *o);
/* Application: waits until there is none. */
void outage_enter(struct outage *o);
void outage_leave(struct outage *o);
/* As outage_enter where there is none; else false, and it is not inside. */
bool outage_try_enter(struct outage *o);
/* When the last one was met here, and when all went on; how many there have been. */
uint32_t outage_times(struct outage *o, int64_t *began, int64_t *ended);
/* The error of a call that an outage has ended. */
int outage_error(struct outage *o);

/* Recovery: sleep until there is one; false: nobody is to recover any more. */
bool outage_await(struct outage *o);
/* Nobody of the application is inside. */
void outage_await_calls(struct outage *o);
/* No other recovery of this process is under way; until the outage ends. */
void outage_take_turn(struct outage *o);
void outage_end(struct outage *o);
/* From now on nobody recovers; one that is under way ends before, … */
void outage_cease(struct outage *o);
/* … or has failed. */
void outage_give_up(struct outage *o);

#endif

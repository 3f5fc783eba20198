/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One recovery of a process at a time, the oldest communicator's first: all ranks that make
 * their communicators in the same order, as programs do, recover them in the same order, and
 * no two threads agree with others at once (transport/mpi/exclusion.h says what that is for).
 * Elsewhere one may wait for another that waits for it on another rank: nobody waits for
 * longer than half a second.
 *
 * Under one mutex. A turn is announced by the driver when it meets the failure, taken and
 * given back by the thread that recovers.
 */
#ifndef PCOLL_RUNTIME_TURN_H
#define PCOLL_RUNTIME_TURN_H

#include <stdbool.h>
#include <stdint.h>

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

#endif

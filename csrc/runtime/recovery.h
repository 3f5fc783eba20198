/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on when ranks have died (docs/faults.md): one recovery for all objects of a
 * communicator, by a thread of its own in each process, so that it waits for nobody's
 * application. Each object contributes its part (struct recoverable).
 *
 *   stop       the driver has met a failure and polls no more; applications are kept from
 *              what others see. The communicator is revoked, which tells all.
 *   last word  are all at MPI_Finalize? Then there is nothing to go on with.
 *   shrink     a transport of those who are left. Whoever gets here has stopped, so what
 *              they share stands still.
 *   exchange   of each object: who has it, and how many rounds are complete anywhere.
 *   rebuild    in the order of their slots, a successor of each, at its round.
 *   barrier    all successors are at that round.
 *   inherit    each rank's state and deposits go over to the successor; applications go
 *              on with it, but nothing moves yet.
 *   barrier    all have inherited: from here on messages find their receiver.
 *   go         the communicator has the new transport and the successors.
 *
 * A second death makes a step fail on some ranks; it revokes the new communicator, so it
 * fails on all, at the barrier at the latest, and all begin again from that one. What a
 * rank has inherited by then is what it begins with: nothing of it was seen by others, since
 * no round ends without all that are left.
 *
 * While nobody has died this costs a sleeping thread for each communicator.
 */
#ifndef PCOLL_RUNTIME_RECOVERY_H
#define PCOLL_RUNTIME_RECOVERY_H

#include "runtime/census.h"
#include "runtime/communicator.h"

struct user_object;

/* Of a kind of object that goes on. Called by the recovery's thread only. */
struct recoverable {
    /* Keep its application away from what others see; idempotent. NULL: nobody is in a call. */
    void (*stop)(struct user_object *o);
    /* Rounds complete here. */
    uint64_t (*complete)(struct user_object *o);
    /* Make the successor, on this communicator. Collective. */
    int (*rebuild)(struct user_object *o, struct communicator *c,
                   const struct recovery_plan *plan);
    /* It takes over, as `*object`. What it follows is not to be freed yet. */
    int (*inherit)(struct user_object *o, struct object **object);
    /* There is no successor, since others have none: it was never made there, or all have
     * ended it, and then it is closed next. It sets `o->orphan`;
     * NULL: no more than that. */
    void (*orphan)(struct user_object *o);
    /* It is on `c` from now on: go on, close if that was asked for. */
    void (*go)(struct user_object *o, struct communicator *c);
};

/* Have it recover from now on, at most once in its life. PCOLL_ENOMEM. */
int recovery_attach(struct communicator *c);
/* To be freed when MPI writes to nothing of an old epoch any more, nor, if it is in use, of
 * this one. */
void recovery_bury(struct communicator *c, void (*end)(void *), void *what,
                   bool in_use);

/* The end of the communicator, or of MPI; nothing is done where none recovers. This rank
 * is there; … */
void recovery_begin_parting(struct communicator *c);
/* … all are, if a barrier says so (else it is waited for here). Afterwards nothing
 * recovers. May its transport still be used? */
bool recovery_part(struct communicator *c, bool all);
void recovery_detach(struct communicator *c);
/* Stop the thread that recovers and free what belongs to it, while no failure has been met. Do
 * nothing for a communicator without recovery. */
void recovery_stop(struct communicator *c);
/* Of one that has no objects (left), by a thread that is inside (outage.h): it is to end, here
 * alone. `heir` (NULL: nobody) looks after what MPI may still write to. */
void recovery_discard(struct communicator *c, struct communicator *heir);

/* The communicator of those who are left, for the program: an MPI_Comm, or NULL while all
 * live. */
const void *recovery_comm(const struct communicator *c);

#endif

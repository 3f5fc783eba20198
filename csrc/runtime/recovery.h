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

#include <stdbool.h>
#include <stdint.h>

#include "runtime/communicator.h"

/*
 * What all who are left find out about the objects that they had (recovery.h): who has each
 * of them, and how many rounds are complete anywhere. Each rank writes down what it has;
 * the maxima over all are what all know. Pure.
 */

enum { CENSUS_WORDS = 3 };

/* By slot. */
struct census {
    uint64_t *lacking; /* does anybody lack it? */
    uint64_t *claim;   /* rounds complete, and who has them */
    uint64_t *least;   /* ~ of the fewest rounds that are complete */
};

/* What is known of an object on all ranks. */
struct recovery_plan {
    uint32_t slot;
    uint64_t complete; /* rounds, the most anywhere */
    uint32_t source;   /* the lowest rank that has completed so many; … */
    bool some_lack;    /* … some have not */
};

/* In CENSUS_WORDS for each slot: a rank that has nothing. */
void census_begin(struct census *s, uint64_t *words, uint64_t slots);
/* It has this one, with so many rounds complete. */
void census_note(struct census *s, uint32_t slot, uint64_t complete, uint32_t rank);
/* Of the maxima, which are checked: who has the rounds is one of so many ranks, and nobody
 * has more. `own`: the rounds complete here, 0 of what this rank lacks. PCOLL_EPROTOCOL:
 * the maxima cannot be; the recovery then fails on this rank. */
int census_plan(const struct census *s, uint32_t slot, uint32_t ranks, uint64_t own,
                struct recovery_plan *plan);

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

/*
 * Others take the numbers of those who have died (docs/faults.md): an object moves to a new
 * communicator, of those who live on its own, `from`, and newcomers, who have none. By a thread
 * of the application in each; collective over them all.
 *
 *   pause    `from` is polled no more, and no recovery begins there: what its objects share
 *            stands still.
 *   regroup  a transport of all. Whoever gets here has paused.
 *   settle   have all got as far? The same answer on all that live.
 *   …        the object makes its successor on `to`, which takes over its state and leaves the
 *            old one as it is (recovery.h: rebuild, inherit).
 *   settle   once more: that decides.
 *   commit   the object is on `to`, which goes on like any other when ranks die. What was under
 *            way on `from` never ends, so what else is there recovers; if that is nothing, `from`
 *            is given up. (No communicator is made then: Open MPI 5.0 does not bear a death
 *            meanwhile.)
 *   cancel   nothing has been: `from` is polled again, and recovers if that is what it takes.
 *
 * Who meets a death in between revokes `to`, which tells all: they settle for no.
 */

struct growth {
    struct communicator *from; /* NULL: a newcomer */
    struct communicator *to; /* of this thread's until commit; recovers from then on */
    bool paused;
};

/* What a rank does that cannot take part: the others are told. Fails. */
int growth_refuse(const void *comm);
/* Up to the first answer. Rank i of *comm, an MPI_Comm, has number numbers[i] of so many. If it
 * fails, nothing has been, on all. */
int growth_begin(struct growth *g, const void *comm, const uint32_t *numbers,
                 uint32_t ranks);
/* PCOLL_OK if rc is, on all; else an error on all, which is rc where that is one. */
int growth_settle(struct growth *g, int rc);
/* What was moved is registered there, and no more on `from`. */
void growth_commit(struct growth *g);
/* Nothing is registered on `to`. */
void growth_cancel(struct growth *g);

#endif

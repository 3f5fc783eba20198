/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery of the objects of a communicator after ranks have died (docs/faults.md). One recovery
 * serves all objects. A separate thread in each process runs it, so that no recovery waits for
 * an application. Each object contributes its part (struct recoverable).
 *
 *   stop      The driver has met a failure (communicator.h) and polls no more. Applications are kept
 *             from what other ranks see. The communicator is revoked, which tells all ranks.
 *   vote      If all ranks are in MPI_Finalize, there is nothing to recover.
 *   shrink    A transport of the surviving ranks. Every rank that gets here has stopped, so
 *             the memory that they share does not change.
 *   inventory For each object: the ranks that have it, and the largest number of complete rounds.
 *   rebuild   A successor of each object at its round, in the order of their slots.
 *   barrier   All successors are at that round.
 *   inherit   The state and the deposits of each rank move to the successor. Applications
 *             continue with it, but nothing moves between ranks yet.
 *   barrier   All have inherited: from here on each message finds its receiver.
 *   go        The communicator has the new transport and the successors.
 *
 * A second death makes a step fail on some ranks. They revoke the new communicator, so a step
 * fails on all ranks, at the last barrier at the latest. All begin again from that communicator,
 * with what they have inherited. No other rank has seen it: a round ends only with all ranks left.
 *
 * While no rank has died this costs a sleeping thread for each communicator.
 */
#pragma once

#include "runtime/communicator.h"

struct user_object;

/* The statement of a rank about an object; the ranks exchange the maxima over all statements. Zeros
 * except for `lacking` if the rank does not have the object. */
struct inventory {
    uint64_t lacking; /* 1: some rank does not have the object. */
    uint64_t claim;   /* Complete rounds, and a rank that has completed them. */
    uint64_t least;   /* Complement of the smallest number of complete rounds. */
};
enum { INVENTORY_WORDS = sizeof(struct inventory) / sizeof(uint64_t) };

struct recovery_plan {
    uint32_t slot;
    uint64_t complete; /* Rounds that are complete anywhere. */
    uint32_t source;   /* The lowest rank that has completed them. */
    bool some_lack;    /* Some rank has not. */
};

/* Return the statement of `rank` about an object that has `complete` complete rounds there. */
struct inventory inventory_of(uint64_t complete, uint32_t rank);
/* Read the plan of an object from the maxima. `own` is the number of rounds complete on this
 * rank, 0 if it lacks the object. PCOLL_EPROTOCOL: the maxima contradict each other, `own`, or
 * the number of ranks; the recovery then fails on this rank. */
int inventory_plan(const struct inventory *s, uint32_t slot, uint32_t ranks,
                   uint64_t own, struct recovery_plan *plan);

/* The part of a kind of object in a recovery. Only the recovery's thread calls these. */
struct recoverable {
    /* Keep the application from what other ranks see; idempotent. NULL: no call is inside. */
    void (*stop)(struct user_object *o);
    /* Return the number of rounds that are complete on this rank. */
    uint64_t (*complete)(struct user_object *o);
    /* Make the successor, on this communicator. Collective. */
    int (*rebuild)(struct user_object *o, struct communicator *c,
                   const struct recovery_plan *plan);
    /* Let the successor take over, and return it in *object. Retire the predecessor. */
    int (*inherit)(struct user_object *o, struct object **object);
    /* Set o->incomplete: there is no successor, because some rank does not have the object. It was
     * never made there, or all ranks have ended it, and then it is closed next. NULL: set it. */
    void (*set_incomplete)(struct user_object *o);
    /* Continue on `c`, and close if that was asked for. */
    void (*go)(struct user_object *o, struct communicator *c);
};

/* Make the thread that recovers, before the communicator has objects. PCOLL_ENOMEM. */
int recovery_attach(struct communicator *c);
/* Free `what` by end(what) when MPI does not write to it any more: when the requests of all
 * earlier transports are complete; with `in_use` those of the current one as well. */
void recovery_retire(struct communicator *c, void (*end)(void *), void *what,
                     bool in_use);
/* Return the MPI_Comm of the ranks that are left, for the program. NULL: no rank has died. */
const void *recovery_comm(const struct communicator *c);

/* Ending a communicator, or MPI, when all ranks have come to the end (communicator.parts): nothing
 * recovers any more. Return whether the transport can still be used. Collective. These functions do
 * nothing for a communicator without recovery. */
bool recovery_part(struct communicator *c);
/* Free what belongs to the recovery, whose thread has ended. */
void recovery_detach(struct communicator *c);
/* Stop the thread and detach it, while no failure has been met. */
void recovery_stop(struct communicator *c);

/* recovery_steps.c: the steps from the inventory to the last barrier, for these objects of the old
 * communicator (a list through next_recovered), on `to`. Collective. */
int recovery_build(struct communicator *to, struct user_object *objects);

/*
 * Growth: ranks take the numbers of ranks that have died. An object moves to a new communicator,
 * of the ranks that live on its own communicator, `from`, and of joining ranks, which have none.
 * A thread of each application runs it, collectively.
 *
 *   pause    `from` is not polled any more, and no recovery begins there: the memory that its
 *            objects share does not change.
 *   regroup  A transport of all. Every rank that gets here has paused.
 *   settle   Agree whether all ranks got this far. All live ranks get the same answer.
 *   …        The object makes its successor on `to`, which copies its state (recovery.h: rebuild,
 *            inherit) and does not change the old object.
 *   settle   The second answer decides.
 *   commit   The object is on `to`, which recovers from deaths like any other communicator. What
 *            was under way on `from` never completes, so its other objects recover. Without other
 *            objects `from` is discarded. (Nothing makes a communicator then: Open MPI 5.0 does
 *            not survive a death meanwhile.)
 *   cancel   Nothing has happened: `from` is polled again, and recovers if needed.
 *
 * A rank that meets a death in between revokes `to`. This tells all ranks, and the answer is no.
 */
struct growth {
    struct communicator *from;   /* NULL: a joining rank. */
    struct communicator *to;     /* This thread is inside it until the commit. */
    struct transport *transport; /* Of `to`. */
    bool paused;
};

/* Tell the others that this rank does not take part. Always fails. */
int growth_refuse(const void *comm);
/* Run the steps up to the first answer. Rank i of *comm, an MPI_Comm, has number numbers[i] of
 * `ranks`. An error is one on all ranks, and nothing has happened. */
int growth_begin(struct growth *g, const void *comm, const uint32_t *numbers,
                 uint32_t ranks);
/* Return PCOLL_OK if rc is PCOLL_OK on all ranks; otherwise an error on all, rc if it is one. */
int growth_settle(struct growth *g, int rc);
/* The object is registered on `to`, and not on `from` any more. */
void growth_commit(struct growth *g);
/* No object is registered on `to`. */
void growth_cancel(struct growth *g);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state that all objects of one communicator share on one rank: the transport, the table of
 * objects by slot, the dispatch of events to them, and the order in which they close.
 *
 * One thread at a time drives a communicator (under MPI: the holder of the drive lock, progress.h).
 * Functions marked "Driver" are for that thread. Every thread may call communicator_notify.
 *
 * Closing. One object of a communicator closes at a time, because their agreements must not mix,
 * and it must be the same object on all ranks. Ranks need not free their objects in one order: a
 * rank in MPI_Finalize closes all that it has left, while others free theirs as their program
 * does. So each rank votes for all objects that it is asked to close. Those that all ranks have
 * voted for close one after the other, in the order of their slots, and the ranks vote again. If
 * there is none, they do so a little later: some may have been asked for more by then.
 */
#pragma once

#include "base/error.h"
#include "base/lock.h"
#include "runtime/progress.h"
#include "transport/transport.h"
#include "transport/window.h"

struct object;

/* The driver calls all of these. */
struct object_ops {
    /* The object was notified, its alarm time has come, or an agreement is complete. */
    int (*run)(struct object *p);
    /* The message with this number in its cookie is complete. NULL: it has no messages, … */
    int (*done)(struct object *p, int op, size_t bytes);
    /* … or no control messages. */
    int (*control)(struct object *p, uint32_t source, const struct control *message);
    /* Begin to close: it is the turn of this object. */
    int (*begin_close)(struct object *p);
    /* Watched objects only, in every poll: has a thread of another process asked it to run? */
    bool (*attention)(struct object *p);
};

/* Objects with slots on a communicator (handles, users' schedules) embed this struct first. */
struct object {
    const struct object_ops *ops;
    uint32_t slot, slots; /* The first of its slots, and how many. */
    int64_t alarm;        /* When to run it; INT64_MAX: none. */
    bool in_vain;         /* run() found nothing to do, and polls again later. */
    bool notified;
    bool watched;
    bool closing;                 /* It waits for its turn to close. */
    _Atomic bool closed;          /* Nothing arrives for it any more. */
    struct object *next_notified; /* Under notified_mutex of the communicator. */
    struct object *next_watched;
};

static inline struct object object_init(const struct object_ops *ops)
{
    return (struct object){.ops = ops, .slots = 1, .alarm = INT64_MAX};
}

/* Return the cookie of one of its messages. */
static inline uint64_t object_cookie(const struct object *p, int op)
{
    return (uint64_t)p->slot << 32 | (uint32_t)op;
}

/* An agreement (transport.h) under way, for an object or a thread. Once done it may be freed. */
struct agreement {
    uint64_t *values;
    int count;
    enum agree_op op;
    struct object *object; /* Or NULL. */
    _Atomic bool done;
};

struct closings {
    struct object *turn; /* The object that is closing. */
    bool voting;
    int counted;     /* Slots of the last ballot whose votes are counted. */
    bool some;       /* The last ballot had an object that all have voted for. */
    bool taking;     /* communicator_take_turns is on the stack. */
    int64_t vote_at; /* The time of the next vote, or INT64_MAX. */
    struct agreement agreement;
    uint64_t *ballot; /* By slot. */
};

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

/* Driver: begin an outage due to these ranks; false: the failure is final, as nothing recovers. */
bool outage_begin(struct outage *o, const struct failed_ranks *who);
/* Return whether there is an outage. This and the next five accept NULL, which never has one. */
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
/* Recovery: wait for the turn, which lasts until the outage ends. */
void outage_take_turn(struct outage *o);
void outage_end(struct outage *o);
/* Recover from no further outage, once the present one has ended, … */
void outage_cease(struct outage *o);
/* … or, in the recovery, from the present one either. */
void outage_give_up(struct outage *o);

struct communicator {
    struct progress_source source; /* First: found again from it. */
    struct transport *transport;
    struct progress *progress; /* NULL in a simulation. */
    struct object **objects;   /* By slot; NULL: free. */
    uint32_t capacity;
    uint32_t handles;
    bool abandoned; /* The program has freed its MPI_Comm: ends with the last object. */
    bool sends_pending;  /* Sends are counted as unrung (progress.h). */
    uint32_t agreements; /* Under way. */
    int64_t alarm;       /* The earliest alarm of an object, or INT64_MAX. */

    struct object *watched; /* Through next_watched. */

    struct lock notified_mutex;
    _Atomic(struct object *) notified; /* Objects that asked to be run. */

    struct closings closing;
    _Atomic uint32_t closings; /* Begun and not complete. */

    struct window *spent; /* Windows that no object uses, the oldest first. */

    /* NULL if its objects raise an error when ranks die. */
    struct outage *outage;
    struct recovery *recovery;
    struct waiting *parting;   /* The last barrier (user_object.h), or NULL. */
    _Atomic bool parts;        /* This rank has begun to part. */
    bool late;                 /* All ranks part, and end it in MPI_Finalize. */
    struct communicator *next; /* In a list of process.c or recovery.c. */

    /* The first failure of the transport or the protocol; final. */
    _Atomic int failure; /* Its code. */
    /* Set before `failure`. NULL: no failure yet, or no memory for its message. */
    struct failure *first_failure;
};

int communicator_create(struct transport *t, struct progress *p,
                        struct communicator **out);
/* Free it, with its transport: collective. */
void communicator_destroy(struct communicator **c);
/* Destroy the transport, if it still has one: collective. */
void communicator_end_transport(struct communicator *c);

/* Driver: leave the window behind and give back its memory. To free it is collective and blocks, so
 * that happens on all ranks in the same order, with the next window or with the communicator. */
void communicator_spend_window(struct communicator *c, struct window *w);
/* Free spent windows. Collective; nothing closes on any rank. */
void communicator_free_windows(struct communicator *c);
/* Open the window of an object: in shared memory (shared_window.c) where MPI continues when a rank
 * dies and all ranks are on one host, otherwise a window of MPI on *comm. PCOLL_EINVAL: the object
 * continues, and it would be a window of MPI. Collective; an error is one on all ranks. */
int shared_window_open(struct communicator *c, const void *comm, size_t bytes,
                       struct window **out);

/* Find the first `slots` free slots in a row, from `from` on. PCOLL_EINVAL: too few tags. */
int communicator_free_slots(struct communicator *c, uint32_t from, uint32_t slots,
                            uint32_t *slot);
/* Make room for `slots` slots. */
int communicator_reserve(struct communicator *c, uint32_t slots);
/* Enter p into the table: it gets its p->slots slots from this one on. */
int communicator_register(struct communicator *c, struct object *p, uint32_t slot);
void communicator_unregister(struct communicator *c, uint32_t slot);

/* Driver: poll the transport and run the objects concerned. Return how much has happened. */
int communicator_poll(struct communicator *c);
/* Ask, from any thread, that p be run. The next thread that drives runs it. */
void communicator_notify(struct communicator *c, struct object *p);
/* Return the time in nanoseconds. */
int64_t communicator_now(const struct communicator *c);
/* Driver: run p at this time. Of several alarms of an object the earliest counts. */
void communicator_alarm(struct communicator *c, struct object *p, int64_t at);
/* Driver: begin an agreement; communicator_poll sets done. */
int communicator_agree(struct communicator *c, struct agreement *a);

/* Driver: close p, when it is its turn. Then its begin_close is called, once. */
int communicator_close(struct communicator *c, struct object *p);
/* Driver: p, whose turn it was, has closed. */
int communicator_closed(struct communicator *c, struct object *p);

/* For recoveries, while nothing is polled. Take the transport and the objects of `from`, which
 * keeps only a clock. What was under way on `c` is lost. */
void communicator_take_over(struct communicator *c, struct communicator *from);
/* Stop polling for what is under way. */
void communicator_forget(struct communicator *c);
/* The communicator has no objects, and another one owns its transport. */
void communicator_abandon(struct communicator *c);

/* Driver: record the first failure, which this thread has just met, and return its code. Begin a
 * recovery instead if ranks have died and the communicator continues without them. */
int communicator_fail(struct communicator *c, int code);
/* The same for a thread that does not hold the drive lock. */
int communicator_fail_undriven(struct communicator *c, int code);
/* Return PCOLL_OK, or fail with the failure of the communicator. */
static inline int communicator_check(const struct communicator *c)
{
    int code = atomic_load(&c->failure);
    if (code == PCOLL_OK || c->first_failure)
        return code == PCOLL_OK ? code : fail_again(c->first_failure);
    return code == PCOLL_EFAILED ? fail_ranks(&(struct failed_ranks){0})
                                 : fail(code, "no memory for the reason of a failure");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all handles of one communicator share on one rank: the transport, the table of
 * handles by slot, and the dispatch of events to them.
 *
 * A context is driven by one thread at a time (under MPI: the holder of the progress
 * lock). Only communicator_notify may be called by anybody.
 */
#ifndef PCOLL_RUNTIME_COMMUNICATOR_H
#define PCOLL_RUNTIME_COMMUNICATOR_H

#include "base/error.h"
#include "base/lock.h"
#include "runtime/outage.h"
#include "runtime/progress.h"
#include "transport/transport.h"
#include "transport/window.h"

/*
 * Whatever has slots on a communicator: the context calls it when something has
 * happened that concerns it. The executor of an allreduce is one, that of a user's
 * schedule another; each embeds this as its first member.
 */

struct object;

/* All called by the driver. */
struct object_ops {
    /* Look around: it was notified, its alarm has come, or an agreement is over. */
    int (*run)(struct object *p);
    /* Its message with this number in the cookie is over. */
    int (*done)(struct object *p, int op, size_t bytes);
    int (*control)(struct object *p, uint32_t source, const struct control *message);
    /* It is this one's turn to close. */
    int (*begin_close)(struct object *p);
    /* Watched ones only, in every poll: has somebody in another process asked it to
     * run? */
    bool (*attention)(struct object *p);
};

struct object {
    const struct object_ops *ops;
    uint32_t slot, slots; /* the first of its slots, and how many */
    int64_t alarm;        /* INT64_MAX: none */
    bool in_vain; /* what its alarm was for has not come: it looks again later */
    struct object *next_notified; /* under context.notified_mutex */
    bool notified;
    struct object *next_closing;
    _Atomic bool closed; /* nothing of it comes any more */
    bool watched;
    struct object *next_watched;
};

static inline struct object object_init(const struct object_ops *ops)
{
    return (struct object){.ops = ops, .slots = 1, .alarm = INT64_MAX};
}

/* The cookie of one of its messages. */
static inline uint64_t object_cookie(const struct object *p, int op)
{
    return (uint64_t)p->slot << 32 | (uint32_t)op;
}

/* An agreement (transport.h) under way, for a object to go on with or a thread
 * that waits. When `done` is set it may be gone. */
struct agreement {
    uint64_t *values;
    int count;
    enum agree_op op;
    struct object *object; /* or NULL */
    _Atomic bool done;
};

/* Those that close, and an object without slots that lets them, see below. */
struct closings {
    struct object base;                /* first: found again from it */
    struct communicator *communicator; /* NULL: nothing has closed yet */
    struct object *first; /* of those that wait for their turn, by next_closing */
    struct object *turn;  /* the one that is closing */
    bool voting;
    struct agreement agreement;
    uint64_t *ballot; /* by slot */
};

/* What a object leaves behind when it has closed: freed with the transport, by all
 * ranks in the order in which it was left. */
struct leftover {
    void (*end)(struct leftover *l); /* collective; may block; frees it */
    struct leftover *next;
};

struct communicator {
    struct progress_source source; /* first: found again from it */
    struct transport *transport;
    struct progress *progress; /* NULL in a simulation */
    struct object **objects;   /* by slot; NULL: free */
    uint32_t capacity;
    uint32_t handles;
    bool abandoned;     /* the communicator is gone: goes with the last handle */
    bool sends_pending; /* progress knows that some messages need looking after */

    struct object *watched;   /* by next_watched */
    struct object *unslotted; /* one object without slots, or NULL */

    /* Those that asked to be run, a list through next_notified. */
    struct lock notified_mutex;
    _Atomic(struct object *) notified;

    struct closings closing;
    _Atomic uint32_t closings; /* asked for and not over */

    struct leftover *leftovers;

    int64_t alarm; /* the earliest of the objects', or INT64_MAX */

    /* Where its objects go on when ranks die, else NULL. */
    struct outage *outage;
    struct recovery *recovery; /* recovery.c */
    struct communicator *next_spent;
    uint32_t agreements; /* under way */

    /* The first failure of the transport or the protocol; final. */
    _Atomic int failure;
    char failure_text[512];
    int failure_of_mpi;         /* MPI's own error for it, of the thread that had it */
    struct failed_ranks failed; /* of PCOLL_EFAILED */
};

int communicator_create(struct transport *t, struct progress *p,
                        struct communicator **out);
/* Driver: leave this behind. */
void communicator_leave(struct communicator *c, struct leftover *l);
/* Free what was left, when nothing closes and all ranks do so: collective. */
void communicator_end_leftovers(struct communicator *c);
/* That, and destroy the transport, if it still has one: collective. */
void communicator_end_transport(struct communicator *c);
/* That, and the rest. */
void communicator_destroy(struct communicator **c);

/* The first of so many free slots in a row from `from` on; PCOLL_EINVAL when the tags
 * do not reach. */
int communicator_free_slots(struct communicator *c, uint32_t from, uint32_t slots,
                            uint32_t *slot);
/* Room for so many slots. */
int communicator_reserve(struct communicator *c, uint32_t slots);
/* p takes its p->slots slots from this one on. */
int communicator_register(struct communicator *c, struct object *p, uint32_t slot);
void communicator_unregister(struct communicator *c, uint32_t slot);
/* p takes part without slots: it is run at its alarm and when its agreements are over,
 * and there are no messages for it. One only, until the end. */
void communicator_attach(struct communicator *c, struct object *p);

/* Driver: poll the transport and run the objects concerned. What happened. */
int communicator_poll(struct communicator *c);
/* Anybody: p has something new to look at. Whoever drives next will. */
void communicator_notify(struct communicator *c, struct object *p);
/* Time in nanoseconds. */
int64_t communicator_now(const struct communicator *c);
/* Driver: run p at that time, if nothing else does before; the earliest one counts. */
void communicator_alarm(struct communicator *c, struct object *p, int64_t at);
/* Driver: poll again at that time at the latest. */
void communicator_wake_at(struct communicator *c, int64_t at);
/* Driver: begin an agreement; communicator_poll sets done. */
int communicator_agree(struct communicator *c, struct agreement *a);

/* Nothing is polled: take the transport and the objects of `from`, which has only a clock
 * then; what was under way here is lost. */
void communicator_take_over(struct communicator *c, struct communicator *from);

/* What is under way on it is waited for by nobody any more. */
void communicator_forget(struct communicator *c);
/* Nothing is polled, and nothing on it: its transport is somebody else's business, with what is
 * under way. */
void communicator_abandon(struct communicator *c);

/* Driver: record the first failure, which this thread has just met, and return its code. Begin a
 * recovery instead if ranks have died and the communicator continues without them. */
int communicator_fail(struct communicator *c, int code);
/* The same for a thread that does not hold the drive lock. */
int communicator_fail_undriven(struct communicator *c, int code);
/* PCOLL_OK, or the failure with its message. */
int communicator_check(struct communicator *c);

/* Between its files. */
struct object *communicator_object_at(const struct communicator *c, uint32_t slot);
struct object *communicator_next_notified(struct communicator *c);
void communicator_set_alarm(struct communicator *c, int64_t at);

/*
 * Who closes next? On a communicator one object closes at a time, because their
 * agreements must not mix, and it must be the same one on all ranks. The ranks need not
 * ask for it in one order: one that is at MPI_Finalize closes all that it has left, the
 * others free theirs in whatever order their program does.
 *
 * So each rank votes for all that it is asked to close, and the one with the lowest
 * slot that all have voted for is next. If there is none, the ranks vote again a little
 * later: somebody may have been asked for more by then.
 *
 * The votes are those of an object of the communicator like any other, without slots.
 */

/* Driver: p closes when it is its turn: then its begin_close is called. Once. */
int communicator_close(struct communicator *c, struct object *p);
/* Driver: p, whose turn it was, has closed. */
int communicator_closed(struct communicator *c, struct object *p);

/*
 * A window that nobody uses any more. Freeing one is collective and blocks, so it is
 * left with the context, and freed with the next window of this communicator or with
 * the communicator; its memory is given back at once.
 */

struct spent_window {
    struct leftover base; /* first: found again from it */
    struct window *window;
};

/* Driver: w is spent; *spent takes it over and is set to NULL. */
void window_spend(struct communicator *c, struct window *w,
                  struct spent_window **spent);

#endif

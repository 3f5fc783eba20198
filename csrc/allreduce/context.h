/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all handles of one communicator share on one rank: the transport, the table of
 * handles by slot, and the dispatch of events to them.
 *
 * A context is driven by one thread at a time (under MPI: the holder of the progress
 * lock). Only context_kick may be called by anybody.
 */
#ifndef PCOLL_ALLREDUCE_CONTEXT_H
#define PCOLL_ALLREDUCE_CONTEXT_H

#include <pthread.h>

#include "../progress/progress.h"
#include "participant.h"

/* An agreement (transport.h) under way, for a participant to go on with or a thread
 * that waits. When `done` is set it may be gone. */
struct agreement {
    uint64_t *values;
    int count;
    enum agree_op op;
    struct participant *participant; /* or NULL */
    _Atomic bool done;
};

/* Those that close, see closing.c. */
struct closings {
    struct participant *first; /* of those that wait for their turn, by next_closing */
    struct participant *turn;  /* the one that is closing */
    bool voting;
    int64_t vote_at; /* again then; INT64_MAX: no */
    struct agreement agreement;
    uint64_t *ballot; /* by slot */
};

/* What a participant leaves behind when it has closed: freed with the transport, by all
 * ranks in the order in which it was left. */
struct leftover {
    void (*end)(struct leftover *l); /* collective; may block; frees it */
    struct leftover *next;
};

struct context {
    struct progress_source source; /* first: found again from it */
    struct transport *transport;
    struct progress *progress;         /* NULL in a simulation */
    struct participant **participants; /* by slot; NULL: free */
    uint32_t capacity;
    uint32_t handles;
    bool abandoned;     /* the communicator is gone: goes with the last handle */
    bool sends_pending; /* progress knows that some messages need looking after */

    struct participant *watched; /* by next_watched */

    /* Those that asked to be run, a list through next_kicked. */
    pthread_mutex_t kicked_mutex;
    _Atomic(struct participant *) kicked;

    struct closings closing;
    _Atomic uint32_t closings; /* asked for and not over */

    struct leftover *leftovers;

    int64_t alarm; /* the earliest of the participants', or INT64_MAX */

    /* The first failure of the transport or the protocol; final. */
    _Atomic int failure;
    char failure_text[512];
};

int context_create(struct transport *t, struct progress *p, struct context **out);
/* Driver: leave this behind. */
void context_leave(struct context *c, struct leftover *l);
/* Free what was left, when nothing closes and all ranks do so: collective. */
void context_end_leftovers(struct context *c);
/* That, and destroy the transport, if it still has one: collective. */
void context_end_transport(struct context *c);
/* That, and the rest. */
void context_destroy(struct context **c);

/* The first of so many free slots in a row from `from` on; PCOLL_EINVAL when the tags
 * do not reach. */
int context_free_slots(struct context *c, uint32_t from, uint32_t slots,
                       uint32_t *slot);
/* p takes its p->slots slots from this one on. */
int context_register(struct context *c, struct participant *p, uint32_t slot);
void context_unregister(struct context *c, uint32_t slot);

/* Driver: poll the transport and run the participants concerned. What happened. */
int context_poll(struct context *c);
/* Anybody: p has something new to look at. Whoever drives next will. */
void context_kick(struct context *c, struct participant *p);
/* Time in nanoseconds. */
int64_t context_now(const struct context *c);
/* Driver: run p at that time, if nothing else does before; the earliest one counts. */
void context_alarm(struct context *c, struct participant *p, int64_t at);
/* Driver: poll again at that time at the latest. */
void context_wake_at(struct context *c, int64_t at);
/* Driver: begin an agreement; context_poll sets done. */
int context_agree(struct context *c, struct agreement *a);

/* Driver: p closes when it is its turn (closing.c): then its begin_close is called. */
int context_close(struct context *c, struct participant *p);
/* Driver: p, whose turn it was, has closed. */
int context_closed(struct context *c, struct participant *p);
/* For the context: the vote is over; its time has come again, if it has. */
int closing_voted(struct context *c);
int closing_look(struct context *c, int64_t now);

/* Record a failure (once) and return its code. */
int context_fail(struct context *c, int code);
/* PCOLL_OK, or the failure with its message. */
int context_check(struct context *c);

#endif

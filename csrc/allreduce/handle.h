/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a handle, for those who make and end it. */
#ifndef PCOLL_ALLREDUCE_HANDLE_H
#define PCOLL_ALLREDUCE_HANDLE_H

#include "runtime/user_object.h"
#include "allreduce/endpoint.h"
#include "allreduce/staging.h"
#include "runtime/census.h"

/*
 * A handle that goes on when ranks die. Its recovery replaces the endpoint; the passage keeps
 * the application away meanwhile: a thread of the application is inside whenever it is in a
 * call, but while it sleeps or drives; recovery shuts it for its few steps. With the drive
 * lock held nobody comes in or shuts it.
 *
 *   stopped  from the stop to the end of an outage: deposits and reads go on, with what is
 *            there; nothing that others see.
 *   filling  whose send slot the application fills in place until its next start: not the
 *            endpoint's if there has been a recovery since the last one.
 */
struct handle_gate {
    struct sleepers sleepers; /* of the passage */
    bool stopped, asleep;
    struct endpoint *filling;           /* NULL: the endpoint itself */
    struct endpoint *successor;         /* while it is rebuilt */
    struct round_header *last;          /* message of the last round, of another rank */
    const struct round_header *resumes; /* the same, wherever it lies; NULL: none */
};

struct pcoll_handle {
    struct user_object base;   /* first: found again from it */
    struct endpoint *endpoint; /* NULL: ended */
    bool started;              /* a call is outstanding; of whoever is in the handle */
    bool continues;            /* its passage may be shut */
    struct handle_gate gate;
};

/* Application: its endpoint stays the same between these two. */
static inline void handle_lock(pcoll_handle *h)
{
    if (h->continues)
        passage_come_in(&h->base.passage);
}

static inline void handle_unlock(pcoll_handle *h)
{
    if (h->continues)
        passage_step_aside(&h->base.passage);
}

/* Inside: a recovery that waits for this thread begins now. */
static inline void handle_let_recover(pcoll_handle *h)
{
    if (h->continues && passage_is_shut(&h->base.passage)) {
        handle_unlock(h);
        handle_lock(h);
    }
}

/* Every call of the application begins and ends with these, as in user_object.h, and with
 * the member to itself (staging.h). */
static inline int handle_enter(pcoll_handle *h)
{
    int rc = user_object_go_in(&h->base);
    if (rc == PCOLL_OK)
        staging_hold(h->endpoint->staging);
    return rc;
}

/* Returns rc. */
static inline int handle_leave(pcoll_handle *h, int rc)
{
    staging_release(h->endpoint ? h->endpoint->staging : NULL);
    return user_object_leave(&h->base, rc);
}

/* Those that wait: a deposit may be made meanwhile, by whoever sees its copy end. */
static inline int handle_enter_waiting(pcoll_handle *h)
{
    return user_object_go_in(&h->base);
}

static inline struct event_log *handle_log(const pcoll_handle *h)
{
    return h->endpoint->event_log;
}

/* handle_state.c: the state of this rank. */
struct member handle_member(pcoll_handle *h);
/* PCOLL_OK, or what has failed for good: messages, or an op in another process. */
int handle_check(pcoll_handle *h);
bool handle_has_failed(const pcoll_handle *h);

/* handle_replay.c: a deposit, join or leave: PCOLL_EAGAIN while it is not this rank's turn. */
int handle_await_turn(pcoll_handle *h);
/* A read up to round `last`: the same; as if no more than *horizon rounds were complete. */
int handle_await_read(pcoll_handle *h, uint64_t last, uint64_t *horizon);
void handle_note_read(pcoll_handle *h);
bool handle_replay_is_over(pcoll_handle *h);
/* Is the replay of an incomplete record at its end? */
bool handle_replay_has_ended(pcoll_handle *h);

/* handle_deposit.c: has the deposit of this call been made? */
bool handle_try_arrival(pcoll_handle *h);
/* handle_waiting.c: inside, before and after. */
int handle_wait_for_call(pcoll_handle *h, int64_t timeout_us);

extern const struct user_object_kind handle_kind;
extern const struct recoverable handle_recoverable; /* handle_recovery.c */
/* handle_recovery.c: it goes on when ranks die; what that takes is no more needed. */
void handle_begin_recoverable(pcoll_handle *h);
void handle_end_recoverable(pcoll_handle *h);
/* handle_recovery.c: into g->resumes, for g->successor, the message of the last complete round;
 * from who has it where somebody does not: collective on `c` then. This rank has completed so many
 * on `old` (NULL: on none). */
int handle_fetch_last(struct handle_gate *g, struct communicator *c,
                      const struct recovery_plan *plan, struct endpoint *old,
                      uint64_t own);
/* It is not needed any more. */
void handle_forget_last(struct handle_gate *g);
/* create.c: see to it that there is somebody to progress it. */
int handle_start_agent(struct communicator *c, const struct endpoint *v,
                       const pcoll_options *o);
/* handle_filling.c: the application has let go of the slot that it was filling. */
void handle_filled(pcoll_handle *h);
/* What has followed others, or been followed, goes when nobody writes to it any more. */
void handle_bury(pcoll_handle *h, struct endpoint *v);

#endif

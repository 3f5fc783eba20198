/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a handle, for those who make and end it. */
#ifndef PCOLL_ALLREDUCE_HANDLE_H
#define PCOLL_ALLREDUCE_HANDLE_H

#include "base/error.h"
#include "runtime/recovery.h"
#include "runtime/user_object.h"
#include "allreduce/endpoint.h"
#include "allreduce/staging.h"

/*
 * A handle that continues when ranks die. Its recovery replaces the endpoint, and a gate keeps
 * the application out meanwhile. A thread of the application is inside the gate during a call,
 * except while it sleeps or drives. The recovery closes the gate for each of its few steps. A
 * thread that holds the drive lock neither enters nor closes the gate.
 */
struct handle_gate {
    struct gate gate;
    /* From the stop to the end of a recovery: deposits and reads continue with what is there,
     * and nothing happens that other ranks can see. */
    bool stopped;
    bool asleep;
    /* The endpoint whose send slot the application fills until its next start. NULL: the
     * current endpoint. A recovery since the last start makes it an earlier one. */
    struct endpoint *filling;
    struct endpoint *successor; /* The next endpoint, while it is rebuilt. */
    struct round_header *last;  /* Message of the last round, from another rank. */
    const struct round_header *resumes; /* The message to resume from, or NULL. */
};

struct pcoll_handle {
    struct user_object base;   /* first: found again from it */
    struct endpoint *endpoint; /* NULL: ended */
    bool started;              /* a call is outstanding; of whoever is in the handle */
    bool continues;            /* It has a gate. */
    struct handle_gate gate;
};

/* Application: its endpoint stays the same between these two. */
static inline void handle_lock(pcoll_handle *h)
{
    if (h->continues)
        gate_enter(&h->gate.gate);
}

static inline void handle_unlock(pcoll_handle *h)
{
    if (h->continues)
        gate_leave(&h->gate.gate);
}

/* Inside: a recovery that waits for this thread begins now. */
static inline void handle_let_recover(pcoll_handle *h)
{
    if (h->continues && gate_is_closed(&h->gate.gate)) {
        handle_unlock(h);
        handle_lock(h);
    }
}

/* End a call that is inside. Returns rc. */
static inline int handle_leave(pcoll_handle *h, int rc)
{
    staging_release(h->endpoint ? h->endpoint->staging : NULL);
    handle_unlock(h);
    return user_object_leave(&h->base, rc);
}

/* Begin a call that waits, inside. A deposit may be made meanwhile, by whoever sees its copy
 * end. */
static inline int handle_enter_waiting(pcoll_handle *h)
{
    int rc = fail_if_null_as("handle", h) ?: user_object_enter(&h->base);
    if (rc != PCOLL_OK)
        return rc;
    handle_lock(h);
    rc = user_object_check(&h->base);
    return rc == PCOLL_OK ? rc : handle_leave(h, rc);
}

/* Begin a call of the application, inside, with the member to itself (staging.h). */
static inline int handle_enter(pcoll_handle *h)
{
    int rc = handle_enter_waiting(h);
    if (rc == PCOLL_OK)
        staging_hold(h->endpoint->staging);
    return rc;
}

static inline struct event_log *handle_log(const pcoll_handle *h)
{
    return h->endpoint->event_log;
}

/* The state of this rank. */
struct member handle_member(pcoll_handle *h);
/* PCOLL_OK, or what has failed for good: messages, or an op in another process. */
int handle_check(pcoll_handle *h);
bool handle_has_failed(const pcoll_handle *h);

/* A deposit, join or leave: PCOLL_EAGAIN while it is not this rank's turn. */
int handle_await_turn(pcoll_handle *h);
/* A read up to round `last`: the same; as if no more than *horizon rounds were complete. */
int handle_await_read(pcoll_handle *h, uint64_t last, uint64_t *horizon);
void handle_note_read(pcoll_handle *h);
bool handle_replay_is_over(pcoll_handle *h);
/* Is the replay of an incomplete record at its end? */
bool handle_replay_has_ended(pcoll_handle *h);

/* PCOLL_EINVAL if a buffer that has elements is NULL. `buffers` may be NULL. */
int handle_check_buffers(const pcoll_handle *h, const char *name,
                         const void *const *buffers);
/* Has the deposit of this call been made? */
bool handle_try_arrival(pcoll_handle *h);
/* Inside, before and after. */
int handle_wait_for_call(pcoll_handle *h, int64_t timeout_us);

/* Free it without waiting for other ranks (process.h). It does not recover. */
void handle_retire(pcoll_handle *h);

extern const struct user_object_kind handle_kind;
extern const struct recoverable handle_recoverable; /* handle_recovery.c */
/* It goes on when ranks die; what that takes is no more needed. */
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
/* handle_create.c: see to it that there is somebody to progress it. */
int handle_start_agent(struct communicator *c, const struct endpoint *v,
                       const pcoll_options *o);
void handle_end_endpoint(void *endpoint);
/* The application has let go of the slot that it was filling. */
void handle_filled(pcoll_handle *h);
/* What has followed others, or been followed, goes when nobody writes to it any more. */
void handle_bury(pcoll_handle *h, struct endpoint *v);

/* The domain of a handle: a rank on its own, or one in memory that the ranks of a node
 * share. */

/* Set spec->hosts and spec->most: where the ranks are, and how many of them may share
 * memory for a handle with these options. */
void sharing_place(const struct communicator *c, const pcoll_options *options,
                   struct endpoint_spec *spec);

/* Give the endpoint its domain. Collective; an error on every rank or on none. */
int sharing_settle(struct communicator *c, struct endpoint *v,
                   const pcoll_options *options);

#endif

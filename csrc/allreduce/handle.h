/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of an allreduce handle, for the files that make, move and free it. What users call
 * is in include/partialcoll.h.
 *
 * One thread at a time calls a handle (user_object.h). Everything that the driver shares with
 * that thread is protected by the domain, by the drive lock, or is atomic.
 *
 * A handle that continues when ranks die has a gate. A recovery replaces the endpoint, and the
 * gate keeps the application out meanwhile: a thread of the application is inside during a call,
 * except while it sleeps or drives. The recovery closes the gate for each of its few steps. A
 * thread that holds the drive lock neither enters nor closes the gate.
 */
#pragma once

#include "base/error.h"
#include "runtime/recovery.h"
#include "runtime/user_object.h"
#include "allreduce/endpoint.h"
#include "allreduce/staging.h"

/* The state of a handle that only recovery and growth change, with the application kept out. */
struct handle_gate {
    struct gate gate;
    /* From the stop to the end of a recovery: deposits and reads continue on this rank, and
     * nothing happens that other ranks can see. */
    bool stopped;
    bool asleep; /* The application waits in shared memory and wants to be woken. */
    /* The endpoint whose send slot the application fills until its next start. NULL: the
     * current endpoint. A recovery since the last start makes it an earlier one. */
    struct endpoint *filling;
    struct endpoint *successor; /* The next endpoint, while it is rebuilt. */
    void *last; /* Memory of the message of the last round, from another rank. */
    const struct round_header *resumes; /* The message to resume from, or NULL. */
};

struct pcoll_handle {
    struct user_object base;   /* First, so that the handle is found from it. */
    struct endpoint *endpoint; /* NULL: the handle has ended. */
    bool started;   /* A call is outstanding. Used by the thread in a call. */
    bool continues; /* The handle has a gate. */
    struct handle_gate gate;
};

/* Enter the gate, if there is one. The endpoint stays the same until handle_unlock. */
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

/* End a call of the application. Return rc. */
static inline int handle_leave(pcoll_handle *h, int rc)
{
    if (h->endpoint && h->endpoint->staging)
        staging_release(h->endpoint->staging);
    handle_unlock(h);
    return user_object_leave(&h->base, rc);
}

enum handle_use {
    HANDLE_OPEN = 1, /* The handle is not being freed and has not failed. */
    /* The call uses the member alone (staging.h). While a call without this waits, any thread that
     * finds a copy from a device complete may make the deposit. */
    HANDLE_ALONE = 2,
};

/* Begin a call of the application with these requirements, a set of enum handle_use. */
static inline int handle_enter(pcoll_handle *h, int use)
{
    int rc = fail_if_null_as("handle", h) ?: user_object_enter(&h->base);
    if (rc != PCOLL_OK)
        return rc;
    handle_lock(h);
    if (use & HANDLE_OPEN && (rc = user_object_check(&h->base)) != PCOLL_OK)
        return handle_leave(h, rc);
    if (use & HANDLE_ALONE && h->endpoint->staging)
        staging_hold(h->endpoint->staging);
    return PCOLL_OK;
}

/* Begin a public function: return from it if one of the arguments after the handle is NULL, or
 * if the call may not begin. */
#define HANDLE_ENTER(h, ...)                                                           \
    do {                                                                               \
        int entered = __VA_OPT__(fail_if_null(__VA_ARGS__) ?:)                         \
            handle_enter(h, HANDLE_OPEN | HANDLE_ALONE);                               \
        if (entered != PCOLL_OK)                                                       \
            return entered;                                                            \
    } while (0)

extern const struct user_object_kind handle_kind;
extern const struct recoverable handle_recoverable; /* handle_recovery.c */

/* Return a copy of the state of this rank. */
struct member handle_member(pcoll_handle *h);
/* Free the handle without waiting for other ranks (user_object.h). The handle does not recover. */
void handle_retire(pcoll_handle *h);
/* Make a handle without an endpoint, or return NULL without memory; free it. */
pcoll_handle *handle_new(bool continues);
void handle_free_shell(struct user_object *o);

/* handle_recovery.c */

/* The application has filled the send slot of an earlier endpoint: copy it to the current one. */
void handle_end_filling(pcoll_handle *h);
/* Have an endpoint (NULL: none) destroyed that a recovery replaced, as soon as MPI writes to it no
 * more; `in_use`: as in recovery_retire. */
void handle_retire_endpoint(struct communicator *c, struct endpoint *endpoint,
                            bool in_use);

/* handle_create.c: agents, and shared memory of ranks. */

/* Start an agent for the handle, if messages, timers or copies need one while the application
 * computes. */
int handle_start_agent(struct communicator *c, const struct endpoint *endpoint,
                       const pcoll_options *o);
/* Make an endpoint without a domain for these buffers, or one that follows another endpoint and has
 * its buffers, and find out with which ranks it may share memory. */
int sharing_place(struct communicator *c, const pcoll_buffer *buffers, int nbuffers,
                  const pcoll_options *options, const struct endpoint *follows,
                  struct endpoint **endpoint);
/* Give the endpoint its domain. Collective; an error on every rank or on none. */
int sharing_settle(struct communicator *c, struct endpoint *endpoint);

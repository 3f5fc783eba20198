/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What users make, use and free: a handle, a schedule, a gossip buffer, a grouped
 * allreduce. They live one life:
 *
 *   new       of its maker, who may also give up
 *   made      has slots on its communicator, and is in the list of those that end before
 *             MPI does
 *   used      by one thread at a time, between enter and leave. A second thread gets
 *             PCOLL_ESTATE. No call works in a forked child.
 *   closing   asked for by who frees it, or by MPI_Finalize. When its object has closed
 *             (communicator.h), or nothing can any more since the communicator has failed,
 *   ended     its inside is freed. Who made it may still hold it: an empty shell, until
 *             that is freed too.
 *
 * The owner of an object that does not recover need not wait: a retired object is freed as a
 * whole by the driver when it has closed (process.h).
 */
#ifndef PCOLL_RUNTIME_USER_OBJECT_H
#define PCOLL_RUNTIME_USER_OBJECT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/process.h"

struct user_object;

struct user_object_kind {
    const char *name, *plural; /* for messages: "the handle", "handles" */
    /* Driver: begin to close. Called once. */
    int (*close)(struct user_object *o);
    /* Free the inside, which no driver knows any more. If the communicator is not
     * healthy, MPI may still write to what it was given: that is better lost. */
    void (*dispose)(struct user_object *o, bool healthy);
    /* Say why it has not closed: a sentence. NULL: nothing more is known. */
    void (*explain)(struct user_object *o, char *text, size_t capacity);
    /* How it goes on when ranks have died; NULL: it does not. */
    const struct recoverable *recoverable;
};

struct user_object {
    struct entry entry; /* first: found again from it */
    const struct user_object_kind *kind;
    struct communicator *communicator;
    /* What has the slots; NULL: not made yet, or ended. A recovery changes it. */
    struct object *_Atomic object;
    bool ended;
    _Atomic bool orphan;  /* the others have none of it (recovery.h): it closes alone */
    _Atomic bool closing; /* asked for */
    /* Frees the shell when all ranks have closed it. NULL: its owner does. */
    void (*retired)(struct user_object *o);
    /* A thread of the application is in a call. It sets this by exchange, and its release
     * hands all that it wrote to the thread that enters next. Nothing of the object is read
     * after the release: the next thread may free the object. */
    _Atomic bool in_use;
};

/* May one of this kind be made here? The communicator's state comes back: at the first
 * call for a communicator this is collective. NULL: only look. */
int user_object_admit(const struct user_object_kind *kind, const void *comm,
                      enum pcoll_failure on_failure, struct communicator **c);
/* May one be made that does this when ranks die? PCOLL_EINVAL. */
int user_object_check_failure(int on_failure, int progress);
/* New: nothing of it is there for others. */
void user_object_init(struct user_object *o, const struct user_object_kind *kind);
/* Made: `object` has its slots. `progress` as asked for (enum pcoll_progress). */
void user_object_made(struct user_object *o, struct communicator *c,
                      struct object *object, int32_t progress);

/* It goes on on another communicator, as this object; no recovery is under way on either. */
void user_object_move(struct user_object *o, struct communicator *c,
                      struct object *object);

/* Begin a call of the application. PCOLL_ESTATE: another thread is in a call, the object has
 * ended, or this is a forked child. */
int user_object_enter(struct user_object *o);
/* Return PCOLL_OK while the object can be used: it is not being freed, and its communicator has
 * not failed. */
int user_object_check(struct user_object *o);
/* Both. */
int user_object_enter_open(struct user_object *o);
/* End a call. Returns rc. */
int user_object_leave(struct user_object *o, int rc);

/* Begin to free it; PCOLL_OK if that has begun, or there is nothing to free. */
int user_object_close(struct user_object *o);
/* Free it, waiting for so long: PCOLL_EAGAIN if that was not enough. *over: it has ended,
 * whatever is returned; what is left is the shell. */
int user_object_end(struct user_object *o, int64_t timeout_us, bool *over);
/* Free it without waiting; `end` frees the shell, now or later. */
void user_object_retire(struct user_object *o, void (*end)(struct user_object *o));

#endif

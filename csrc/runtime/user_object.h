/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The states of objects that users create: a handle, a schedule, a gossip buffer, a grouped allreduce.
 *
 *   new       The maker is the only one that knows the object, and may also free it.
 *   made      The object has slots on its communicator, and is in the list of objects that end
 *             before MPI does.
 *   used      By one thread at a time, between enter and leave. A second thread gets
 *             PCOLL_ESTATE. No call works in a forked child.
 *   closing   The user has freed the object, or MPI_Finalize has begun. The object closes with
 *             its peers (communicator.h). It never does if its communicator has failed.
 *   ended     The inside is freed. The user may still hold the object, an empty shell.
 *
 * user_object.c has the functions that simulated objects use as well, process.c those for MPI.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/communicator.h"

struct user_object;

struct user_object_kind {
    const char *name, *plural; /* For messages: "the handle", "handles". */
    /* Driver: begin to close. Called once. */
    int (*close)(struct user_object *o);
    /* Free the inside, which no driver knows any more. If the communicator is not healthy, MPI
     * may still write to what it was given: do not free that. */
    void (*dispose)(struct user_object *o, bool healthy);
    /* Write a sentence on why it has not closed. NULL: nothing more is known. */
    void (*explain)(struct user_object *o, char *text, size_t capacity);
    /* Its part in a recovery after deaths. NULL: it does not recover. */
    const struct recoverable *recoverable;
};

struct user_object {
    const struct user_object_kind *kind;
    struct communicator *communicator;
    /* The part that has the slots. NULL: not made yet, or ended. A recovery changes it. */
    struct object *_Atomic object;
    uint32_t slot;    /* The first one: the same on all ranks. */
    int32_t progress; /* enum pcoll_progress, as the user asked for. */
    bool ended;
    /* Some rank does not have it (recovery.h): it closes alone. */
    _Atomic bool incomplete;
    _Atomic bool closing; /* The user has freed it. */
    /* Frees the shell when all ranks have closed the object. NULL: its owner does. */
    void (*retired)(struct user_object *o);
    /* A thread of the application is in a call. It sets this by exchange, and its release hands
     * all that it wrote to the thread that enters next. Nothing of the object is read after the
     * release: the next thread may free the object. */
    _Atomic bool in_use;
    struct user_object *next; /* In the list of objects that end before MPI. */
    struct user_object *next_recovered; /* In the list of user_object_list. */
};

/* Check that an object of this kind can be made here. Return the communicator's state, which the
 * first call for a communicator makes collectively, in *c. NULL: check only. */
int user_object_admit(const struct user_object_kind *kind, const void *comm,
                      enum pcoll_failure on_failure, struct communicator **c);
/* Check that an object with this progress can do this when ranks die. PCOLL_EINVAL. */
int user_object_check_failure(int on_failure, int progress);
/* Initialize a new object. */
void user_object_init(struct user_object *o, const struct user_object_kind *kind);
/* The object is made, or moves to communicator c while neither recovers; `object` has its slots. */
void user_object_made(struct user_object *o, struct communicator *c,
                      struct object *object, int32_t progress);

/* Begin a call. PCOLL_ESTATE: a thread is in one, the object has ended, or in a forked child. */
int user_object_enter(struct user_object *o);
/* Return PCOLL_OK while it is not being freed and its communicator has not failed. */
int user_object_check(struct user_object *o);
/* Enter and check. */
int user_object_enter_open(struct user_object *o);
/* End a call. Return rc. */
int user_object_leave(struct user_object *o, int rc);

/* Begin to free it. PCOLL_OK: that has begun, or there is nothing to free. */
int user_object_close(struct user_object *o);
/* Free all but the shell. PCOLL_EAGAIN: the timeout has passed. *over: it has ended, even so. */
int user_object_end(struct user_object *o, int64_t timeout_us, bool *over);
/* Free it without waiting. `end` frees the shell, now or later. */
void user_object_retire(struct user_object *o, void (*end)(struct user_object *o));

/* Return the objects of this communicator in the order of their slots, as a list through
 * next_recovered: the same on all ranks, whichever threads made them. */
struct user_object *user_object_list(const struct communicator *c);

/* Return whether this is a forked child, which has no agent. It has called the second function. */
bool user_object_forked(void);
void user_object_note_fork(void);

/*
 * The state of the process: the progress engine, the watch of hosts, the communicators and the
 * objects of users. It is an attribute of MPI_COMM_SELF, so that MPI_Finalize ends them first.
 *
 * Deferred reclamation. MPI_Comm_free waits for no other rank: communicators end in any order.
 *
 *   - An object whose owner is a communicator (the handles of PCOLL_Allreduce and of the
 *     interposer) is retired with it: it begins to close, and the driver frees it when it has
 *     closed on all ranks (communicator.h).
 *   - A struct communicator ends when the program has freed its MPI_Comm and its last object has
 *     ended. The ranks then part: the driver begins a barrier on the communicator. When it is
 *     complete, all ranks know that nothing is under way there. Each keeps the transport for a later
 *     communicator of the same ranks (transport/mpi/mpi_transport.h), or destroys it.
 *
 * The driver takes these steps whenever it polls (process_reclaim). Each is local, or an agreement
 * that only this communicator waits for, so the order in which ranks retire does not matter. The
 * transport's MPI_Comm_free is collective in name only (MPI-4.1, section 7.4.3). MPI_Finalize ends
 * what is left: it begins everything before it waits for anything.
 *
 * Communicators that recover (recovery.h), and those on which gossip buffers or groups have left
 * windows, need a step after the barrier that blocks until all ranks take it. Ranks that took it on
 * several communicators in different orders would wait for each other for ever. So the barrier also
 * tells whether a thread of each rank waits, in the free of the last object or of the MPI_Comm. If
 * not, all ranks take the step in MPI_Finalize, the youngest communicator first.
 */

/* Return how many handles this process has asked for before. */
uint64_t process_next_number(void);

/* Return the watch of the hosts of its peers; NULL before the first object. */
struct watch *process_watch(void);

/* Return in *out the state of this MPI_Comm for objects with this on_failure. An MPI_Comm has one
 * state for each value of on_failure; the first call with a value creates it, collectively.
 * PCOLL_EINVAL: objects cannot continue here. */
int process_context(const void *comm, enum pcoll_failure on_failure,
                    struct communicator **out);
/* Return the number of communicators of this process that are in use or not reclaimed yet. */
uint32_t process_communicators(void);
/* Start the agent if this progress (enum pcoll_progress) needs it and if it is to run `here`, in
 * this process. PCOLL_ETHREAD: MPI's thread level is too low for an agent. */
int process_start_agent(struct communicator *c, int progress, bool here);

/* Return the progress engine, which is made if there is none. */
int process_progress(struct progress **out);
/* Add a communicator that belongs to no MPI_Comm of the program. It ends with its last object, … */
void process_adopt(struct communicator *c);
/* … or this forgets it, and the caller frees it. */
void process_disown(struct communicator *c);

/* SPDX-License-Identifier: Apache-2.0 */
/* One life for what users make, its beginning and its end; see user_object.h. */
#include "runtime/user_object.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/communicator.h"
#include "runtime/progress.h"
#include "transport/mpi/mpi_transport.h"

int user_object_admit(const struct user_object_kind *kind, const void *comm,
                      enum pcoll_failure on_failure, struct communicator **c)
{
    CHECK(kind->plural);
    if (process_forked())
        return fail(PCOLL_ESTATE, "%s cannot be made in a forked process",
                    kind->plural);
    int rc = mpi_check_comm(comm);
    bool continues = on_failure == PCOLL_FAILURE_CONTINUE; /* not checked yet */
    return rc == PCOLL_OK && c
               ? process_context(
                     comm, continues ? PCOLL_FAILURE_CONTINUE : PCOLL_FAILURE_RAISE, c)
               : rc;
}

/* The end. */

static int user_object_begin_close(struct user_object *o)
{
    outage_enter(o->communicator->outage);
    progress_lock(o->communicator->progress);
    bool first = !atomic_exchange(&o->closing, true);
    int rc = PCOLL_OK;
    if (first && o->orphan)
        atomic_store(&atomic_load(&o->object)->closed, true);
    else if (first)
        rc = o->kind->close(o);
    if (rc != PCOLL_OK)
        rc = communicator_fail(o->communicator, rc);
    progress_unlock(o->communicator->progress);
    outage_leave(o->communicator->outage);
    return rc;
}

static bool user_object_is_closed(void *arg)
{
    const struct user_object *o = arg;
    return atomic_load(&atomic_load(&o->object)->closed) ||
           atomic_load(&o->communicator->failure);
}

/* Driver: it has closed, or never will. */
static void user_object_unregister(struct user_object *o)
{
    CHECK(o->object);
    CHECK(atomic_load(&o->closing));
    communicator_unregister(o->communicator, o->entry.slot);
    o->object = NULL;
    o->ended = true;
}

static bool user_object_is_healthy(const struct user_object *o)
{
    return atomic_load(&o->communicator->failure) == PCOLL_OK;
}

static void user_object_dispose(struct user_object *o)
{
    bool healthy = user_object_is_healthy(o);
    progress_lock(o->communicator->progress);
    user_object_unregister(o);
    progress_unlock(o->communicator->progress);
    o->kind->dispose(o, healthy);
}

/* It has closed, or never will. No recovery is under way meanwhile, or begins: this thread is
 * inside the outage. False: one has been before, and what has closed has a successor that has
 * not. */
static bool user_object_dispose_closed(struct user_object *o, bool forget)
{
    bool over = user_object_is_closed(o);
    if (over && forget)
        process_remove(&o->entry);
    if (over)
        user_object_dispose(o);
    return over;
}

int user_object_close(struct user_object *o)
{
    CHECK(!o->ended || !o->object);
    if (!o->object)
        return PCOLL_OK;
    int rc = user_object_enter(o);
    return rc == PCOLL_OK ? user_object_leave(o, user_object_begin_close(o)) : rc;
}

int user_object_end(struct user_object *o, int64_t timeout_us, bool *over)
{
    CHECK(over);
    *over = !o->object;
    if (*over)
        return PCOLL_OK;
    int rc = user_object_enter(o);
    if (rc != PCOLL_OK)
        return rc;
    user_object_begin_close(o); /* a failure shows below, as the communicator's */
    struct communicator *c = o->communicator;
    while (!*over) {
        if (progress_wait(c->progress, user_object_is_closed, o, timeout_us) ==
            PCOLL_EAGAIN)
            return user_object_leave(o, PCOLL_EAGAIN);
        process_hold(c);
        outage_enter(c->outage); /* may have to wait for a recovery */
        *over = user_object_dispose_closed(o, true);
        rc = communicator_check(c);
        outage_leave(c->outage);
        process_release(c);
    }
    return rc == PCOLL_EFAILED ? PCOLL_OK : rc; /* nothing is left to do together */
}

static bool user_object_reclaim(struct entry *entry)
{
    struct user_object *o = (struct user_object *)entry;
    struct communicator *c = o->communicator;
    bool healthy = user_object_is_healthy(o);
    if (!user_object_is_closed(o))
        return false;
    process_remove(entry);
    user_object_unregister(o);
    o->kind->dispose(o, healthy);
    o->retired(o);
    process_part(c);
    return true;
}

void user_object_retire(struct user_object *o, void (*end)(struct user_object *o))
{
    if (!o->object) {
        end(o);
        return;
    }
    CHECK(!o->communicator->outage);
    if (user_object_enter(o) != PCOLL_OK)
        return;
    user_object_begin_close(o);
    o->retired = end;
    progress_lock(o->communicator->progress);
    process_retire(&o->entry);
    progress_unlock(o->communicator->progress);
}

/* At MPI_Finalize. The application still has it and may free it later: it stays, empty.
 */

static void user_object_entry_begin_end(struct entry *entry)
{
    user_object_begin_close((struct user_object *)entry);
}

static void user_object_explain(void *arg, char *text, size_t capacity)
{
    struct user_object *o = arg;
    snprintf(text, capacity, "MPI_Finalize: ");
    size_t used = strlen(text);
    snprintf(text + used, capacity - used,
             "%s is freed on this rank, and not on others", o->kind->name);
    if (o->kind->explain && !user_object_is_closed(o))
        o->kind->explain(o, text + used, capacity - used);
}

static void user_object_entry_end(struct entry *entry)
{
    struct user_object *o = (struct user_object *)entry;
    struct communicator *c = o->communicator;
    for (bool over = false; !over;) {
        progress_wait_or_warn(c->progress, c->transport->rank, user_object_is_closed, o,
                              user_object_explain);
        outage_enter(c->outage);
        over = user_object_dispose_closed(o, false);
        outage_leave(c->outage);
    }
    if (o->retired)
        o->retired(o);
}

void user_object_made(struct user_object *o, struct communicator *c,
                      struct object *object, int32_t progress)
{
    CHECK(!o->ended && !atomic_load(&o->object));
    CHECK(object->slots > 0);
    o->communicator = c;
    o->object = object;
    o->entry = (struct entry){.begin_end = user_object_entry_begin_end,
                              .end = user_object_entry_end,
                              .reclaim = user_object_reclaim,
                              .slot = object->slot,
                              .progress = progress};
    process_add(&o->entry);
}

void user_object_move(struct user_object *o, struct communicator *c,
                      struct object *object)
{
    CHECK(atomic_load(&o->object) && !atomic_load(&o->closing));
    process_remove(&o->entry);
    o->communicator = c;
    atomic_store(&o->object, object);
    o->entry.slot = object->slot;
    process_add(&o->entry);
}

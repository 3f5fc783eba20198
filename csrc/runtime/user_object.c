/* SPDX-License-Identifier: Apache-2.0 */
/* One life for what users make, its beginning and its end; see user_object.h. */
#include "runtime/user_object.h"

#include "base/check.h"
#include "base/error.h"
#include "runtime/closing.h"
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

static int begin_close(struct user_object *o)
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

static bool is_closed(void *arg)
{
    const struct user_object *o = arg;
    return atomic_load(&atomic_load(&o->object)->closed) ||
           atomic_load(&o->communicator->failure);
}

static void dispose(struct user_object *o)
{
    CHECK(o->object);
    CHECK(atomic_load(&o->closing));
    bool healthy = atomic_load(&o->communicator->failure) == PCOLL_OK;
    progress_lock(o->communicator->progress);
    communicator_unregister(o->communicator, o->entry.slot);
    progress_unlock(o->communicator->progress);
    o->object = NULL;
    o->ended = true;
    o->kind->dispose(o, healthy);
}

/* It has closed, or never will. No recovery is under way meanwhile, or begins: this thread is
 * inside the outage. False: one has been before, and what has closed has a successor that has
 * not. */
static bool dispose_closed(struct user_object *o, bool forget)
{
    bool over = is_closed(o);
    if (over && forget)
        process_remove(&o->entry);
    if (over)
        dispose(o);
    return over;
}

int user_object_close(struct user_object *o)
{
    CHECK(!o->ended || !o->object);
    if (!o->object)
        return PCOLL_OK;
    int rc = user_object_enter(o);
    return rc == PCOLL_OK ? user_object_leave(o, begin_close(o)) : rc;
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
    begin_close(o); /* a failure shows below, as the communicator's */
    struct communicator *c = o->communicator;
    while (!*over) {
        if (progress_wait(c->progress, is_closed, o, timeout_us) == PCOLL_EAGAIN)
            return user_object_leave(o, PCOLL_EAGAIN);
        outage_enter(c->outage); /* may have to wait for a recovery */
        process_begin_release();
        *over = dispose_closed(o, true);
        rc = communicator_check(c);
        outage_leave(c->outage);
        process_release(c);
    }
    return rc == PCOLL_EFAILED ? PCOLL_OK : rc; /* nothing is left to do together */
}

/* At MPI_Finalize. The application still has it and may free it later: it stays, empty.
 */

static void entry_begin_end(struct entry *entry)
{
    begin_close((struct user_object *)entry);
}

static void entry_end(struct entry *entry)
{
    struct user_object *o = (struct user_object *)entry;
    struct communicator *c = o->communicator;
    for (bool over = false; !over;) {
        if (progress_wait(c->progress, is_closed, o, 1000000) == PCOLL_EAGAIN)
            continue;
        outage_enter(c->outage);
        over = dispose_closed(o, false);
        outage_leave(c->outage);
    }
}

void user_object_made(struct user_object *o, struct communicator *c,
                      struct object *object, int32_t progress)
{
    CHECK(!o->ended && !atomic_load(&o->object));
    CHECK(object->slots > 0);
    o->communicator = c;
    o->object = object;
    o->entry = (struct entry){.begin_end = entry_begin_end,
                              .end = entry_end,
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

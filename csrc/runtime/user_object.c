/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of users' objects; see user_object.h. */
#include "runtime/user_object.h"

#include "base/check.h"
#include "base/error.h"

/* A forked child must know that it is one without calling MPI, so this is not a communicator's. */
static _Atomic bool user_object_in_child;

void user_object_note_fork(void)
{
    atomic_store(&user_object_in_child, true);
}

bool user_object_forked(void)
{
    return atomic_load(&user_object_in_child);
}

void user_object_init(struct user_object *o, const struct user_object_kind *kind)
{
    CHECK(kind->close && kind->dispose);
    *o = (struct user_object){.kind = kind};
}

int user_object_check_failure(int on_failure, int progress)
{
    if (on_failure < PCOLL_FAILURE_RAISE || on_failure > PCOLL_FAILURE_CONTINUE)
        return fail(PCOLL_EINVAL, "on_failure: unknown value %d", on_failure);
    if (on_failure == PCOLL_FAILURE_CONTINUE && progress == PCOLL_PROGRESS_MANUAL)
        return fail(PCOLL_EINVAL,
                    "on_failure: \"continue\" needs the agent, and manual "
                    "progress has none");
    return PCOLL_OK;
}

int user_object_leave(struct user_object *o, int rc)
{
    CHECK(atomic_load(&o->in_use));
    atomic_store_explicit(&o->in_use, false, memory_order_release);
    return rc;
}

int user_object_enter(struct user_object *o)
{
    const char *name = o->kind->name;
    if (atomic_load(&user_object_in_child))
        return fail(PCOLL_ESTATE,
                    "this process was forked from the one that made %s: it works in "
                    "that one only",
                    name);
    if (atomic_exchange(&o->in_use, true))
        return fail(PCOLL_ESTATE, "%s is in use by another thread", name);
    if (!o->ended)
        return PCOLL_OK;
    return user_object_leave(o, fail(PCOLL_ESTATE, "%s has been freed", name));
}

int user_object_check(struct user_object *o)
{
    if (atomic_load(&o->closing))
        return fail(PCOLL_ESTATE, "%s is being freed", o->kind->name);
    /* A builder has no communicator yet. */
    return o->communicator ? communicator_check(o->communicator) : PCOLL_OK;
}

int user_object_enter_open(struct user_object *o)
{
    int rc = user_object_enter(o);
    if (rc != PCOLL_OK)
        return rc;
    rc = user_object_check(o);
    return rc == PCOLL_OK ? rc : user_object_leave(o, rc);
}

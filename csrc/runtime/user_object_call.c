/* SPDX-License-Identifier: Apache-2.0 */
/* One life for what users make: a new one, entering and leaving a call; see
 * user_object.h. Simulated objects have this much of it. */
#include "base/check.h"
#include "base/error.h"
#include "base/lock.h"
#include "include/partialcoll.h"
#include "runtime/process.h"
#include "runtime/user_object.h"

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
    CHECK(o && o->kind);
    const char *name = o->kind->name;
    if (process_forked())
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
    CHECK(atomic_load(&o->in_use));
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

static struct lock entries_mutex = LOCK_INIT(LOCK_ENTRIES);
static struct entry *entries_head;

void entries_add(struct entry *entry)
{
    CHECK(entry->begin_end && entry->end);
    lock_take(&entries_mutex);
    struct entry **at = &entries_head;
    while (*at && (*at)->slot <= entry->slot)
        at = &(*at)->next;
    entry->next = *at;
    *at = entry;
    lock_release(&entries_mutex);
}

void entries_remove(struct entry *entry)
{
    CHECK(entry);
    lock_take(&entries_mutex);
    struct entry **at = &entries_head;
    while (*at && *at != entry)
        at = &(*at)->next;
    if (*at)
        *at = entry->next;
    lock_release(&entries_mutex);
}

void entries_each(void (*visit)(struct entry *, void *), void *arg)
{
    CHECK(visit);
    lock_take(&entries_mutex);
    for (struct entry *e = entries_head; e; e = e->next)
        visit(e, arg);
    lock_release(&entries_mutex);
}

struct entry *entries_first(void)
{
    return entries_head;
}

bool entries_spin(void)
{
    bool spins = false;
    lock_take(&entries_mutex);
    for (const struct entry *e = entries_head; e; e = e->next) {
        CHECK(!e->next || e->slot <= e->next->slot);
        spins |= e->progress == PCOLL_PROGRESS_SPIN;
    }
    lock_release(&entries_mutex);
    return spins;
}

/* The one piece of state that cannot hang on a communicator: a forked child must know
 * without calling MPI. */

static _Atomic bool process_in_child;

static void process_note_fork(void)
{
    atomic_store(&process_in_child, true);
}

void process_note_forks(void)
{
    pthread_atfork(NULL, NULL, process_note_fork);
}

bool process_forked(void)
{
    return atomic_load(&process_in_child);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators come, end, and go over to another transport. */
#include "runtime/communicator.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"

static int poll_source(struct progress_source *source)
{
    return communicator_poll((struct communicator *)source);
}

int communicator_create(struct transport *t, struct progress *p,
                        struct communicator **out)
{
    CHECK(t && t->size > 0 && t->rank < t->size);
    struct communicator *c = calloc(1, sizeof *c);
    if (!c)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    c->source = (struct progress_source){
        .poll = poll_source, .off_node = t->off_node, .alarm_us = INT64_MAX};
    c->transport = t;
    c->progress = p;
    c->alarm = INT64_MAX;
    lock_init(&c->notified_mutex, LOCK_NOTIFIED);
    *out = c;
    return PCOLL_OK;
}

void communicator_leave(struct communicator *c, struct leftover *l)
{
    CHECK(l->end);
    CHECK(!c->progress || progress_is_driven(c->progress));
    struct leftover **end = &c->leftovers;
    while (*end)
        end = &(*end)->next;
    l->next = NULL;
    *end = l;
}

void communicator_end_leftovers(struct communicator *c)
{
    CHECK(!atomic_load(&c->closings) || atomic_load(&c->failure));
    while (c->leftovers) {
        struct leftover *l = c->leftovers;
        c->leftovers = l->next;
        l->end(l);
    }
}

/* After a failure the transport's requests may still point into buffers, and MPI would
 * wait for them: it is better lost. */
void communicator_end_transport(struct communicator *c)
{
    CHECK(!c->transport || !c->closing.voting || atomic_load(&c->failure));
    if (c->transport && atomic_load(&c->failure) == PCOLL_OK) {
        communicator_end_leftovers(c);
        c->transport->ops->destroy(c->transport);
    }
    c->transport = NULL;
    if (c->sends_pending)
        progress_unrung(c->progress, -1);
    c->sends_pending = false;
}

void communicator_destroy(struct communicator **at)
{
    CHECK(*at);
    struct communicator *c = *at;
    communicator_end_transport(c);
    lock_destroy(&c->notified_mutex);
    free(c->objects);
    if (atomic_load(&c->failure) == PCOLL_OK) /* else MPI may still write to it */
        free(c->closing.ballot);
    free(c);
    *at = NULL;
}

/* What was under way is looked after no longer. */
static void forget_unrung(struct communicator *c)
{
    for (; c->agreements; c->agreements--)
        progress_unrung(c->progress, -1);
    if (c->sends_pending)
        progress_unrung(c->progress, -1);
    c->sends_pending = false;
}

void communicator_forget(struct communicator *c)
{
    CHECK(c->progress);
    progress_lock(c->progress);
    forget_unrung(c);
    progress_unlock(c->progress);
}

/* Votes on who closes are taken anew. */
static void forget_closings(struct communicator *c)
{
    struct closings *closing = &c->closing;
    closing->first = closing->turn = NULL;
    closing->voting = false;
    closing->ballot = NULL; /* MPI may still write to it */
    closing->base.alarm = INT64_MAX;
    atomic_store(&c->closings, 0);
}

void communicator_abandon(struct communicator *c)
{
    CHECK(!c->handles);
    progress_lock(c->progress);
    forget_unrung(c);
    forget_closings(c);
    c->transport = NULL;
    progress_unlock(c->progress);
}

void communicator_take_over(struct communicator *c, struct communicator *from)
{
    CHECK(!from->closing.communicator && !from->unslotted && !from->agreements);
    progress_lock(c->progress);
    forget_unrung(c);
    forget_closings(c);
    free(c->objects);
    c->transport = from->transport;
    c->source.off_node = from->source.off_node;
    c->objects = from->objects;
    c->capacity = from->capacity;
    c->watched = from->watched;
    c->sends_pending = from->sends_pending;
    lock_take(&c->notified_mutex);
    for (struct object *p = atomic_load(&c->notified); p; p = p->next_notified)
        p->notified = false; /* it may live on, and is run anyway */
    atomic_store(&c->notified, atomic_exchange(&from->notified, NULL));
    lock_release(&c->notified_mutex);
    communicator_set_alarm(c, from->alarm);
    /* Until they are told of `c`, applications may ask the successors' domains, which know
     * `from`, for the time: so it keeps its transport for that. Who owns it is `c`. */
    from->objects = NULL;
    from->capacity = from->handles = 0;
    from->watched = NULL;
    from->sends_pending = false;
    progress_unlock(c->progress);
}

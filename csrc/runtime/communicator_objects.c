/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of a communicator, by their slots, and those that have something to look at. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "algorithms/algorithms.h"
#include "runtime/communicator.h"

static int grow(struct communicator *c)
{
    uint32_t capacity = c->capacity ? 2 * c->capacity : 8;
    struct object **objects = realloc(c->objects, capacity * sizeof *objects);
    if (!objects)
        return fail(PCOLL_ENOMEM, "no memory for %u handles", capacity);
    for (uint32_t i = c->capacity; i < capacity; i++)
        objects[i] = NULL;
    c->objects = objects;
    c->capacity = capacity;
    return PCOLL_OK;
}

int communicator_free_slots(struct communicator *c, uint32_t from, uint32_t slots,
                            uint32_t *slot)
{
    CHECK(slots > 0);
    uint32_t most = c->transport->tags / DATA_EDGES, first = from;
    for (uint32_t i = from; i < c->capacity && i - first < slots; i++)
        if (c->objects[i])
            first = i + 1;
    if (slots > most || first > most - slots)
        return fail(PCOLL_EINVAL,
                    "this communicator has no tags left: its handles and schedules can "
                    "have %u slots of %d tags at once",
                    most, DATA_EDGES);
    *slot = first;
    return PCOLL_OK;
}

int communicator_reserve(struct communicator *c, uint32_t slots)
{
    CHECK(slots > 0);
    int rc = PCOLL_OK;
    while (rc == PCOLL_OK && slots > c->capacity)
        rc = grow(c);
    return rc;
}

int communicator_register(struct communicator *c, struct object *p, uint32_t slot)
{
    CHECK(p->slots > 0);
    int rc = communicator_reserve(c, slot + p->slots);
    if (rc != PCOLL_OK)
        return rc;
    p->slot = slot;
    for (uint32_t i = 0; i < p->slots; i++) {
        CHECK(!c->objects[slot + i]);
        c->objects[slot + i] = p;
    }
    if (p->watched) {
        p->next_watched = c->watched;
        c->watched = p;
    }
    c->handles++;
    return PCOLL_OK;
}

static void forget_notification(struct communicator *c, struct object *p)
{
    lock_take(&c->notified_mutex);
    struct object *before = NULL, *at = atomic_load(&c->notified);
    for (; at && at != p; at = at->next_notified)
        before = at;
    if (at && before)
        before->next_notified = p->next_notified;
    else if (at)
        atomic_store(&c->notified, p->next_notified);
    lock_release(&c->notified_mutex);
}

static void forget_watched(struct communicator *c, struct object *p)
{
    struct object **at = &c->watched;
    while (*at && *at != p)
        at = &(*at)->next_watched;
    if (*at)
        *at = p->next_watched;
}

void communicator_unregister(struct communicator *c, uint32_t slot)
{
    CHECK(slot < c->capacity && c->objects[slot]);
    CHECK(c->objects[slot]->slot == slot);
    CHECK(c->handles > 0);
    struct object *p = c->objects[slot];
    forget_notification(c, p);
    forget_watched(c, p);
    for (uint32_t i = 0; i < p->slots; i++)
        c->objects[slot + i] = NULL;
    c->handles--;
}

void communicator_attach(struct communicator *c, struct object *p)
{
    CHECK(!c->unslotted);
    c->unslotted = p;
}

void communicator_notify(struct communicator *c, struct object *p)
{
    CHECK(p->ops->run);
    lock_take(&c->notified_mutex);
    if (!p->notified) {
        p->notified = true;
        p->next_notified = atomic_load(&c->notified);
        atomic_store(&c->notified, p);
    }
    lock_release(&c->notified_mutex);
    if (c->progress)
        progress_notify(c->progress);
}

struct object *communicator_next_notified(struct communicator *c)
{
    if (!atomic_load(&c->notified)) /* who notifies after this drives again */
        return NULL;
    lock_take(&c->notified_mutex);
    struct object *p = atomic_load(&c->notified);
    if (p) {
        atomic_store(&c->notified, p->next_notified);
        p->notified = false;
    }
    lock_release(&c->notified_mutex);
    return p;
}

struct object *communicator_object_at(const struct communicator *c, uint32_t slot)
{
    return slot < c->capacity ? c->objects[slot] : NULL;
}

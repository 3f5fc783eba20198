/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators come, end, and go over to another transport. */
#include "runtime/communicator.h"

#include <stdio.h>
#include <stdlib.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "base/error.h"

static int communicator_poll_source(struct progress_source *source)
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
    c->source = (struct progress_source){.poll = communicator_poll_source,
                                         .off_node = t->off_node,
                                         .alarm_us = INT64_MAX};
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
static void communicator_forget_unrung(struct communicator *c)
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
    communicator_forget_unrung(c);
    progress_unlock(c->progress);
}

/* Votes on who closes are taken anew. */
static void communicator_forget_closings(struct communicator *c)
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
    communicator_forget_unrung(c);
    communicator_forget_closings(c);
    c->transport = NULL;
    progress_unlock(c->progress);
}

void communicator_take_over(struct communicator *c, struct communicator *from)
{
    CHECK(!from->closing.communicator && !from->unslotted && !from->agreements);
    progress_lock(c->progress);
    communicator_forget_unrung(c);
    communicator_forget_closings(c);
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

/* The failure that ends a communicator. */

int communicator_fail(struct communicator *c, int code)
{
    CHECK(code != PCOLL_OK);
    CHECK(!c->progress || progress_is_driven(c->progress));
    if (code == PCOLL_EFAILED && c->outage &&
        outage_begin(c->outage, fail_last_ranks()))
        return code;
    if (atomic_load(&c->failure) == PCOLL_OK) {
        snprintf(c->failure_text, sizeof c->failure_text, "%s", pcoll_last_error());
        c->failure_of_mpi = pcoll_last_mpi_error();
        if (code == PCOLL_EFAILED)
            c->failed = *fail_last_ranks();
        atomic_store(&c->failure, code);
        if (c->progress)
            progress_wake_waiters(c->progress);
    }
    return code;
}

int communicator_fail_undriven(struct communicator *c, int code)
{
    struct reason reason;
    struct failed_ranks who = *fail_last_ranks();
    int mpi_error = pcoll_last_mpi_error();
    fail_reason(&reason);
    progress_lock(c->progress);
    communicator_fail(c, code);
    progress_unlock(
        c->progress); /* it drives, which may change this thread's last error */
    if (code == PCOLL_EFAILED)
        return fail_ranks(&who);
    fail_set_mpi_error(mpi_error);
    return fail(code, "%s", reason.text);
}

int communicator_check(struct communicator *c)
{
    CHECK(c);
    int code = atomic_load(&c->failure);
    if (code == PCOLL_EFAILED)
        return fail_ranks(&c->failed);
    if (code == PCOLL_OK)
        return code;
    fail_set_mpi_error(c->failure_of_mpi);
    return fail(code, "%s", c->failure_text);
}

/* The objects of a communicator, by their slots, and those that have something to look at. */

static int communicator_grow(struct communicator *c)
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
        rc = communicator_grow(c);
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

static void communicator_forget_notification(struct communicator *c, struct object *p)
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

static void communicator_forget_watched(struct communicator *c, struct object *p)
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
    communicator_forget_notification(c, p);
    communicator_forget_watched(c, p);
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

/* What happens on a communicator, and whom it concerns. */

/* Cookies of data messages are slot and operation; agreements have their address. */
static uint64_t const agreement_bit = (uint64_t)1 << 63;

/* Run those that others have asked for. */
static int communicator_poll_watched(struct communicator *c, int *happened)
{
    int rc = PCOLL_OK;
    for (struct object *p = c->watched; p && rc == PCOLL_OK; p = p->next_watched) {
        if (!p->ops->attention(p))
            continue;
        rc = p->ops->run(p);
        ++*happened;
    }
    return rc;
}

static int communicator_finish_agreement(struct communicator *c, struct agreement *a)
{
    struct object *p = a->object;
    CHECK(!atomic_load(&a->done));
    atomic_store(&a->done, true);
    c->agreements--;
    if (c->progress) {
        progress_unrung(c->progress, -1);
        progress_wake_waiters(c->progress);
    }
    return p ? p->ops->run(p) : PCOLL_OK;
}

static int communicator_dispatch(struct communicator *c,
                                 const struct transport_event *e)
{
    struct object *p;
    switch (e->kind) {
    case TRANSPORT_AGREED:
        return communicator_finish_agreement(
            c, (struct agreement *)(uintptr_t)(e->cookie & ~agreement_bit));
    case TRANSPORT_DONE:
        p = communicator_object_at(c, (uint32_t)(e->cookie >> 32));
        return p ? p->ops->done(p, (int)(e->cookie & UINT32_MAX), e->bytes)
                 : fail(PCOLL_EPROTOCOL, "a message for a handle that does not exist");
    case TRANSPORT_CONTROL:
        p = communicator_object_at(c, e->control.handle);
        return p ? p->ops->control(p, e->source, &e->control) : PCOLL_OK;
    }
    return PCOLL_OK;
}

/* While sends are pending, someone has to come back without being rung. */
static void communicator_watch_sends(struct communicator *c)
{
    bool pending = c->transport->ops->pending(c->transport) > 0;
    if (pending == c->sends_pending || !c->progress)
        return;
    c->sends_pending = pending;
    progress_unrung(c->progress, pending ? 1 : -1);
}

int64_t communicator_now(const struct communicator *c)
{
    CHECK(c->transport);
    return c->transport->ops->now(c->transport);
}

void communicator_set_alarm(struct communicator *c, int64_t at)
{
    c->alarm = at;
    c->source.alarm_us = at == INT64_MAX ? at : at / 1000 + 1;
}

void communicator_wake_at(struct communicator *c, int64_t at)
{
    CHECK(at >= 0);
    if (c->transport->ops->alarm)
        c->transport->ops->alarm(c->transport, at);
    if (at < c->alarm)
        communicator_set_alarm(c, at);
}

void communicator_alarm(struct communicator *c, struct object *p, int64_t at)
{
    CHECK(!c->progress || progress_is_driven(c->progress));
    CHECK(at >= 0);
    if (p->alarm <= at)
        return;
    p->alarm = at;
    communicator_wake_at(c, at);
}

/* Run it if its time has come; an alarm if not. */
static int communicator_ring(struct communicator *c, struct object *p, int64_t now,
                             int *happened)
{
    if (p->alarm > now) {
        if (p->alarm < c->alarm)
            communicator_set_alarm(c, p->alarm);
        return PCOLL_OK;
    }
    p->alarm = INT64_MAX;
    p->in_vain = false;
    int rc = p->ops->run(p);
    *happened += !p->in_vain; /* else whoever polls would not rest for it */
    return rc;
}

static int communicator_ring_alarms(struct communicator *c, int *happened)
{
    int64_t now = c->alarm == INT64_MAX ? 0 : communicator_now(c);
    int rc = PCOLL_OK;
    if (now < c->alarm)
        return PCOLL_OK;
    communicator_set_alarm(c, INT64_MAX);
    for (uint32_t i = 0; i < c->capacity && rc == PCOLL_OK; i++)
        if (c->objects[i])
            rc = communicator_ring(c, c->objects[i], now, happened);
    return rc == PCOLL_OK && c->unslotted
               ? communicator_ring(c, c->unslotted, now, happened)
               : rc;
}

int communicator_poll(struct communicator *c)
{
    CHECK(!c->progress || progress_is_driven(c->progress));
    if (atomic_load(&c->failure) != PCOLL_OK || outage_now(c->outage))
        return 0;
    const struct transport_event *events;
    int happened = 0, rc = PCOLL_OK;
    for (struct object *p; rc == PCOLL_OK && (p = communicator_next_notified(c));
         happened++)
        rc = p->ops->run(p);
    if (rc == PCOLL_OK)
        rc = communicator_poll_watched(c, &happened);
    if (rc == PCOLL_OK)
        rc = communicator_ring_alarms(c, &happened);
    int n = rc == PCOLL_OK ? c->transport->ops->poll(c->transport, &events) : rc;
    for (int i = 0; i < n && rc == PCOLL_OK; i++, happened++)
        rc = communicator_dispatch(c, &events[i]);
    if (n < 0)
        rc = n;
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    communicator_watch_sends(c);
    return happened;
}

int communicator_agree(struct communicator *c, struct agreement *a)
{
    CHECK(a->count > 0);
    CHECK(!c->progress || progress_is_driven(c->progress));
    CHECK(!c->agreements); /* two might be handed up in another order than the calls' */
    atomic_store(&a->done, false);
    int rc = c->transport->ops->agree(c->transport, a->values, a->count, a->op,
                                      (uint64_t)(uintptr_t)a | agreement_bit);
    if (rc != PCOLL_OK)
        return communicator_fail(c, rc);
    c->agreements++;
    if (c->progress)
        progress_unrung(c->progress, 1);
    return PCOLL_OK;
}

/* The queue of those that close, and the votes on it; see communicator.h. */

static const int64_t vote_again_after = 5000000; /* ns */

static int communicator_vote(struct communicator *c)
{
    CHECK(!c->closing.voting && !c->closing.turn);
    struct closings *closing = &c->closing;
    uint64_t *ballot = calloc(c->capacity, sizeof *ballot);
    if (!ballot)
        return fail(PCOLL_ENOMEM, "no memory to close a handle");
    free(closing->ballot);
    closing->ballot = ballot;
    closing->voting = true;
    for (struct object *p = closing->first; p; p = p->next_closing)
        ballot[p->slot] = 1;
    closing->agreement = (struct agreement){.values = ballot,
                                            .count = (int)c->capacity,
                                            .op = AGREE_SUM,
                                            .object = &closing->base};
    return communicator_agree(c, &closing->agreement);
}

/* The first that all have voted for leaves the queue. */
static struct object *communicator_choose_closing(struct communicator *c)
{
    struct object **best = NULL;
    for (struct object **at = &c->closing.first; *at; at = &(*at)->next_closing)
        if (c->closing.ballot[(*at)->slot] == c->transport->living &&
            (!best || (*at)->slot < (*best)->slot))
            best = at;
    struct object *p = best ? *best : NULL;
    if (p)
        *best = p->next_closing;
    return p;
}

/* The vote is over. */
static int communicator_begin_turn(struct communicator *c)
{
    CHECK(atomic_load(&c->closing.agreement.done));
    struct closings *closing = &c->closing;
    closing->voting = false;
    closing->turn = communicator_choose_closing(c);
    if (closing->turn)
        return closing->turn->ops->begin_close(closing->turn);
    communicator_alarm(c, &closing->base, communicator_now(c) + vote_again_after);
    return PCOLL_OK;
}

static int communicator_run_closing(struct object *p)
{
    CHECK(((struct closings *)p)->communicator);
    struct closings *closing = (struct closings *)p;
    struct communicator *c = closing->communicator;
    return closing->voting ? communicator_begin_turn(c) : communicator_vote(c);
}

static const struct object_ops communicator_closing_ops = {
    .run = communicator_run_closing};

int communicator_close(struct communicator *c, struct object *p)
{
    CHECK(!c->progress || progress_is_driven(c->progress));
    CHECK(!atomic_load(&p->closed));
    CHECK(c->objects[p->slot] == p);
    struct closings *closing = &c->closing;
    if (!closing->communicator) {
        closing->communicator = c;
        closing->base = object_init(&communicator_closing_ops);
        communicator_attach(c, &closing->base);
    }
    struct object **end = &closing->first;
    for (; *end; end = &(*end)->next_closing)
        CHECK(*end != p);
    *end = p;
    p->next_closing = NULL;
    atomic_fetch_add(&c->closings, 1);
    bool waits = closing->base.alarm != INT64_MAX; /* for the time to vote again */
    bool busy = closing->turn || closing->voting || waits;
    return busy ? PCOLL_OK : communicator_vote(c);
}

int communicator_closed(struct communicator *c, struct object *p)
{
    CHECK(c->closing.turn == p);
    CHECK(!atomic_load(&p->closed));
    CHECK(atomic_load(&c->closings) > 0);
    c->closing.turn = NULL;
    atomic_store(&p->closed, true); /* its owner may free it when the driver is out */
    atomic_fetch_sub(&c->closings, 1);
    if (c->progress)
        progress_wake_waiters(c->progress);
    return c->closing.first ? communicator_vote(c) : PCOLL_OK;
}

/* Windows that nobody uses any more. */

static void communicator_end_window(struct leftover *l)
{
    struct spent_window *spent = (struct spent_window *)l;
    spent->window->ops->destroy(spent->window);
    free(spent);
}

void window_spend(struct communicator *c, struct window *w, struct spent_window **spent)
{
    CHECK(w && *spent);
    w->ops->retire(w);
    **spent = (struct spent_window){.base.end = communicator_end_window, .window = w};
    communicator_leave(c, &(*spent)->base);
    *spent = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See communicator.h. */
#include "runtime/communicator.h"

#include <stdlib.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "base/clock.h"

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
    c->alarm = c->closing.vote_at = INT64_MAX;
    lock_init(&c->notified_mutex, LOCK_NOTIFIED);
    *out = c;
    return PCOLL_OK;
}

void communicator_spend_window(struct communicator *c, struct window *w)
{
    CHECK(!c->progress || progress_is_driven(c->progress));
    w->ops->retire(w);
    struct window **end = &c->spent;
    while (*end)
        end = &(*end)->next;
    *end = w;
}

void communicator_free_windows(struct communicator *c)
{
    CHECK(!atomic_load(&c->closings) || atomic_load(&c->failure));
    for (struct window *w; (w = c->spent);) {
        c->spent = w->next;
        w->ops->destroy(w);
    }
}

/* Pending sends and agreements are not polled any more. */
static void communicator_forget_unrung(struct communicator *c)
{
    for (; c->agreements && c->progress; c->agreements--)
        progress_unrung(c->progress, -1);
    if (c->sends_pending)
        progress_unrung(c->progress, -1);
    c->sends_pending = false;
}

/* After a failure leak it: requests may still point into buffers, and MPI would wait for them. */
void communicator_end_transport(struct communicator *c)
{
    CHECK(!c->transport || !c->closing.voting || atomic_load(&c->failure));
    if (c->transport && atomic_load(&c->failure) == PCOLL_OK) {
        communicator_free_windows(c);
        c->transport->ops->destroy(c->transport);
    }
    c->transport = NULL;
    communicator_forget_unrung(c);
}

void communicator_destroy(struct communicator **at)
{
    struct communicator *c = *at;
    communicator_end_transport(c);
    lock_destroy(&c->notified_mutex);
    free(c->objects);
    free(c->first_failure);
    if (atomic_load(&c->failure) == PCOLL_OK) /* Otherwise MPI may still write to it. */
        free(c->closing.ballot);
    free(c);
    *at = NULL;
}

/* Recoveries. */

static void communicator_set_alarm(struct communicator *c, int64_t at)
{
    c->alarm = at;
    c->source.alarm_us = at == INT64_MAX ? at : at / 1000 + 1;
}

void communicator_forget(struct communicator *c)
{
    progress_lock(c->progress);
    communicator_forget_unrung(c);
    progress_unlock(c->progress);
}

/* Leave the old transport. The successors vote again on what closes. */
static void communicator_leave_transport(struct communicator *c)
{
    communicator_forget_unrung(c);
    for (uint32_t i = 0; i < c->capacity; i++)
        if (c->objects[i])
            c->objects[i]->closing = false;
    c->closing.turn = NULL;
    c->closing.voting = false;
    c->closing.ballot = NULL; /* MPI may still write to it. */
    c->closing.vote_at = INT64_MAX;
    atomic_store(&c->closings, 0);
}

void communicator_abandon(struct communicator *c)
{
    CHECK(!c->handles);
    progress_lock(c->progress);
    communicator_leave_transport(c);
    c->transport = NULL;
    progress_unlock(c->progress);
}

void communicator_take_over(struct communicator *c, struct communicator *from)
{
    CHECK(!atomic_load(&from->closings) && !from->agreements);
    progress_lock(c->progress);
    communicator_leave_transport(c);
    free(c->objects);
    c->transport = from->transport;
    c->source.off_node = from->source.off_node;
    c->objects = from->objects;
    c->capacity = from->capacity;
    c->watched = from->watched;
    c->sends_pending = from->sends_pending;
    lock_take(&c->notified_mutex);
    for (struct object *p = atomic_load(&c->notified); p; p = p->next_notified)
        p->notified = false; /* The object may live on; it is run anyway. */
    atomic_store(&c->notified, atomic_exchange(&from->notified, NULL));
    lock_release(&c->notified_mutex);
    communicator_set_alarm(c, from->alarm);
    /* Applications may ask the domains of the successors, which know `from`, for the time until
     * the domains are told of `c`. So `from` keeps a pointer to the transport, which `c` owns. */
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
        if ((c->first_failure = malloc(sizeof *c->first_failure)))
            *c->first_failure = fail_keep(code);
        atomic_store(&c->failure, code);
        if (c->progress)
            progress_wake_waiters(c->progress);
    }
    return code;
}

int communicator_fail_undriven(struct communicator *c, int code)
{
    struct failure own = fail_keep(code);
    progress_lock(c->progress);
    communicator_fail(c, code);
    progress_unlock(c->progress); /* Driving may change this thread's error. */
    return fail_again(&own);
}

/* Slots. */

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
    uint32_t capacity = c->capacity ? c->capacity : 8;
    if (slots <= c->capacity)
        return PCOLL_OK;
    while (capacity < slots)
        capacity *= 2;
    struct object **objects = realloc(c->objects, capacity * sizeof *objects);
    if (!objects)
        return fail(PCOLL_ENOMEM, "no memory for %u handles", capacity);
    for (uint32_t i = c->capacity; i < capacity; i++)
        objects[i] = NULL;
    c->objects = objects;
    c->capacity = capacity;
    return PCOLL_OK;
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

void communicator_unregister(struct communicator *c, uint32_t slot)
{
    CHECK(slot < c->capacity && c->objects[slot] && c->objects[slot]->slot == slot);
    struct object *p = c->objects[slot], **at = &c->watched;
    while (*at && *at != p)
        at = &(*at)->next_watched;
    if (*at)
        *at = p->next_watched;
    lock_take(&c->notified_mutex);
    struct object *before = atomic_load(&c->notified);
    if (before == p)
        atomic_store(&c->notified, p->next_notified);
    while (before && before->next_notified != p)
        before = before->next_notified;
    if (before)
        before->next_notified = p->next_notified;
    lock_release(&c->notified_mutex);
    for (uint32_t i = 0; i < p->slots; i++)
        c->objects[slot + i] = NULL;
    c->handles--;
}

static struct object *communicator_object_at(const struct communicator *c,
                                             uint32_t slot)
{
    return slot < c->capacity ? c->objects[slot] : NULL;
}

/* Notifications. */

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

static struct object *communicator_next_notified(struct communicator *c)
{
    if (!atomic_load(&c->notified)) /* A thread that notifies later drives again. */
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

/* Alarms. */

int64_t communicator_now(const struct communicator *c)
{
    return c->transport->ops->now(c->transport);
}

static void communicator_wake_at(struct communicator *c, int64_t at)
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
    if (p->alarm <= at)
        return;
    p->alarm = at;
    communicator_wake_at(c, at);
}

/* Agreements. */

/* Cookies of data messages are slot and operation; an agreement's cookie is its address. */
static uint64_t const agreement_bit = (uint64_t)1 << 63;

int communicator_agree(struct communicator *c, struct agreement *a)
{
    CHECK(a->count > 0);
    CHECK(!c->progress || progress_is_driven(c->progress));
    CHECK(!c->agreements); /* Two could complete in the wrong order. */
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

/* Closing. */

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
    closing->counted = 0;
    closing->some = false;
    for (uint32_t i = 0; i < c->capacity; i++)
        ballot[i] = c->objects[i] && c->objects[i]->slot == i && c->objects[i]->closing;
    closing->agreement = (struct agreement){
        .values = ballot, .count = (int)c->capacity, .op = AGREE_SUM};
    return communicator_agree(c, &closing->agreement);
}

/* Count the votes. The objects that all ranks have voted for close one after the other, by their
 * slots. Vote again when they have, or a little later if there is none. */
static int communicator_take_turns(struct communicator *c)
{
    struct closings *closing = &c->closing;
    int rc = PCOLL_OK;
    CHECK(atomic_load(&closing->agreement.done) && !closing->turn);
    closing->taking = true;
    while (closing->counted < closing->agreement.count && !closing->turn &&
           rc == PCOLL_OK) {
        int slot = closing->counted++;
        struct object *p = c->objects[slot];
        if (!p || !p->closing || closing->ballot[slot] != c->transport->living)
            continue;
        p->closing = false;
        closing->turn = p;
        closing->some = true;
        rc = p->ops->begin_close(p);
    }
    closing->taking = false;
    if (closing->turn || !atomic_load(&c->closings) || rc != PCOLL_OK)
        return rc;
    if (closing->some)
        return communicator_vote(c);
    closing->vote_at = communicator_now(c) + vote_again_after;
    communicator_wake_at(c, closing->vote_at);
    return PCOLL_OK;
}

int communicator_close(struct communicator *c, struct object *p)
{
    CHECK(!c->progress || progress_is_driven(c->progress));
    CHECK(!atomic_load(&p->closed) && !p->closing && c->objects[p->slot] == p);
    struct closings *closing = &c->closing;
    p->closing = true;
    atomic_fetch_add(&c->closings, 1);
    bool waits = closing->vote_at != INT64_MAX; /* For the next vote. */
    bool busy = closing->turn || closing->voting || waits;
    return busy ? PCOLL_OK : communicator_vote(c);
}

int communicator_closed(struct communicator *c, struct object *p)
{
    CHECK(c->closing.turn == p);
    CHECK(!atomic_load(&p->closed) && atomic_load(&c->closings) > 0);
    c->closing.turn = NULL;
    atomic_store(&p->closed, true); /* Its owner may free it when the driver is out. */
    atomic_fetch_sub(&c->closings, 1);
    if (c->progress)
        progress_wake_waiters(c->progress);
    return c->closing.taking ? PCOLL_OK : communicator_take_turns(c);
}

/* Polling. */

/* Run the objects whose time has come, and vote if it is the time. Keep the other alarms. */
static int communicator_run_alarms(struct communicator *c, int *happened)
{
    int64_t now = c->alarm == INT64_MAX ? 0 : communicator_now(c);
    int rc = PCOLL_OK;
    if (now < c->alarm)
        return PCOLL_OK;
    communicator_set_alarm(c, INT64_MAX);
    for (uint32_t i = 0; i < c->capacity && rc == PCOLL_OK; i++) {
        struct object *p = c->objects[i];
        if (p && p->alarm <= now) {
            p->alarm = INT64_MAX;
            p->in_vain = false;
            rc = p->ops->run(p);
            *happened += !p->in_vain; /* Otherwise the driver would not rest. */
        } else if (p && p->alarm < c->alarm)
            communicator_set_alarm(c, p->alarm);
    }
    if (c->closing.vote_at <= now) {
        c->closing.vote_at = INT64_MAX;
        ++*happened;
        return rc ?: communicator_vote(c);
    }
    if (c->closing.vote_at < c->alarm)
        communicator_set_alarm(c, c->closing.vote_at);
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
    if (a == &c->closing.agreement) {
        c->closing.voting = false;
        return communicator_take_turns(c);
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
        return p && p->ops->done
                   ? p->ops->done(p, (int)(e->cookie & UINT32_MAX), e->bytes)
                   : fail(PCOLL_EPROTOCOL,
                          "a message for a handle that does not exist");
    case TRANSPORT_CONTROL:
        p = communicator_object_at(c, e->control.handle);
        if (p && !p->ops->control)
            return fail(PCOLL_EPROTOCOL,
                        "rank %u sent a control message of kind %u to slot %u, which "
                        "takes none",
                        e->source, e->control.kind, p->slot);
        return p ? p->ops->control(p, e->source, &e->control) : PCOLL_OK;
    }
    return PCOLL_OK;
}

int communicator_poll(struct communicator *c)
{
    CHECK(!c->progress || progress_is_driven(c->progress));
    if (atomic_load(&c->failure) != PCOLL_OK || outage_now(c->outage))
        return 0;
    struct object *p;
    const struct transport_event *events;
    int happened = 0, rc = PCOLL_OK;
    for (; rc == PCOLL_OK && (p = communicator_next_notified(c)); happened++)
        rc = p->ops->run(p);
    for (p = c->watched; p && rc == PCOLL_OK; p = p->next_watched)
        if (p->ops->attention(p)) {
            rc = p->ops->run(p);
            happened++;
        }
    rc = rc ?: communicator_run_alarms(c, &happened);
    int n = rc ?: c->transport->ops->poll(c->transport, &events);
    rc = n < 0 ? n : PCOLL_OK;
    for (int i = 0; i < n && rc == PCOLL_OK; i++, happened++)
        rc = communicator_dispatch(c, &events[i]);
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    /* While sends are pending, some thread has to poll without being rung. */
    bool pending = c->transport->ops->pending(c->transport) > 0;
    if (pending != c->sends_pending && c->progress) {
        c->sends_pending = pending;
        progress_unrung(c->progress, pending ? 1 : -1);
    }
    return happened;
}

/* Outages. */

enum { OUTAGE_PATIENCE_NS = 500000000 };

static struct lock outage_mutex = LOCK_INIT(LOCK_FAILURE);
static pthread_cond_t outage_changed; /* Its clock is the monotonic one. */
static pthread_once_t outage_once = PTHREAD_ONCE_INIT;
static struct outage *outage_begun; /* The outages that have begun and not ended. */
static uint64_t outage_numbers;

static void outage_make_condition(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&outage_changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void outage_init(struct outage *o)
{
    pthread_once(&outage_once, outage_make_condition);
    lock_take(&outage_mutex);
    *o = (struct outage){.number = ++outage_numbers};
    lock_release(&outage_mutex);
    gate_init(&o->gate, LOCK_COMMUNICATOR);
}

bool outage_begin(struct outage *o, const struct failed_ranks *who)
{
    lock_take(&outage_mutex);
    bool recovers = !o->ceased;
    if (recovers && !gate_is_closed(&o->gate)) {
        o->who = *who;
        o->began = clock_ns();
        o->next = outage_begun;
        outage_begun = o;
        gate_close(&o->gate);
        pthread_cond_broadcast(&outage_changed);
    }
    lock_release(&outage_mutex);
    return recovers;
}

bool outage_now(struct outage *o)
{
    return o && gate_is_closed(&o->gate);
}

bool outage_since(struct outage *o, uint32_t epoch)
{
    CHECK(o || !epoch);
    return o && (gate_is_closed(&o->gate) || atomic_load(&o->epoch) != epoch);
}

uint32_t outage_epoch(struct outage *o)
{
    return o ? atomic_load(&o->epoch) : 0;
}

void outage_enter(struct outage *o)
{
    if (o)
        gate_enter(&o->gate);
}

bool outage_try_enter(struct outage *o)
{
    return !o || gate_try_enter(&o->gate);
}

void outage_leave(struct outage *o)
{
    if (o)
        gate_leave(&o->gate);
}

int outage_error(struct outage *o)
{
    lock_take(&outage_mutex);
    struct failed_ranks who = o->who;
    lock_release(&outage_mutex);
    return fail_ranks(&who);
}

uint32_t outage_times(struct outage *o, int64_t *began, int64_t *ended)
{
    lock_take(&outage_mutex);
    uint32_t epoch = atomic_load(&o->epoch);
    *began = o->began;
    *ended = o->ended;
    lock_release(&outage_mutex);
    return epoch;
}

bool outage_await(struct outage *o)
{
    lock_take(&outage_mutex);
    while (!gate_is_closed(&o->gate) && !o->ceased)
        pthread_cond_wait(&outage_changed, &outage_mutex.mutex);
    bool begun = gate_is_closed(&o->gate);
    lock_release(&outage_mutex);
    return begun;
}

void outage_take_turn(struct outage *o)
{
    CHECK(outage_now(o) && !o->has_turn);
    struct timespec until = clock_until(OUTAGE_PATIENCE_NS);
    lock_take(&outage_mutex);
    for (struct outage *other = outage_begun; other;)
        if (other == o || (!other->has_turn && other->number > o->number))
            other = other->next;
        else if (pthread_cond_timedwait(&outage_changed, &outage_mutex.mutex, &until))
            break;
        else
            other = outage_begun;
    o->has_turn = true;
    lock_release(&outage_mutex);
}

void outage_end(struct outage *o)
{
    CHECK(outage_now(o));
    lock_take(&outage_mutex);
    struct outage **at = &outage_begun;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    o->has_turn = false;
    o->ended = clock_ns();
    atomic_fetch_add(&o->epoch, 1);
    gate_open(&o->gate);
    pthread_cond_broadcast(&outage_changed);
    lock_release(&outage_mutex);
}

void outage_cease(struct outage *o)
{
    lock_take(&outage_mutex);
    while (gate_is_closed(&o->gate))
        pthread_cond_wait(&outage_changed, &outage_mutex.mutex);
    o->ceased = true;
    pthread_cond_broadcast(&outage_changed);
    lock_release(&outage_mutex);
}

void outage_give_up(struct outage *o)
{
    CHECK(outage_now(o));
    lock_take(&outage_mutex);
    o->ceased = true;
    lock_release(&outage_mutex);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of one communicator: table, dispatch, kicks. */
#include "context.h"

#include <stdio.h>
#include <stdlib.h>

#include "../base/error.h"
#include "../algorithms/algorithms.h"

/* Cookies of data messages are slot and operation; agreements have their address. */
static uint64_t const agreement_bit = (uint64_t)1 << 63;

static int poll_source(struct progress_source *source)
{
    return context_poll((struct context *)source);
}

int context_create(struct transport *t, struct progress *p, struct context **out)
{
    struct context *c = calloc(1, sizeof *c);
    if (!c)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    c->source = (struct progress_source){
        .poll = poll_source, .off_node = t->off_node, .alarm_us = INT64_MAX};
    c->transport = t;
    c->progress = p;
    c->alarm = c->closing.vote_at = INT64_MAX;
    pthread_mutex_init(&c->kicked_mutex, NULL);
    *out = c;
    return PCOLL_OK;
}

/* After a failure the transport's requests may still point into buffers, and MPI would
 * wait for them: it is better lost. */
void context_leave(struct context *c, struct leftover *l)
{
    struct leftover **end = &c->leftovers;
    while (*end)
        end = &(*end)->next;
    l->next = NULL;
    *end = l;
}

void context_end_leftovers(struct context *c)
{
    while (c->leftovers) {
        struct leftover *l = c->leftovers;
        c->leftovers = l->next;
        l->end(l);
    }
}

void context_end_transport(struct context *c)
{
    if (c->transport && atomic_load(&c->failure) == PCOLL_OK) {
        context_end_leftovers(c);
        c->transport->ops->destroy(c->transport);
    }
    c->transport = NULL;
    if (c->sends_pending)
        progress_unrung(c->progress, -1);
    c->sends_pending = false;
}

void context_destroy(struct context **at)
{
    struct context *c = *at;
    context_end_transport(c);
    pthread_mutex_destroy(&c->kicked_mutex);
    free(c->participants);
    if (atomic_load(&c->failure) == PCOLL_OK) /* else MPI may still write to it */
        free(c->closing.ballot);
    free(c);
    *at = NULL;
}

static int grow(struct context *c)
{
    uint32_t capacity = c->capacity ? 2 * c->capacity : 8;
    struct participant **participants =
        realloc(c->participants, capacity * sizeof *participants);
    if (!participants)
        return fail(PCOLL_ENOMEM, "no memory for %u handles", capacity);
    for (uint32_t i = c->capacity; i < capacity; i++)
        participants[i] = NULL;
    c->participants = participants;
    c->capacity = capacity;
    return PCOLL_OK;
}

int context_free_slots(struct context *c, uint32_t from, uint32_t slots, uint32_t *slot)
{
    uint32_t most = c->transport->tags / DATA_EDGES, first = from;
    for (uint32_t i = from; i < c->capacity && i - first < slots; i++)
        if (c->participants[i])
            first = i + 1;
    if (slots > most || first > most - slots)
        return fail(PCOLL_EINVAL,
                    "this communicator has no tags left: its handles and schedules can "
                    "have %u slots of %d tags at once",
                    most, DATA_EDGES);
    *slot = first;
    return PCOLL_OK;
}

int context_register(struct context *c, struct participant *p, uint32_t slot)
{
    while (slot + p->slots > c->capacity) {
        int rc = grow(c);
        if (rc != PCOLL_OK)
            return rc;
    }
    p->slot = slot;
    for (uint32_t i = 0; i < p->slots; i++)
        c->participants[slot + i] = p;
    if (p->watched) {
        p->next_watched = c->watched;
        c->watched = p;
    }
    c->handles++;
    return PCOLL_OK;
}

static void forget_kick(struct context *c, struct participant *p)
{
    pthread_mutex_lock(&c->kicked_mutex);
    struct participant *before = NULL, *at = atomic_load(&c->kicked);
    for (; at && at != p; at = at->next_kicked)
        before = at;
    if (at && before)
        before->next_kicked = p->next_kicked;
    else if (at)
        atomic_store(&c->kicked, p->next_kicked);
    pthread_mutex_unlock(&c->kicked_mutex);
}

static void forget_watched(struct context *c, struct participant *p)
{
    struct participant **at = &c->watched;
    while (*at && *at != p)
        at = &(*at)->next_watched;
    if (*at)
        *at = p->next_watched;
}

void context_unregister(struct context *c, uint32_t slot)
{
    struct participant *p = c->participants[slot];
    forget_kick(c, p);
    forget_watched(c, p);
    for (uint32_t i = 0; i < p->slots; i++)
        c->participants[slot + i] = NULL;
    c->handles--;
}

void context_kick(struct context *c, struct participant *p)
{
    pthread_mutex_lock(&c->kicked_mutex);
    if (!p->kicked) {
        p->kicked = true;
        p->next_kicked = atomic_load(&c->kicked);
        atomic_store(&c->kicked, p);
    }
    pthread_mutex_unlock(&c->kicked_mutex);
    if (c->progress)
        progress_kick(c->progress);
}

static struct participant *next_kicked(struct context *c)
{
    if (!atomic_load(&c->kicked)) /* one that kicks after this counts `kicks` up */
        return NULL;
    pthread_mutex_lock(&c->kicked_mutex);
    struct participant *p = atomic_load(&c->kicked);
    if (p) {
        atomic_store(&c->kicked, p->next_kicked);
        p->kicked = false;
    }
    pthread_mutex_unlock(&c->kicked_mutex);
    return p;
}

/* Run those that others have asked for. */
static int look_at_watched(struct context *c, int *happened)
{
    int rc = PCOLL_OK;
    for (struct participant *p = c->watched; p && rc == PCOLL_OK; p = p->next_watched) {
        if (!p->ops->attention(p))
            continue;
        rc = p->ops->run(p);
        ++*happened;
    }
    return rc;
}

static struct participant *find(struct context *c, uint32_t slot)
{
    return slot < c->capacity ? c->participants[slot] : NULL;
}

static int finish_agreement(struct context *c, struct agreement *a)
{
    struct participant *p = a->participant;
    bool is_vote = a == &c->closing.agreement;
    atomic_store(&a->done, true);
    if (c->progress) {
        progress_unrung(c->progress, -1);
        progress_notify(c->progress);
    }
    if (is_vote)
        return closing_voted(c);
    return p ? p->ops->run(p) : PCOLL_OK;
}

static int dispatch(struct context *c, const struct transport_event *e)
{
    struct participant *p;
    switch (e->kind) {
    case TRANSPORT_AGREED:
        return finish_agreement(
            c, (struct agreement *)(uintptr_t)(e->cookie & ~agreement_bit));
    case TRANSPORT_DONE:
        p = find(c, (uint32_t)(e->cookie >> 32));
        return p ? p->ops->done(p, (int)(e->cookie & UINT32_MAX), e->bytes)
                 : fail(PCOLL_EPROTOCOL, "a message for a handle that does not exist");
    case TRANSPORT_CONTROL:
        p = find(c, e->control.handle);
        return p ? p->ops->control(p, e->source, &e->control) : PCOLL_OK;
    }
    return PCOLL_OK;
}

/* While sends are pending, someone has to come back without being rung. */
static void watch_sends(struct context *c)
{
    bool pending = c->transport->ops->pending(c->transport) > 0;
    if (pending == c->sends_pending || !c->progress)
        return;
    c->sends_pending = pending;
    progress_unrung(c->progress, pending ? 1 : -1);
}

int64_t context_now(const struct context *c)
{
    return c->transport->ops->now(c->transport);
}

static void set_alarm(struct context *c, int64_t at)
{
    c->alarm = at;
    c->source.alarm_us = at == INT64_MAX ? at : at / 1000 + 1;
}

void context_wake_at(struct context *c, int64_t at)
{
    if (c->transport->ops->alarm)
        c->transport->ops->alarm(c->transport, at);
    if (at < c->alarm)
        set_alarm(c, at);
}

void context_alarm(struct context *c, struct participant *p, int64_t at)
{
    if (p->alarm <= at)
        return;
    p->alarm = at;
    context_wake_at(c, at);
}

/* Run those whose time has come. */
static int ring_alarms(struct context *c, int *happened)
{
    int64_t now = c->alarm == INT64_MAX ? 0 : context_now(c);
    int rc = PCOLL_OK;
    if (now < c->alarm)
        return PCOLL_OK;
    set_alarm(c, INT64_MAX);
    for (uint32_t i = 0; i < c->capacity && rc == PCOLL_OK; i++) {
        struct participant *p = c->participants[i];
        if (!p)
            continue;
        bool due = p->alarm <= now;
        if (due) {
            p->alarm = INT64_MAX;
            rc = p->ops->run(p);
            ++*happened;
        } else if (p->alarm < c->alarm)
            set_alarm(c, p->alarm);
    }
    if (rc == PCOLL_OK && c->closing.vote_at != INT64_MAX)
        rc = closing_look(c, now);
    return rc;
}

int context_poll(struct context *c)
{
    if (atomic_load(&c->failure) != PCOLL_OK)
        return 0;
    const struct transport_event *events;
    int happened = 0, rc = PCOLL_OK;
    for (struct participant *p; rc == PCOLL_OK && (p = next_kicked(c)); happened++)
        rc = p->ops->run(p);
    if (rc == PCOLL_OK)
        rc = look_at_watched(c, &happened);
    if (rc == PCOLL_OK)
        rc = ring_alarms(c, &happened);
    int n = rc == PCOLL_OK ? c->transport->ops->poll(c->transport, &events) : rc;
    for (int i = 0; i < n && rc == PCOLL_OK; i++, happened++)
        rc = dispatch(c, &events[i]);
    if (n < 0)
        rc = n;
    if (rc != PCOLL_OK)
        context_fail(c, rc);
    watch_sends(c);
    return happened;
}

int context_agree(struct context *c, struct agreement *a)
{
    atomic_store(&a->done, false);
    int rc = c->transport->ops->agree(c->transport, a->values, a->count, a->op,
                                      (uint64_t)(uintptr_t)a | agreement_bit);
    if (rc != PCOLL_OK)
        return context_fail(c, rc);
    if (c->progress)
        progress_unrung(c->progress, 1);
    return PCOLL_OK;
}

int context_fail(struct context *c, int code)
{
    if (atomic_load(&c->failure) == PCOLL_OK) {
        snprintf(c->failure_text, sizeof c->failure_text, "%s", pcoll_last_error());
        atomic_store(&c->failure, code);
        if (c->progress)
            progress_notify(c->progress);
    }
    return code;
}

int context_check(struct context *c)
{
    int code = atomic_load(&c->failure);
    return code == PCOLL_OK ? code : fail(code, "%s", c->failure_text);
}

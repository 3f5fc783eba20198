/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of one communicator: table, dispatch, kicks. */
#include "context.h"

#include <stdio.h>
#include <stdlib.h>

#include "../base/error.h"
#include "vertex.h"

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
    c->alarm = INT64_MAX;
    pthread_mutex_init(&c->kicked_mutex, NULL);
    *out = c;
    return PCOLL_OK;
}

/* After a failure the transport's requests may still point into buffers, and MPI would
 * wait for them: it is better lost. */
void context_end_transport(struct context *c)
{
    if (c->transport && atomic_load(&c->failure) == PCOLL_OK)
        c->transport->ops->destroy(c->transport);
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
    free(c->vertices);
    free(c);
    *at = NULL;
}

static int grow(struct context *c)
{
    uint32_t capacity = c->capacity ? 2 * c->capacity : 8;
    struct vertex **vertices = realloc(c->vertices, capacity * sizeof *vertices);
    if (!vertices)
        return fail(PCOLL_ENOMEM, "no memory for %u handles", capacity);
    for (uint32_t i = c->capacity; i < capacity; i++)
        vertices[i] = NULL;
    c->vertices = vertices;
    c->capacity = capacity;
    return PCOLL_OK;
}

int context_free_slot(struct context *c, uint32_t from, uint32_t *slot)
{
    uint32_t i = from;
    while (i < c->capacity && c->vertices[i])
        i++;
    if (i >= c->transport->tags / DATA_EDGES)
        return fail(
            PCOLL_EINVAL,
            "this communicator has no tags left: it can have %u handles at once",
            c->transport->tags / DATA_EDGES);
    *slot = i;
    return PCOLL_OK;
}

int context_register(struct context *c, struct vertex *v, uint32_t slot)
{
    while (slot >= c->capacity) {
        int rc = grow(c);
        if (rc != PCOLL_OK)
            return rc;
    }
    v->slot = slot;
    c->vertices[slot] = v;
    c->handles++;
    return PCOLL_OK;
}

static void forget_kick(struct context *c, struct vertex *v)
{
    pthread_mutex_lock(&c->kicked_mutex);
    struct vertex *before = NULL, *at = atomic_load(&c->kicked);
    for (; at && at != v; at = at->next_kicked)
        before = at;
    if (at && before)
        before->next_kicked = v->next_kicked;
    else if (at)
        atomic_store(&c->kicked, v->next_kicked);
    pthread_mutex_unlock(&c->kicked_mutex);
}

void context_unregister(struct context *c, uint32_t slot)
{
    forget_kick(c, c->vertices[slot]);
    c->vertices[slot] = NULL;
    c->handles--;
}

void context_kick(struct context *c, struct vertex *v)
{
    pthread_mutex_lock(&c->kicked_mutex);
    if (!v->kicked) {
        v->kicked = true;
        v->next_kicked = atomic_load(&c->kicked);
        atomic_store(&c->kicked, v);
    }
    pthread_mutex_unlock(&c->kicked_mutex);
    if (c->progress)
        progress_kick(c->progress);
}

static struct vertex *next_kicked(struct context *c)
{
    if (!atomic_load(&c->kicked)) /* one that kicks after this counts `kicks` up */
        return NULL;
    pthread_mutex_lock(&c->kicked_mutex);
    struct vertex *v = atomic_load(&c->kicked);
    if (v) {
        atomic_store(&c->kicked, v->next_kicked);
        v->kicked = false;
    }
    pthread_mutex_unlock(&c->kicked_mutex);
    return v;
}

static struct vertex *find(struct context *c, uint32_t slot)
{
    return slot < c->capacity ? c->vertices[slot] : NULL;
}

static int finish_agreement(struct context *c, struct agreement *a)
{
    struct vertex *v = a->vertex;
    atomic_store(&a->done, true);
    if (c->progress) {
        progress_unrung(c->progress, -1);
        progress_notify(c->progress);
    }
    return v ? vertex_run(v) : PCOLL_OK;
}

static int dispatch(struct context *c, const struct transport_event *e)
{
    struct vertex *v;
    switch (e->kind) {
    case TRANSPORT_AGREED:
        return finish_agreement(
            c, (struct agreement *)(uintptr_t)(e->cookie & ~agreement_bit));
    case TRANSPORT_DONE:
        v = find(c, (uint32_t)(e->cookie >> 32));
        return v ? vertex_done(v, (int)(e->cookie & UINT32_MAX), e->bytes)
                 : fail(PCOLL_EPROTOCOL, "a message for a handle that does not exist");
    case TRANSPORT_CONTROL:
        v = find(c, e->control.handle);
        return v ? vertex_control(v, e->source, &e->control) : PCOLL_OK;
    }
    return PCOLL_OK;
}

/* While sends are pending, someone has to come back without being rung. */
static void watch_sends(struct context *c)
{
    bool pending = c->transport->ops->pending_sends(c->transport) > 0;
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

void context_alarm(struct context *c, struct vertex *v, int64_t at)
{
    if (v->alarm <= at)
        return;
    v->alarm = at;
    if (c->transport->ops->alarm)
        c->transport->ops->alarm(c->transport, at);
    if (at < c->alarm)
        set_alarm(c, at);
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
        struct vertex *v = c->vertices[i];
        if (!v)
            continue;
        bool due = v->alarm <= now;
        if (due) {
            v->alarm = INT64_MAX;
            rc = vertex_run(v);
            ++*happened;
        } else if (v->alarm < c->alarm)
            set_alarm(c, v->alarm);
    }
    return rc;
}

int context_poll(struct context *c)
{
    if (atomic_load(&c->failure) != PCOLL_OK)
        return 0;
    const struct transport_event *events;
    int happened = 0, rc = PCOLL_OK;
    for (struct vertex *v; rc == PCOLL_OK && (v = next_kicked(c)); happened++)
        rc = vertex_run(v);
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

int context_close_vertex(struct context *c, struct vertex *v)
{
    struct vertex **end = &c->closing;
    while (*end)
        end = &(*end)->next_closing;
    *end = v;
    v->next_closing = NULL;
    atomic_fetch_add(&c->closings, 1);
    return c->closing == v ? vertex_begin_close(v) : PCOLL_OK;
}

int context_vertex_closed(struct context *c, struct vertex *v)
{
    c->closing = v->next_closing;
    atomic_fetch_sub(&c->closings, 1);
    if (c->progress)
        progress_notify(c->progress);
    return c->closing ? vertex_begin_close(c->closing) : PCOLL_OK;
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

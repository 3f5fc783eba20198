/* SPDX-License-Identifier: Apache-2.0 */
/* What happens on a communicator, and whom it concerns. */
#include "base/check.h"
#include "base/error.h"
#include "runtime/communicator.h"

/* Cookies of data messages are slot and operation; agreements have their address. */
static uint64_t const agreement_bit = (uint64_t)1 << 63;

/* Run those that others have asked for. */
static int poll_watched(struct communicator *c, int *happened)
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

static int finish_agreement(struct communicator *c, struct agreement *a)
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

static int dispatch(struct communicator *c, const struct transport_event *e)
{
    struct object *p;
    switch (e->kind) {
    case TRANSPORT_AGREED:
        return finish_agreement(
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
static void watch_sends(struct communicator *c)
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
static int ring(struct communicator *c, struct object *p, int64_t now, int *happened)
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

static int ring_alarms(struct communicator *c, int *happened)
{
    int64_t now = c->alarm == INT64_MAX ? 0 : communicator_now(c);
    int rc = PCOLL_OK;
    if (now < c->alarm)
        return PCOLL_OK;
    communicator_set_alarm(c, INT64_MAX);
    for (uint32_t i = 0; i < c->capacity && rc == PCOLL_OK; i++)
        if (c->objects[i])
            rc = ring(c, c->objects[i], now, happened);
    return rc == PCOLL_OK && c->unslotted ? ring(c, c->unslotted, now, happened) : rc;
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
        rc = poll_watched(c, &happened);
    if (rc == PCOLL_OK)
        rc = ring_alarms(c, &happened);
    int n = rc == PCOLL_OK ? c->transport->ops->poll(c->transport, &events) : rc;
    for (int i = 0; i < n && rc == PCOLL_OK; i++, happened++)
        rc = dispatch(c, &events[i]);
    if (n < 0)
        rc = n;
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    watch_sends(c);
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

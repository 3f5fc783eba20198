/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <string.h>

#include "allreduce/control.h"
#include "check.h"

enum { MAX_HANDLES = 4, MAX_OPERATIONS = 4096 };

/* Rounds whose message of an operation, or on an edge, has been sent; one per item is
 * the next at least. */
struct wire {
    struct transport base;
    struct transport *real;
    struct sim *sim;
    struct ledger *ledgers;
    uint32_t handles, duplicate_one_in;
    uint64_t data[MAX_HANDLES][MAX_OPERATIONS];
    uint64_t activation[MAX_HANDLES][MAX_ACTIVATION_EDGES];
};

static struct wire *of(struct transport *t)
{
    return (struct wire *)t;
}

/* The round must be one that this edge, or operation, has not carried yet. */
static void pass_once(const struct wire *w, uint64_t *next, uint64_t round,
                      const char *what, uint32_t by)
{
    INVARIANT("at most once", round >= *next,
              "rank %u sends %s of round %llu by %u, after round %llu", w->base.rank,
              what, (unsigned long long)round, by, (unsigned long long)*next - 1);
    *next = round + 1;
}

void wire_renew(struct transport *wire, struct ledger *ledgers)
{
    struct wire *w = of(wire);
    w->ledgers = ledgers;
    memset(w->data, 0, sizeof w->data);
    memset(w->activation, 0, sizeof w->activation);
}

static int wire_send(struct transport *t, uint32_t peer, uint32_t tag, const void *data,
                     size_t bytes, uint64_t cookie)
{
    struct wire *w = of(t);
    uint32_t slot = tag / DATA_EDGES, operation = cookie & UINT32_MAX;
    INVARIANT("isolation", slot < w->handles, "rank %u sends with tag %u, of slot %u",
              t->rank, tag, slot);
    EXPECT(operation < MAX_OPERATIONS, "operation %u", operation);
    pass_once(w, &w->data[slot][operation], w->ledgers[slot].frozen[t->rank] - 1,
              "data", operation);
    return w->real->ops->send(w->real, peer, tag, data, bytes, cookie);
}

static int wire_recv(struct transport *t, uint32_t peer, uint32_t tag, void *data,
                     size_t capacity, uint64_t cookie)
{
    struct wire *w = of(t);
    return w->real->ops->recv(w->real, peer, tag, data, capacity, cookie);
}

static int pass_control(struct wire *w, uint32_t peer, const struct control *message)
{
    w->ledgers[message->handle].sent[peer]++;
    return w->real->ops->control(w->real, peer, message);
}

static int wire_control(struct transport *t, uint32_t peer,
                        const struct control *message)
{
    struct wire *w = of(t);
    INVARIANT("isolation", message->handle < w->handles,
              "rank %u sends a control message of slot %u", t->rank, message->handle);
    if (message->kind != CONTROL_ACTIVATE)
        return pass_control(w, peer, message);
    pass_once(w, &w->activation[message->handle][message->edge], message->round,
              "an activation", message->edge);
    if (message->edge == 0)
        w->ledgers[message->handle].round[message->round][t->rank].started = true;
    if (w->duplicate_one_in && sim_random(w->sim, w->duplicate_one_in) == 0)
        pass_control(w, peer, message);
    return pass_control(w, peer, message);
}

static int wire_agree(struct transport *t, uint64_t *values, int count,
                      enum agree_op op, uint64_t cookie)
{
    return of(t)->real->ops->agree(of(t)->real, values, count, op, cookie);
}

static int wire_open(struct transport *t, struct channel **channel)
{
    return of(t)->real->ops->open(of(t)->real, channel);
}

static int wire_opened(struct transport *t, struct channel *channel)
{
    return of(t)->real->ops->opened(of(t)->real, channel);
}

static void wire_close(struct transport *t, struct channel *channel)
{
    of(t)->real->ops->close(of(t)->real, channel);
}

static int wire_native(struct transport *t, struct channel *channel,
                       const struct native_call *call, uint64_t cookie)
{
    struct wire *w = of(t);
    uint32_t slot = (uint32_t)(cookie >> 32), operation = cookie & UINT32_MAX;
    INVARIANT("isolation", slot < w->handles, "rank %u calls natively for slot %u",
              t->rank, slot);
    pass_once(w, &w->data[slot][operation], w->ledgers[slot].frozen[t->rank] - 1,
              "a native call", operation);
    return w->real->ops->native(w->real, channel, call, cookie);
}

static int wire_poll(struct transport *t, const struct transport_event **events)
{
    struct wire *w = of(t);
    int count = w->real->ops->poll(w->real, events);
    for (int i = 0; i < count; i++)
        if ((*events)[i].kind == TRANSPORT_CONTROL)
            w->ledgers[(*events)[i].control.handle].received[t->rank]++;
    return count;
}

static int wire_pending_sends(const struct transport *t)
{
    const struct transport *real = ((const struct wire *)t)->real;
    return real->ops->pending(real);
}

static int64_t wire_now(const struct transport *t)
{
    const struct transport *real = ((const struct wire *)t)->real;
    return real->ops->now(real);
}

static void wire_alarm(struct transport *t, int64_t at)
{
    of(t)->real->ops->alarm(of(t)->real, at);
}

static void wire_destroy(struct transport *t)
{
    of(t)->real->ops->destroy(of(t)->real);
    free(t);
}

static const struct transport_ops wire_ops = {.send = wire_send,
                                              .recv = wire_recv,
                                              .control = wire_control,
                                              .agree = wire_agree,
                                              .open = wire_open,
                                              .opened = wire_opened,
                                              .close = wire_close,
                                              .native = wire_native,
                                              .poll = wire_poll,
                                              .pending = wire_pending_sends,
                                              .now = wire_now,
                                              .alarm = wire_alarm,
                                              .destroy = wire_destroy};

struct transport *wire_create(struct sim *s, uint32_t rank, uint32_t handles,
                              uint32_t duplicate_one_in)
{
    struct wire *w = calloc(1, sizeof *w);
    EXPECT(w && handles <= MAX_HANDLES, "no memory for a wire, or too many handles");
    w->real = sim_endpoint(s, rank);
    w->base = *w->real;
    w->base.ops = &wire_ops;
    w->sim = s;
    w->handles = handles;
    w->duplicate_one_in = duplicate_one_in;
    return &w->base;
}

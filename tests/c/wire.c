/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <string.h>

#include "allreduce/control.h"
#include "check.h"

enum { MAX_HANDLES = 4, MAX_OPERATIONS = 4096 };

/* The lowest round that each operation and each activation edge may carry next. */
struct wire {
    struct transport_ops ops; /* first member; some of the ops are ours */
    const struct transport_ops *real;
    struct sim *sim;
    struct ledger *ledgers;
    uint32_t handles, duplicate_one_in;
    uint64_t data[MAX_HANDLES][MAX_OPERATIONS];
    uint64_t activation[MAX_HANDLES][MAX_ACTIVATION_EDGES];
};

static struct wire *of(struct transport *t)
{
    return (struct wire *)t->ops;
}

/* Check that this edge or operation has not carried the round yet. */
static void pass_once(const struct transport *t, uint64_t *next, uint64_t round,
                      const char *what, uint32_t by)
{
    INVARIANT("at most once", round >= *next,
              "rank %u sends %s of round %llu by %u, after round %llu", t->rank, what,
              (unsigned long long)round, by, (unsigned long long)*next - 1);
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
    pass_once(t, &w->data[slot][operation], w->ledgers[slot].frozen[t->rank] - 1,
              "data", operation);
    return w->real->send(t, peer, tag, data, bytes, cookie);
}

static int pass_control(struct transport *t, uint32_t peer,
                        const struct control *message)
{
    of(t)->ledgers[message->handle].sent[peer]++;
    return of(t)->real->control(t, peer, message);
}

static int wire_control(struct transport *t, uint32_t peer,
                        const struct control *message)
{
    struct wire *w = of(t);
    INVARIANT("isolation", message->handle < w->handles,
              "rank %u sends a control message of slot %u", t->rank, message->handle);
    if (message->kind != CONTROL_ACTIVATE)
        return pass_control(t, peer, message);
    pass_once(t, &w->activation[message->handle][message->edge], message->round,
              "an activation", message->edge);
    if (message->edge == 0)
        w->ledgers[message->handle].round[message->round][t->rank].started = true;
    if (w->duplicate_one_in && sim_random(w->sim, w->duplicate_one_in) == 0)
        pass_control(t, peer, message);
    return pass_control(t, peer, message);
}

static int wire_native(struct transport *t, struct channel *channel,
                       const struct native_call *call, uint64_t cookie)
{
    struct wire *w = of(t);
    uint32_t slot = (uint32_t)(cookie >> 32), operation = cookie & UINT32_MAX;
    INVARIANT("isolation", slot < w->handles, "rank %u calls natively for slot %u",
              t->rank, slot);
    pass_once(t, &w->data[slot][operation], w->ledgers[slot].frozen[t->rank] - 1,
              "a native call", operation);
    return w->real->native(t, channel, call, cookie);
}

static int wire_poll(struct transport *t, const struct transport_event **events)
{
    struct wire *w = of(t);
    int count = w->real->poll(t, events);
    for (int i = 0; i < count; i++)
        if ((*events)[i].kind == TRANSPORT_CONTROL)
            w->ledgers[(*events)[i].control.handle].received[t->rank]++;
    return count;
}

static void wire_destroy(struct transport *t)
{
    struct wire *w = of(t);
    t->ops = w->real;
    t->ops->destroy(t);
    free(w);
}

struct transport *wire_create(struct sim *s, uint32_t rank, uint32_t handles,
                              uint32_t duplicate_one_in)
{
    struct wire *w = calloc(1, sizeof *w);
    struct transport *t = sim_endpoint(s, rank);
    EXPECT(w && handles <= MAX_HANDLES, "no memory for a wire, or too many handles");
    EXPECT(t->ops->send != wire_send, "a transport is watched twice");
    w->ops = *(w->real = t->ops);
    w->ops.send = wire_send;
    w->ops.control = wire_control;
    w->ops.native = wire_native;
    w->ops.poll = wire_poll;
    w->ops.destroy = wire_destroy;
    t->ops = &w->ops;
    w->sim = s;
    w->handles = handles;
    w->duplicate_one_in = duplicate_one_in;
    return t;
}

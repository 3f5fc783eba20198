/* SPDX-License-Identifier: Apache-2.0 */
/* How a handle continues when ranks have died; see runtime/recovery.h, and handle.h for its
 * gate. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "allreduce/handle.h"
#include "allreduce/sharing.h"
#include "runtime/recovery.h"
#include "transport/mpi/recovery.h"

static pcoll_handle *of(struct user_object *o)
{
    return (pcoll_handle *)o;
}

void handle_begin_recoverable(pcoll_handle *h)
{
    h->continues = true;
    gate_init(&h->gate.gate, LOCK_HANDLE);
}

void handle_end_recoverable(pcoll_handle *h)
{
    if (h->continues)
        gate_destroy(&h->gate.gate);
}

/* The application stays out between these two. */
static void shut(pcoll_handle *h)
{
    gate_close(&h->gate.gate);
    gate_await_empty(&h->gate.gate);
}

static void reopen(pcoll_handle *h)
{
    gate_open(&h->gate.gate);
}

static void stop(struct user_object *o)
{
    pcoll_handle *h = of(o);
    shut(h);
    h->gate.stopped = true;
    reopen(h);
}

static uint64_t complete(struct user_object *o)
{
    pcoll_handle *h = of(o);
    shut(h);
    uint64_t rounds = handle_member(h).complete;
    reopen(h);
    return rounds;
}

void handle_forget_last(struct handle_gate *g)
{
    free(g->last);
    g->last = NULL;
    g->resumes = NULL;
}

/* Of an attempt that failed: no message of it was ever sent. */
static void forget_successor(struct handle_gate *g)
{
    if (g->successor)
        endpoint_destroy(&g->successor);
    handle_forget_last(g);
}

int handle_fetch_last(struct handle_gate *g, struct communicator *c,
                      const struct recovery_plan *plan, struct endpoint *old,
                      uint64_t own)
{
    const struct round_shape *shape = &g->successor->shape;
    size_t bytes = shape->header_bytes + payload_data_bytes(&shape->payload);
    if (old && plan->complete - own > 1) /* no round is complete without this rank */
        return fail(PCOLL_EPROTOCOL,
                    "the ranks that are left agreed on %llu complete rounds, and this "
                    "one has %llu",
                    (unsigned long long)plan->complete, (unsigned long long)own);
    if (!plan->complete)
        return PCOLL_OK;
    void *message = NULL;
    if (own < plan->complete)
        message = g->last = malloc(bytes);
    else
        message = old->domain->ops->result(old->domain, plan->complete - 1);
    if (!message)
        return fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a round", bytes);
    g->resumes = message;
    int rc = PCOLL_OK;
    if (plan->some_lack)
        rc = mpi_share(c->transport, plan->source, message, bytes);
    if (rc != PCOLL_OK)
        g->last = NULL; /* MPI may still write to it: it is better lost */
    return rc == PCOLL_OK ? round_header_check(message, g->successor->shape.ranks,
                                               plan->complete - 1)
                          : rc;
}

static int rebuild(struct user_object *o, struct communicator *c,
                   const struct recovery_plan *plan)
{
    pcoll_handle *h = of(o);
    struct handle_gate *g = &h->gate;
    struct endpoint *old = h->endpoint;
    pcoll_options options = old->options;
    options.algorithm = (int32_t)old->data.plan.algorithm;
    struct endpoint_spec spec = {.ranks = old->shape.ranks,
                                 .off_node = c->transport->off_node,
                                 .options = &options,
                                 .follows = old,
                                 .failed = c->transport->failed};
    sharing_place(c, &options, &spec);
    forget_successor(g);
    uint64_t own = complete(o);
    int rc = endpoint_create(c, &spec, &g->successor);
    if (rc == PCOLL_OK)
        rc = sharing_settle(c, g->successor, &options);
    if (rc == PCOLL_OK)
        rc = handle_fetch_last(g, c, plan, old, own);
    if (rc != PCOLL_OK)
        return rc;
    g->successor->base.slot = plan->slot;
    shut(h); /* what is the application's own is looked at */
    endpoint_begin_at(g->successor, old, plan->complete, g->resumes);
    reopen(h);
    return PCOLL_OK;
}

/* The application may be filling a slot of the old endpoint. */
static void replace(pcoll_handle *h, struct endpoint *v)
{
    struct endpoint *old = h->endpoint;
    h->endpoint = v;
    atomic_store(&h->base.object, &v->base);
    if (old->options.owned_send && !h->gate.filling)
        h->gate.filling = old;
    else
        handle_bury(h, old);
    if (h->gate.asleep && v->domain->ops->sleeps)
        v->domain->ops->sleeps(v->domain, true);
}

static int inherit(struct user_object *o, struct object **object)
{
    pcoll_handle *h = of(o);
    struct handle_gate *g = &h->gate;
    shut(h);
    struct endpoint *v = g->successor;
    if (h->endpoint->frozen)
        progress_round(o->communicator->progress, -1);
    int rc = endpoint_inherit(v, h->endpoint, g->resumes);
    g->successor = NULL;
    replace(h, v);
    forget_successor(g);
    *object = &v->base;
    reopen(h);
    return rc;
}

static void orphan(struct user_object *o)
{
    pcoll_handle *h = of(o);
    shut(h);
    o->orphan = true;
    h->endpoint->base.watched = false;
    reopen(h);
}

static void go(struct user_object *o, struct communicator *c)
{
    pcoll_handle *h = of(o);
    shut(h);
    struct endpoint *v = h->endpoint;
    v->communicator = c;
    h->gate.stopped = o->orphan;
    reopen(h);
    progress_lock(c->progress);
    int rc = o->orphan ? PCOLL_OK : endpoint_poll(v, true);
    if (rc == PCOLL_OK && !o->orphan && atomic_load(&o->closing))
        rc = endpoint_close(v);
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    progress_unlock(c->progress);
}

const struct recoverable handle_recoverable = {
    .stop = stop,
    .complete = complete,
    .rebuild = rebuild,
    .inherit = inherit,
    .orphan = orphan,
    .go = go,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* How a handle continues when ranks have died; see runtime/recovery.h, and handle.h for its
 * gate. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"
#include "transport/mpi/mpi_recovery.h"
#include "transport/mpi/mpi_transport.h"
#include "allreduce/endpoint.h"
#include "allreduce/handle.h"

static pcoll_handle *handle_of(struct user_object *o)
{
    return (pcoll_handle *)o;
}

/* The application stays out between these two. */
static void handle_shut(pcoll_handle *h)
{
    gate_close(&h->gate.gate);
    gate_await_empty(&h->gate.gate);
}

static void handle_reopen(pcoll_handle *h)
{
    gate_open(&h->gate.gate);
}

static void handle_stop(struct user_object *o)
{
    pcoll_handle *h = handle_of(o);
    handle_shut(h);
    h->gate.stopped = true;
    handle_reopen(h);
}

static uint64_t handle_complete(struct user_object *o)
{
    pcoll_handle *h = handle_of(o);
    handle_shut(h);
    uint64_t rounds = handle_member(h).complete;
    handle_reopen(h);
    return rounds;
}

void handle_forget_last(struct handle_gate *g)
{
    free(g->last);
    g->last = NULL;
    g->resumes = NULL;
}

/* Of an attempt that failed: no message of it was ever sent. */
static void handle_forget_successor(struct handle_gate *g)
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

static int handle_rebuild(struct user_object *o, struct communicator *c,
                          const struct recovery_plan *plan)
{
    pcoll_handle *h = handle_of(o);
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
    handle_forget_successor(g);
    uint64_t own = handle_complete(o);
    int rc = endpoint_create(c, &spec, &g->successor);
    if (rc == PCOLL_OK)
        rc = sharing_settle(c, g->successor, &options);
    if (rc == PCOLL_OK)
        rc = handle_fetch_last(g, c, plan, old, own);
    if (rc != PCOLL_OK)
        return rc;
    g->successor->base.slot = plan->slot;
    handle_shut(h); /* what is the application's own is looked at */
    endpoint_begin_at(g->successor, old, plan->complete, g->resumes);
    handle_reopen(h);
    return PCOLL_OK;
}

/* The application may be filling a slot of the old endpoint. */
static void handle_replace(pcoll_handle *h, struct endpoint *v)
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

static int handle_inherit(struct user_object *o, struct object **object)
{
    pcoll_handle *h = handle_of(o);
    struct handle_gate *g = &h->gate;
    handle_shut(h);
    struct endpoint *v = g->successor;
    if (h->endpoint->frozen)
        progress_round(o->communicator->progress, -1);
    int rc = endpoint_inherit(v, h->endpoint, g->resumes);
    g->successor = NULL;
    handle_replace(h, v);
    handle_forget_successor(g);
    *object = &v->base;
    handle_reopen(h);
    return rc;
}

static void handle_orphan(struct user_object *o)
{
    pcoll_handle *h = handle_of(o);
    handle_shut(h);
    o->orphan = true;
    h->endpoint->base.watched = false;
    handle_reopen(h);
}

static void handle_go(struct user_object *o, struct communicator *c)
{
    pcoll_handle *h = handle_of(o);
    handle_shut(h);
    struct endpoint *v = h->endpoint;
    v->communicator = c;
    h->gate.stopped = o->orphan;
    handle_reopen(h);
    progress_lock(c->progress);
    int rc = o->orphan ? PCOLL_OK : endpoint_poll(v, true);
    if (rc == PCOLL_OK && !o->orphan && atomic_load(&o->closing))
        rc = endpoint_close(v);
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    progress_unlock(c->progress);
}

const struct recoverable handle_recoverable = {
    .stop = handle_stop,
    .complete = handle_complete,
    .rebuild = handle_rebuild,
    .inherit = handle_inherit,
    .orphan = handle_orphan,
    .go = handle_go,
};

/*
 * A handle takes in others for those who have died, on a communicator of all; see
 * runtime/recovery.h. Survivors bring their state, as in a recovery, newcomers
 * begin with the last round. Until all have settled for it the old endpoint is as it was.
 */

struct handle_growth {
    struct growth base;
    pcoll_handle *handle;
    const pcoll_buffer *buffers;
    int nbuffers;
    pcoll_options options; /* as all have asked for; the algorithm as it is */
    struct recovery_plan plan;
};

static struct endpoint *handle_growth_old(const struct handle_growth *g)
{
    return g->handle->endpoint;
}

/* The same arguments on all. */
static int handle_growth_compare(struct handle_growth *g)
{
    struct communicator *c = g->base.to;
    struct round_shape shape = {0};
    int local = options_check(&g->options);
    if (local == PCOLL_OK)
        local = round_shape_init(&shape, c->transport->size, g->buffers, g->nbuffers,
                                 mpi_reduction_create);
    bool made = local == PCOLL_OK;
    int rc = agree_arguments(c, local, g->buffers, g->nbuffers,
                             made ? &shape.payload : NULL, &g->options);
    if (made)
        round_shape_destroy(&shape);
    return rc;
}

/* How far are the survivors, and with which algorithm? */
static int handle_growth_exchange(struct handle_growth *g)
{
    struct communicator *c = g->base.to;
    struct endpoint *old = handle_growth_old(g);
    struct census s;
    uint64_t words[CENSUS_WORDS + 1] = {0};
    census_begin(&s, words, 1);
    if (old)
        census_note(&s, 0, handle_member(g->handle).complete, c->transport->rank);
    if (old)
        words[CENSUS_WORDS] = old->data.plan.algorithm;
    int rc = agree_max(c, words, CENSUS_WORDS + 1);
    if (rc != PCOLL_OK)
        return rc;
    uint64_t own = old ? handle_member(g->handle).complete : 0;
    rc = census_plan(&s, 0, c->transport->size, own, &g->plan);
    if (rc == PCOLL_OK && words[CENSUS_WORDS] > PCOLL_ALGORITHM_NATIVE)
        rc = fail(PCOLL_EPROTOCOL, "the ranks agreed on algorithm %llu",
                  (unsigned long long)words[CENSUS_WORDS]);
    g->plan.some_lack = g->plan.some_lack || s.lacking[0];
    g->options.algorithm = rc == PCOLL_OK ? (int32_t)words[CENSUS_WORDS] : 0;
    return rc;
}

static int handle_growth_make(struct handle_growth *g, struct endpoint **made)
{
    struct communicator *c = g->base.to;
    struct endpoint *old = handle_growth_old(g);
    struct endpoint_spec spec = {.ranks = c->transport->size,
                                 .off_node = c->transport->off_node,
                                 .buffers = old ? NULL : g->buffers,
                                 .nbuffers = old ? 0 : g->nbuffers,
                                 .make_user = mpi_reduction_create,
                                 .options = &g->options,
                                 .follows = old,
                                 .failed = c->transport->failed};
    sharing_place(c, &g->options, &spec);
    int rc = endpoint_create(c, &spec, made);
    return rc == PCOLL_OK ? handle_start_agent(c, *made, &g->options) : rc;
}

/* The successor, at the round that all are at. */
static int handle_growth_rebuild(struct handle_growth *g)
{
    struct communicator *c = g->base.to;
    struct endpoint *old = handle_growth_old(g);
    struct handle_gate *gate = &g->handle->gate;
    uint64_t own = old ? handle_member(g->handle).complete : 0;
    g->options = options_thrifty(&g->options);
    int rc = agree_outcome(c, handle_growth_make(g, &gate->successor));
    if (rc == PCOLL_OK)
        rc = sharing_settle(c, gate->successor, &g->options);
    if (rc == PCOLL_OK)
        rc = handle_fetch_last(gate, c, &g->plan, old, own);
    MOMENT("growth rebuilt");
    if (rc != PCOLL_OK)
        return rc;
    gate->successor->base.slot = 0;
    endpoint_begin_at(gate->successor, old, g->plan.complete, gate->resumes);
    uint64_t nothing = 0;
    return agree_max(c, &nothing, 1);
}

static int handle_growth_inherit(struct handle_growth *g)
{
    struct communicator *c = g->base.to;
    struct handle_gate *gate = &g->handle->gate;
    int rc = endpoint_inherit(gate->successor, handle_growth_old(g), gate->resumes);
    if (rc != PCOLL_OK)
        return rc;
    progress_lock(c->progress);
    rc = communicator_register(c, &gate->successor->base, 0);
    progress_unlock(c->progress);
    MOMENT("growth inherited");
    return rc;
}

static void handle_growth_cancel(struct handle_growth *g)
{
    struct communicator *to = g->base.to, *from = g->base.from;
    struct handle_gate *gate = &g->handle->gate;
    if (to && to->handles) {
        progress_lock(to->progress);
        communicator_unregister(to, 0);
        progress_unlock(to->progress);
    }
    if (gate->successor && from)
        recovery_bury(from, handle_end_endpoint, gate->successor, false);
    gate->successor = NULL;
    handle_forget_last(gate);
    growth_cancel(&g->base);
}

/* It is on the new communicator, and no more on the old one. */
static void handle_growth_leave_old(struct handle_growth *g)
{
    pcoll_handle *h = g->handle;
    struct endpoint *old = handle_growth_old(g);
    struct communicator *from = g->base.from;
    if (old->options.owned_send) { /* whatever is filled so far */
        struct endpoint *filling = h->gate.filling ? h->gate.filling : old;
        struct domain *d = h->gate.successor->domain;
        memcpy(d->ops->send_slot(d), filling->domain->ops->send_slot(filling->domain),
               payload_data_bytes(&old->shape.payload));
    }
    if (h->gate.filling)
        recovery_bury(from, handle_end_endpoint, h->gate.filling, false);
    h->gate.filling = NULL;
    progress_lock(from->progress);
    communicator_unregister(from, h->base.entry.slot);
    if (old->frozen)
        progress_round(from->progress, -1);
    progress_unlock(from->progress);
    recovery_bury(from, handle_end_endpoint, old, true);
}

static int handle_growth_commit(struct handle_growth *g)
{
    pcoll_handle *h = g->handle;
    struct communicator *c = g->base.to;
    struct endpoint *v = h->gate.successor;
    if (handle_growth_old(g)) {
        handle_growth_leave_old(g);
        user_object_move(&h->base, c, &v->base);
    } else
        user_object_made(&h->base, c, &v->base, g->options.progress);
    h->endpoint = v;
    h->gate.successor = NULL;
    handle_forget_last(&h->gate);
    growth_commit(&g->base);
    MOMENT("grown");
    progress_lock(c->progress);
    int rc = outage_now(c->outage) ? PCOLL_OK : endpoint_poll(v, true);
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    progress_unlock(c->progress);
    return PCOLL_OK;
}

static int handle_growth_run(struct handle_growth *g, const void *comm,
                             const uint32_t *numbers, uint32_t ranks)
{
    int rc = growth_begin(&g->base, comm, numbers, ranks);
    if (rc != PCOLL_OK)
        return rc;
    rc = handle_growth_compare(g);
    if (rc == PCOLL_OK)
        rc = handle_growth_exchange(g);
    if (rc == PCOLL_OK)
        rc = handle_growth_rebuild(g);
    if (rc == PCOLL_OK)
        rc = handle_growth_inherit(g);
    rc = growth_settle(&g->base, rc);
    if (rc == PCOLL_OK)
        rc = handle_growth_commit(g);
    else
        handle_growth_cancel(g);
    return rc;
}

/* Let the others know why this rank does not take part; returns rc. */
static int handle_growth_refuse(const void *comm, int rc)
{
    if (comm) {
        pcoll_refuse(pcoll_last_error());
        growth_refuse(comm);
    }
    return rc;
}

int pcoll_growth_refuse(const void *comm)
{
    return fail_if_null(comm) ?: growth_refuse(comm);
}

int pcoll_growth_check(const void *comm)
{
    int rc = fail_if_null(comm);
    return rc == PCOLL_OK && pcoll_tells_of_failures() ? mpi_all_live(comm) : rc;
}

static _Thread_local bool alone;
static _Thread_local struct progress
    *held; /* The engine whose drive lock is held, or NULL. */

void pcoll_mpi_enter(int32_t hold)
{
    bool holds =
        hold && pcoll_tells_of_failures() && process_progress(&held) == PCOLL_OK;
    if (holds)
        progress_lock(held);
    else
        held = NULL;
    alone = exclusion_begin();
}

void pcoll_mpi_leave(int32_t hold)
{
    struct progress *p = held;
    CHECK(hold || !p);
    (void)hold;
    exclusion_end(alone);
    held = NULL;
    progress_unlock(p);
}

int pcoll_handle_can_grow(pcoll_handle *h)
{
    int rc = handle_enter(h);
    if (rc != PCOLL_OK)
        return rc;
    if (!h->continues)
        rc = fail(PCOLL_ESTATE,
                  "grow: only a handle made with on_failure=\"continue\" can take "
                  "others in");
    else if (h->base.orphan)
        rc = outage_error(h->base.communicator->outage);
    else if (h->started || handle_member(h).started)
        rc = fail(PCOLL_ESTATE,
                  "grow: wait for the round of the last start (or join) first");
    return handle_leave(h, rc);
}

int pcoll_handle_grow(pcoll_handle *h, const void *comm, const uint32_t *numbers,
                      const pcoll_buffer *buffers, int32_t nbuffers,
                      const pcoll_options *options)
{
    int rc = fail_if_null_as("handle, comm, numbers, buffers, options", h, comm,
                             numbers, buffers, options)
                 ?: user_object_enter_open(&h->base); /* not inside: recovery.h */
    if (rc != PCOLL_OK)
        return handle_growth_refuse(comm, rc);
    CHECK(h->continues && !h->started);
    struct handle_growth g = {.base.from = h->base.communicator,
                              .handle = h,
                              .buffers = buffers,
                              .nbuffers = nbuffers,
                              .options = *options};
    return user_object_leave(
        &h->base,
        handle_growth_run(&g, comm, numbers, h->base.communicator->transport->size));
}

int pcoll_allreduce_join(const void *comm, const uint32_t *numbers, uint32_t ranks,
                         const pcoll_buffer *buffers, int32_t nbuffers,
                         const pcoll_options *options, pcoll_handle **handle)
{
    int rc = user_object_admit(&handle_kind, comm, PCOLL_FAILURE_CONTINUE, NULL);
    if (rc != PCOLL_OK)
        return rc;
    rc = fail_if_null(numbers, buffers, options, handle);
    if (rc != PCOLL_OK)
        return handle_growth_refuse(comm, rc);
    pcoll_handle *h = calloc(1, sizeof *h);
    if (!h)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    user_object_init(&h->base, &handle_kind);
    handle_begin_recoverable(h);
    struct handle_growth g = {
        .handle = h, .buffers = buffers, .nbuffers = nbuffers, .options = *options};
    rc = handle_growth_run(&g, comm, numbers, ranks);
    if (rc == PCOLL_OK) {
        *handle = h;
        return PCOLL_OK;
    }
    handle_end_recoverable(h);
    free(h);
    return rc;
}

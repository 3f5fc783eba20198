/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a handle continues when ranks have died, and how it takes in joining ranks for them; see
 * runtime/recovery.h. Both make a successor of the endpoint. The gate of the
 * handle (handle.h) keeps the application out of each step.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"
#include "transport/mpi/mpi_transport.h"
#include "allreduce/handle.h"

/* Endpoints that a recovery replaced. */

static void handle_destroy_endpoint(void *arg)
{
    struct endpoint *endpoint = arg;
    endpoint_destroy(&endpoint);
}

void handle_retire_endpoint(struct communicator *c, struct endpoint *endpoint,
                            bool in_use)
{
    if (endpoint)
        recovery_retire(c, handle_destroy_endpoint, endpoint, in_use);
}

/* Copy what the application has filled in to another endpoint. */
static void handle_copy_slot(struct endpoint *to, struct endpoint *from)
{
    CHECK(to != from);
    memcpy(node_send_slot(to->domain), node_send_slot(from->domain),
           round_shape_data_bytes(&from->shape));
}

void handle_end_filling(pcoll_handle *h)
{
    struct endpoint *from = h->gate.filling;
    handle_copy_slot(h->endpoint, from);
    h->gate.filling = NULL;
    handle_retire_endpoint(h->base.communicator, from, false);
}

/* Close the gate and wait until the application is outside. */
static pcoll_handle *handle_shut(struct user_object *o)
{
    pcoll_handle *h = (pcoll_handle *)o;
    gate_close(&h->gate.gate);
    gate_await_empty(&h->gate.gate);
    return h;
}

static void handle_stop(struct user_object *o)
{
    pcoll_handle *h = handle_shut(o);
    h->gate.stopped = true;
    gate_open(&h->gate.gate);
}

static uint64_t handle_complete(struct user_object *o)
{
    pcoll_handle *h = handle_shut(o);
    struct member m;
    node_snapshot(h->endpoint->domain, &m);
    gate_open(&h->gate.gate);
    return m.complete;
}

static void handle_forget_last(struct handle_gate *g)
{
    free(g->last);
    g->last = NULL;
    g->resumes = NULL;
}

/* Store the message of the last complete round in g->resumes, for g->successor. If some rank
 * lacks that message, a rank that has it sends it, and the call is collective on `c`. `own` is
 * the number of rounds complete on `old`, which is NULL on a joining rank. */
static int handle_fetch_last(struct handle_gate *g, struct communicator *c,
                             const struct recovery_plan *plan, struct endpoint *old,
                             uint64_t own)
{
    const struct round_shape *shape = &g->successor->shape;
    size_t bytes = shape->header_bytes + round_shape_data_bytes(shape);
    if (old && plan->complete - own > 1) /* No round is complete without this rank. */
        return fail(PCOLL_EPROTOCOL,
                    "the ranks that are left agreed on %llu complete rounds, and this "
                    "one has %llu",
                    (unsigned long long)plan->complete, (unsigned long long)own);
    if (!plan->complete)
        return PCOLL_OK;
    struct round_header *last;
    if (own == plan->complete)
        last = node_result(old->domain, plan->complete - 1);
    else if ((g->last = malloc(bytes)))
        last = message_in(shape, g->last);
    else
        return fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a round", bytes);
    g->resumes = last;
    char *message = (char *)(last + 1) - shape->header_bytes;
    int rc = plan->some_lack ? mpi_share(c->transport, plan->source, message, bytes)
                             : PCOLL_OK;
    if (rc != PCOLL_OK) {
        g->last = NULL; /* Leak the message: MPI may still write to it. */
        return rc;
    }
    return round_header_check(last, shape->ranks, plan->complete - 1);
}

/* Recovery. */

static int handle_rebuild(struct user_object *o, struct communicator *c,
                          const struct recovery_plan *plan)
{
    pcoll_handle *h = (pcoll_handle *)o;
    struct handle_gate *g = &h->gate;
    struct endpoint *old = h->endpoint;
    pcoll_options options = old->options;
    options.algorithm = (int32_t)old->data.plan.algorithm;
    if (g->successor) /* Of an attempt that failed: it has sent no message. */
        endpoint_destroy(&g->successor);
    handle_forget_last(g);
    uint64_t own = handle_complete(o);
    int rc = sharing_place(c, NULL, 0, &options, old, &g->successor)
                 ?: sharing_settle(c, g->successor)
                 ?: handle_fetch_last(g, c, plan, old, own);
    if (rc != PCOLL_OK)
        return rc;
    g->successor->base.slot = plan->slot;
    handle_shut(o); /* The next step reads the state of the application's member. */
    endpoint_begin_at(g->successor, old, plan->complete, g->resumes);
    gate_open(&h->gate.gate);
    return PCOLL_OK;
}

static int handle_inherit(struct user_object *o, struct object **object)
{
    pcoll_handle *h = handle_shut(o);
    struct handle_gate *g = &h->gate;
    struct endpoint *old = h->endpoint, *endpoint = g->successor;
    if (old->frozen)
        progress_round(o->communicator->progress, -1);
    int rc = endpoint_inherit(endpoint, old, g->resumes);
    g->successor = NULL;
    handle_forget_last(g);
    h->endpoint = endpoint;
    atomic_store(&h->base.object, &endpoint->base);
    if (old->options.owned_send &&
        !g->filling) /* The application may be filling its slot. */
        g->filling = old;
    else
        handle_retire_endpoint(o->communicator, old, false);
    if (g->asleep)
        node_sleeps(endpoint->domain, true);
    *object = &endpoint->base;
    gate_open(&h->gate.gate);
    return rc;
}

static void handle_set_incomplete(struct user_object *o)
{
    pcoll_handle *h = handle_shut(o);
    o->incomplete = true;
    h->endpoint->base.watched = false;
    gate_open(&h->gate.gate);
}

static void handle_go(struct user_object *o, struct communicator *c)
{
    pcoll_handle *h = handle_shut(o);
    struct endpoint *endpoint = h->endpoint;
    endpoint->communicator = c;
    h->gate.stopped = o->incomplete;
    gate_open(&h->gate.gate);
    if (o->incomplete)
        return;
    progress_lock(c->progress);
    endpoint_poll(endpoint, true);
    int rc = atomic_load(&o->closing) ? endpoint_close(endpoint) : PCOLL_OK;
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    progress_unlock(c->progress);
}

const struct recoverable handle_recoverable = {
    .stop = handle_stop,
    .complete = handle_complete,
    .rebuild = handle_rebuild,
    .inherit = handle_inherit,
    .set_incomplete = handle_set_incomplete,
    .go = handle_go,
};

/*
 * Growth: joining ranks take the numbers of those that died, on a communicator of all ranks.
 * Surviving ranks bring their state, joining ranks begin with the last round. The old endpoint
 * stays unchanged until all ranks have agreed to commit.
 */

struct handle_growth {
    struct growth base;
    pcoll_handle *handle; /* Without an endpoint on a joining rank. */
    const pcoll_buffer *buffers;
    int nbuffers;
    pcoll_options
        options; /* As given on all ranks, with the algorithm of the survivors. */
    struct recovery_plan plan;
};

/* Check that all ranks give the same arguments. */
static int handle_growth_compare(struct handle_growth *g)
{
    struct communicator *c = g->base.to;
    struct round_shape shape = {0};
    int local = options_check(&g->options)
                    ?: round_shape_init(&shape, c->transport->size, g->buffers,
                                        g->nbuffers, mpi_reduction_create);
    int rc = agree_arguments(c, local, g->buffers, g->nbuffers,
                             local == PCOLL_OK ? &shape.payload : NULL, &g->options,
                             NULL, 0);
    if (local == PCOLL_OK)
        round_shape_destroy(&shape);
    return rc;
}

/* Find out how many rounds the survivors have completed, and with which algorithm. */
static int handle_growth_exchange(struct handle_growth *g)
{
    struct communicator *c = g->base.to;
    struct endpoint *old = g->handle->endpoint;
    struct {
        struct inventory inventory;
        uint64_t algorithm;
    } all = {.inventory.lacking = 1};
    uint64_t own = old ? handle_member(g->handle).complete : 0;
    if (old) {
        all.inventory = inventory_of(own, c->transport->rank);
        all.algorithm = old->data.plan.algorithm;
    }
    int rc =
        agree_max(c, (uint64_t *)(void *)&all, INVENTORY_WORDS + 1)
            ?: inventory_plan(&all.inventory, 0, c->transport->size, own, &g->plan);
    if (rc != PCOLL_OK)
        return rc;
    if (all.algorithm > PCOLL_ALGORITHM_NATIVE)
        return fail(PCOLL_EPROTOCOL, "the ranks agreed on algorithm %llu",
                    (unsigned long long)all.algorithm);
    g->plan.some_lack = g->plan.some_lack || all.inventory.lacking;
    g->options.algorithm = (int32_t)all.algorithm;
    return PCOLL_OK;
}

/* Make the successor, at the round that all ranks are at. */
static int handle_growth_rebuild(struct handle_growth *g)
{
    struct communicator *c = g->base.to;
    struct endpoint *old = g->handle->endpoint;
    struct handle_gate *gate = &g->handle->gate;
    uint64_t own = old ? handle_member(g->handle).complete : 0, nothing = 0;
    g->options = options_thrifty(&g->options);
    int made =
        sharing_place(c, g->buffers, g->nbuffers, &g->options, old, &gate->successor)
            ?: handle_start_agent(c, gate->successor, &g->options);
    int rc = agree_outcome(c, made)
                 ?: sharing_settle(c, gate->successor)
                 ?: handle_fetch_last(gate, c, &g->plan, old, own);
    MOMENT("growth rebuilt");
    if (rc != PCOLL_OK)
        return rc;
    gate->successor->base.slot = 0;
    endpoint_begin_at(gate->successor, old, g->plan.complete, gate->resumes);
    return agree_max(c, &nothing, 1); /* A barrier: all are at that round. */
}

static int handle_growth_inherit(struct handle_growth *g)
{
    struct communicator *c = g->base.to;
    struct handle_gate *gate = &g->handle->gate;
    int rc = endpoint_inherit(gate->successor, g->handle->endpoint, gate->resumes);
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
    if (from)
        handle_retire_endpoint(from, gate->successor, false);
    gate->successor = NULL;
    handle_forget_last(gate);
    growth_cancel(&g->base);
}

/* Take the handle off the old communicator. */
static void handle_growth_leave_old(struct handle_growth *g)
{
    pcoll_handle *h = g->handle;
    struct endpoint *old = g->handle->endpoint;
    struct communicator *from = g->base.from;
    if (old->options.owned_send) /* Keep what the application has filled in so far. */
        handle_copy_slot(h->gate.successor, h->gate.filling ? h->gate.filling : old);
    handle_retire_endpoint(from, h->gate.filling, false);
    h->gate.filling = NULL;
    progress_lock(from->progress);
    communicator_unregister(from, h->base.slot);
    if (old->frozen)
        progress_round(from->progress, -1);
    progress_unlock(from->progress);
    handle_retire_endpoint(from, old, true);
}

static void handle_growth_commit(struct handle_growth *g)
{
    pcoll_handle *h = g->handle;
    struct communicator *c = g->base.to;
    struct endpoint *endpoint = h->gate.successor;
    if (h->endpoint)
        handle_growth_leave_old(g);
    user_object_made(&h->base, c, &endpoint->base,
                     h->endpoint ? h->base.progress : g->options.progress);
    h->endpoint = endpoint;
    h->gate.successor = NULL;
    handle_forget_last(&h->gate);
    growth_commit(&g->base);
    MOMENT("grown");
    progress_lock(c->progress);
    if (!outage_now(c->outage))
        endpoint_poll(endpoint, true);
    progress_unlock(c->progress);
}

static int handle_growth_run(struct handle_growth *g, const void *comm,
                             const uint32_t *numbers, uint32_t ranks)
{
    int rc = growth_begin(&g->base, comm, numbers, ranks);
    if (rc != PCOLL_OK)
        return rc;
    rc = handle_growth_compare(g)
             ?: handle_growth_exchange(g)
             ?: handle_growth_rebuild(g)
             ?: handle_growth_inherit(g);
    rc = growth_settle(&g->base, rc);
    if (rc == PCOLL_OK)
        handle_growth_commit(g);
    else
        handle_growth_cancel(g);
    return rc;
}

/* Tell the other ranks why this rank does not take part. Return rc. */
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

int pcoll_handle_can_grow(pcoll_handle *h)
{
    HANDLE_ENTER(h);
    int rc = PCOLL_OK;
    if (!h->continues)
        rc = fail(PCOLL_ESTATE,
                  "grow: only a handle made with on_failure=\"continue\" can take "
                  "others in");
    else if (h->base.incomplete)
        rc = outage_error(h->base.communicator->outage);
    else if (h->started || handle_member(h).started)
        rc = fail(PCOLL_ESTATE,
                  "grow: wait for the round of the last start (or join) first");
    return handle_leave(h, rc);
}

/* The thread stays outside the gate: recovery.h. */
int pcoll_handle_grow(pcoll_handle *h, const void *comm, const uint32_t *numbers,
                      const pcoll_buffer *buffers, int32_t nbuffers,
                      const pcoll_options *options)
{
    int rc = fail_if_null_as("handle, comm, numbers, buffers, options", h, comm,
                             numbers, buffers, options)
                 ?: user_object_enter_open(&h->base);
    if (rc != PCOLL_OK)
        return handle_growth_refuse(comm, rc);
    CHECK(h->continues && !h->started);
    struct handle_growth g = {.base.from = h->base.communicator,
                              .handle = h,
                              .buffers = buffers,
                              .nbuffers = nbuffers,
                              .options = *options};
    uint32_t ranks = h->base.communicator->transport->size;
    return user_object_leave(&h->base, handle_growth_run(&g, comm, numbers, ranks));
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
    pcoll_handle *h = handle_new(true);
    if (!h)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    struct handle_growth g = {
        .handle = h, .buffers = buffers, .nbuffers = nbuffers, .options = *options};
    rc = handle_growth_run(&g, comm, numbers, ranks);
    if (rc == PCOLL_OK)
        *handle = h;
    else
        handle_free_shell(&h->base);
    return rc;
}

/* Calls of MPI by the program, where ranks may die: no thread of the core is in MPI meanwhile
 * (transport/mpi/mpi_transport.h). */

static _Thread_local bool mpi_entered; /* The result of exclusion_begin. */
static _Thread_local struct progress
    *mpi_held; /* Engine whose drive lock is held, or NULL. */

void pcoll_mpi_enter(int32_t hold)
{
    bool holds =
        hold && pcoll_tells_of_failures() && process_progress(&mpi_held) == PCOLL_OK;
    if (holds)
        progress_lock(mpi_held);
    else
        mpi_held = NULL;
    mpi_entered = exclusion_begin(true);
}

void pcoll_mpi_leave(int32_t hold)
{
    struct progress *p = mpi_held;
    CHECK(hold || !p);
    (void)hold;
    exclusion_end(mpi_entered);
    mpi_held = NULL;
    progress_unlock(p);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a handle: each rank makes its part, then all compare their arguments, share
 * memory where they are to (sharing.c), agree on a slot, enter the endpoint in their
 * tables, and agree that all have done so. A rank that fails takes part in the
 * agreements all the same, so that it fails on every rank.
 */
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/check.h"
#include "domain/node.h"
#include "transport/mpi/mpi_transport.h"
#include "transport/mpi/reduction.h"
#include "runtime/agreement.h"
#include "allreduce/handle.h"
#include "allreduce/options.h"
#include "allreduce/sharing.h"

static int open_event_log(struct endpoint *v)
{
    uint32_t rank, ranks;
    mpi_world(&rank, &ranks);
    return event_log_open(rank, ranks, process_next_number(), &v->event_log);
}

/* Messages and timers need somebody to look after them while the application computes;
 * ranks that share one domain see to their rounds themselves. */
int handle_start_agent(struct communicator *c, const struct endpoint *v,
                       const pcoll_options *o)
{
    bool messages = v->placement.domains > 1 || v->placement.ranks == 1;
    bool timers = policy_has_timers(&o->policy);
    bool continues = o->on_failure == PCOLL_FAILURE_CONTINUE;
    if (!messages && !timers && !o->device && !continues)
        return PCOLL_OK;
    return process_start_agent(c, o->progress,
                               v->drives || timers || o->device || continues);
}

/* A replay would have to say when a copy ends. */
static int make_staging(struct endpoint *v, const pcoll_options *o)
{
    if (v->event_log)
        return fail(PCOLL_EINVAL, "buffers on a device cannot be recorded or replayed: "
                                  "when they arrive is the device's business");
    return staging_create(o->device - 1, &v->staging);
}

/* This rank's part, before anybody else is asked. */
static int make_endpoint(struct communicator *c, const pcoll_buffer *buffers,
                         int nbuffers, const pcoll_options *o, struct endpoint **v)
{
    int rc = options_check(o);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_options thrifty = options_thrifty(o);
    struct endpoint_spec spec = {.ranks = c->transport->size,
                                 .failed = c->transport->failed,
                                 .off_node = c->transport->off_node,
                                 .buffers = buffers,
                                 .nbuffers = nbuffers,
                                 .make_user = mpi_reduction_create,
                                 .options = &thrifty};
    sharing_place(c, o, &spec);
    rc = endpoint_create(c, &spec, v);
    if (rc == PCOLL_OK)
        rc = handle_start_agent(c, *v, o);
    if (rc == PCOLL_OK)
        rc = open_event_log(*v);
    return rc == PCOLL_OK && o->device ? make_staging(*v, o) : rc;
}

/* Opening goes on while nobody holds the progress lock: others may need the agent. */
static int await_channel(struct communicator *c, struct channel *channel)
{
    int rc;
    do {
        progress_lock(c->progress);
        rc = c->transport->ops->opened(c->transport, channel);
        progress_unlock(c->progress);
        if (rc == PCOLL_EAGAIN)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    } while (rc == PCOLL_EAGAIN && !atomic_load(&c->failure));
    return rc == PCOLL_EAGAIN ? communicator_check(c) : rc;
}

/* Native: a line of collectives for this handle alone. Collective; a failure is final.
 */
static int open_channel(struct communicator *c, struct endpoint *v)
{
    progress_lock(c->progress);
    int rc = endpoint_open(v);
    progress_unlock(c->progress);
    if (rc == PCOLL_OK && v->channel)
        rc = await_channel(c, v->channel);
    return rc == PCOLL_OK ? rc : communicator_fail_undriven(c, rc);
}

/* Where a rank's record is incomplete, all replay the rounds that every rank has. */
static int agree_replay(struct communicator *c, struct event_log *log)
{
    uint64_t lacking = UINT64_MAX - event_log_rounds(log);
    int rc = agree_max(c, &lacking, 1);
    event_log_set_limit(log, UINT64_MAX - lacking);
    return rc;
}

/* Agree with the others. *unshared: on all ranks, there was not enough memory to share.
 */
static int join_others(struct communicator *c, int local, const pcoll_buffer *buffers,
                       int nbuffers, const pcoll_options *o, struct endpoint *v,
                       bool *unshared)
{
    agree_settle(c);
    int rc =
        agree_arguments(c, local, buffers, nbuffers, v ? &v->shape.payload : NULL, o);
    pcoll_options thrifty = options_thrifty(o);
    if (rc == PCOLL_OK && v->event_log)
        rc = agree_replay(c, v->event_log);
    if (rc == PCOLL_OK)
        *unshared = (rc = sharing_settle(c, v, &thrifty)) == PCOLL_ENOMEM;
    if (rc == PCOLL_OK)
        rc = open_channel(c, v);
    MOMENT("entering");
    return rc == PCOLL_OK ? agree_enter(c, &v->base) : rc;
}

static int create(struct communicator *c, const pcoll_buffer *buffers, int nbuffers,
                  const pcoll_options *options, pcoll_handle **handle, bool *unshared)
{
    struct endpoint *v = NULL;
    pcoll_handle *h = calloc(1, sizeof *h);
    int local = h ? make_endpoint(c, buffers, nbuffers, options, &v)
                  : fail(PCOLL_ENOMEM, "no memory for a handle");
    pcoll_options resolved = *options;
    if (v)
        resolved.algorithm = (int32_t)v->data.plan.algorithm;
    int rc = join_others(c, local, buffers, nbuffers, &resolved, v, unshared);
    if (rc != PCOLL_OK) {
        if (v)
            endpoint_destroy(&v);
        free(h);
        return rc;
    }
    user_object_init(&h->base, &handle_kind);
    h->endpoint = v;
    if (options->on_failure == PCOLL_FAILURE_CONTINUE)
        handle_begin_recoverable(h);
    user_object_made(&h->base, c, &v->base, options->progress);
    *handle = h;
    return PCOLL_OK;
}

int pcoll_allreduce_create(const void *comm, const pcoll_buffer *buffers,
                           int32_t nbuffers, const pcoll_options *options,
                           pcoll_handle **handle)
{
    struct communicator *c;
    bool unshared = false;
    int on_failure = options ? options->on_failure : PCOLL_FAILURE_RAISE;
    int rc = user_object_admit(&handle_kind, comm, (enum pcoll_failure)on_failure, &c);
    if (rc != PCOLL_OK)
        return rc;
    options = options_or_zeros(&(pcoll_options){0}, options, buffers, handle);
    outage_enter(c->outage);
    rc = create(c, buffers, nbuffers, options, handle, &unshared);
    if (unshared && options->domain == PCOLL_DOMAIN_AUTO) {
        pcoll_options alone = *options;
        alone.domain = PCOLL_DOMAIN_RANK;
        rc = create(c, buffers, nbuffers, &alone, handle, &unshared);
    }
    outage_leave(c->outage);
    return rc;
}

int pcoll_memory_estimate(uint32_t ranks, const pcoll_buffer *buffers, int32_t nbuffers,
                          const pcoll_options *options, uint64_t *bytes)
{
    struct round_shape shape;
    struct algorithm_plan plan;
    int rc = fail_if_null(buffers, options, bytes);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_options thrifty = options_thrifty(options);
    struct endpoint_spec spec = {.ranks = ranks,
                                 .buffers = buffers,
                                 .nbuffers = nbuffers,
                                 .make_user = mpi_reduction_create,
                                 .options = &thrifty};
    rc = options_check(options);
    bool node = options->domain != PCOLL_DOMAIN_RANK && ranks > 1;
    struct placement placement = {.ranks = ranks, .domains = 1, .members = ranks};
    if (!node)
        placement.domains = ranks, placement.members = 1;
    if (rc == PCOLL_OK)
        rc = endpoint_lay_out(&spec, &placement, &shape, &plan);
    if (rc != PCOLL_OK)
        return rc;
    *bytes = node ? node_bytes(&shape, &thrifty, &placement) / ranks
                  : domain_single_bytes(&shape, &thrifty) +
                        endpoint_bytes(&shape, &plan, &options->policy);
    *bytes += options->device ? staging_bytes(&shape.payload) : 0;
    round_shape_destroy(&shape);
    return PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creation of a handle: each rank makes its part, then all compare their arguments, share memory
 * where they are to, agree on a slot, enter the endpoint in their tables, and agree that all have
 * done so. A rank that fails takes part in the agreements all the same, so that the call fails on
 * every rank.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "algorithms/algorithms.h"
#include "base/error.h"
#include "base/check.h"
#include "base/random.h"
#include "domain/node.h"
#include "runtime/agreement.h"
#include "transport/mpi/mpi_transport.h"
#include "allreduce/event_log.h"
#include "allreduce/handle.h"

/* The arguments, as numbers that the ranks compare. */

static const char *const handle_policies[] = {"solo",     "majority", "full", "quorum",
                                              "first_of", "last_of",  NULL};
static const char *const handle_delivers[] = {"one", "all", NULL};
static const char *const handle_records[] = {"not set", "set", NULL};
static const char *const handle_domains[] = {"node", "rank", "auto", NULL};
static const char *const handle_lates[] = {"carry", "latest", "drop", NULL};

/* Return the value itself for one buffer, and a hash over all buffers else: it only shows that
 * they differ. */
static uint64_t handle_fold(uint64_t so_far, uint64_t value, int nbuffers)
{
    return nbuffers == 1 ? value : splitmix_mix(so_far ^ (value + 1)) >> 1;
}

static uint64_t handle_double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

int agree_arguments(struct communicator *c, int local, const pcoll_buffer *buffers,
                    int nbuffers, const struct payload *payload, const pcoll_options *o)
{
    uint64_t count = 0, dtype = 0, op = 0, element = 0;
    for (int i = 0; local == PCOLL_OK && i < nbuffers; i++) {
        count = handle_fold(count, buffers[i].count, nbuffers);
        dtype = handle_fold(dtype, (uint64_t)buffers[i].dtype, nbuffers);
        op = handle_fold(op, (uint64_t)buffers[i].op, nbuffers);
        element = handle_fold(element, payload->part[i].element, nbuffers);
    }
    const pcoll_policy *p = &o->policy;
    const struct agree_field fields[] = {
        {"number of buffers", NULL, (uint64_t)nbuffers},
        {"count", NULL, count},
        {"dtype", dtype_names, dtype},
        {"op", op_names, op},
        {"datatype (bytes of an element)", NULL, element},
        {"quorum", handle_policies, (uint64_t)p->kind},
        {"quorum (number of ranks)", NULL, p->count},
        {"quorum (fraction)", agree_real, handle_double_bits(p->fraction)},
        {"quorum (linger)", agree_real, handle_double_bits(p->linger)},
        {"quorum (deadline)", agree_real, handle_double_bits(p->deadline)},
        {"quorum (max_staleness)", NULL, p->max_staleness},
        {"PARTIALCOLL_RECORD, PARTIALCOLL_REPLAY", handle_records, event_log_wanted()},
        {"domain", handle_domains, (uint64_t)o->domain},
        {"domain (most ranks)", NULL, o->domain_ranks},
        {"algorithm", algorithm_names, (uint64_t)o->algorithm},
        {"deliver", handle_delivers, (uint64_t)o->deliver},
        {"late", handle_lates, (uint64_t)o->late},
        {"history", NULL, o->history},
        {"seed", NULL, o->seed},
        {"name (its hash)", NULL, o->name},
        {"described", handle_records, o->described != 0},
    };
    return agree_same(c, local, fields, sizeof fields / sizeof *fields);
}

/*
 * Shared memory: the leader of each domain makes a segment and tells all ranks its descriptor,
 * and the members open it. Each then reserves its own part, and all agree that all could.
 */

/* A native handle leaves everything to MPI. A record is of single ranks, and its replay, which
 * may run on other hosts, must add in the same order: neither shares memory. */
void sharing_place(const struct communicator *c, const pcoll_options *options,
                   struct endpoint_spec *spec)
{
    bool unplaced = options->algorithm == PCOLL_ALGORITHM_NATIVE || event_log_wanted();
    spec->hosts = unplaced ? NULL : c->transport->hosts;
    spec->most = options->domain == PCOLL_DOMAIN_RANK ? 1 : options->domain_ranks;
}

static struct doorbell_page *sharing_doorbell(const struct endpoint *endpoint,
                                              uint32_t rank)
{
    const struct transport *t = endpoint->communicator->transport;
    return rank == t->rank ? progress_doorbell(endpoint->communicator->progress)->page
                           : t->doorbells[rank];
}

static void sharing_wake(void *arg, uint32_t rank)
{
    doorbell_wake_waiters(sharing_doorbell(arg, rank));
}

static void sharing_alert(void *arg, uint32_t rank)
{
    struct endpoint *endpoint = arg;
    if (rank == endpoint->communicator->transport->rank)
        communicator_notify(endpoint->communicator, &endpoint->base);
    else
        doorbell_ring(sharing_doorbell(endpoint, rank));
}

static int64_t sharing_now(void *arg)
{
    return communicator_now(((struct endpoint *)arg)->communicator);
}

/* Return the number of cores that the members of this rank's domain may use together: a
 * container or a batch system may give them fewer than the machine has. */
static uint32_t sharing_count_cores(const struct endpoint *endpoint)
{
    const struct placement *p = &endpoint->placement;
    const uint64_t *pids = endpoint->communicator->transport->pids;
    cpu_set_t one, all;
    CPU_ZERO(&all);
    for (uint32_t i = 0; i < p->members; i++)
        if (sched_getaffinity((pid_t)pids[p->member[i]], sizeof one, &one) == 0)
            CPU_OR(&all, &all, &one);
    int cores = CPU_COUNT(&all);
    return (uint32_t)(cores ? cores : sysconf(_SC_NPROCESSORS_ONLN));
}

static int sharing_open_segment(struct endpoint *endpoint, size_t bytes, uint64_t fd)
{
    uint32_t leader = placement_leader(&endpoint->placement, endpoint->placement.index);
    if (!fd)
        return fail(PCOLL_ENOMEM, "rank %u could not make the memory of its domain",
                    leader);
    return segment_open(endpoint->communicator->transport->pids[leader], fd - 1, bytes,
                        sharing_doorbell(endpoint, leader)->cookie, &endpoint->segment);
}

/* Make this rank's part of a domain in shared memory. `common` are the options as far as the
 * memory depends on them. */
static int sharing_settle_node(struct endpoint *endpoint, const pcoll_options *options,
                               const pcoll_options *common, size_t bytes, uint64_t fd)
{
    int rc = endpoint->placement.leads ? PCOLL_OK
                                       : sharing_open_segment(endpoint, bytes, fd);
    for (int part = 0; part < NODE_PARTS && rc == PCOLL_OK; part++) {
        size_t offset, length;
        node_part(&endpoint->shape, common, &endpoint->placement, (enum node_part)part,
                  &offset, &length);
        rc = segment_reserve(&endpoint->segment, offset, length);
    }
    if (rc != PCOLL_OK)
        return rc;
    struct node_hooks hooks = {.memory = endpoint->segment.memory,
                               .placement = &endpoint->placement,
                               .slot = &endpoint->base.slot,
                               .owned_sends = common->owned_send,
                               .arg = endpoint,
                               .wake = sharing_wake,
                               .alert = sharing_alert,
                               .cores = sharing_count_cores(endpoint),
                               .now = sharing_now};
    return endpoint_settle(endpoint, options, domain_node_create, &hooks);
}

static int sharing_settle_single(struct endpoint *endpoint,
                                 const pcoll_options *options)
{
    return endpoint_settle(endpoint, options, domain_single_create,
                           &endpoint->communicator->transport->rank);
}

int sharing_settle(struct communicator *c, struct endpoint *endpoint,
                   const pcoll_options *options)
{
    const struct placement *p = &endpoint->placement;
    if (p->domains == p->ranks)
        return agree_outcome(c, sharing_settle_single(endpoint, options));
    pcoll_options common = *options;
    uint64_t owned = options->owned_send != 0, *fds;
    int rc = agree_max(c, &owned, 1);
    if (rc != PCOLL_OK)
        return rc;
    common.owned_send = owned != 0;
    bool shares = p->members > 1;
    size_t bytes = shares ? node_bytes(&endpoint->shape, &common, p) : 0;
    int made = PCOLL_OK;
    if (shares && p->leads)
        made = segment_create(bytes,
                              sharing_doorbell(endpoint, c->transport->rank)->cookie,
                              &endpoint->segment);
    rc = agree_gather(c, (uint64_t)(endpoint->segment.fd + 1), &fds);
    if (rc == PCOLL_OK) {
        if (made == PCOLL_OK)
            made = shares ? sharing_settle_node(endpoint, options, &common, bytes,
                                                fds[placement_leader(p, p->index)])
                          : sharing_settle_single(endpoint, options);
        rc = agree_outcome(c, made);
    }
    free(fds);
    segment_sealed(&endpoint->segment);
    return rc;
}

/* Creation. */

/* Ranks that share one domain drive their rounds themselves. Messages, timers, copies from a
 * device and recovery need an agent while the application computes. */
int handle_start_agent(struct communicator *c, const struct endpoint *endpoint,
                       const pcoll_options *o)
{
    bool messages = endpoint->placement.domains > 1 || endpoint->placement.ranks == 1;
    bool others = policy_has_timers(&o->policy) || o->device ||
                  o->on_failure == PCOLL_FAILURE_CONTINUE;
    return messages || others
               ? process_start_agent(c, o->progress, endpoint->drives || others)
               : PCOLL_OK;
}

/* Make this rank's part, without the other ranks. */
static int handle_make_endpoint(struct communicator *c, const pcoll_buffer *buffers,
                                int nbuffers, const pcoll_options *o,
                                struct endpoint **endpoint)
{
    uint32_t rank, ranks;
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
    mpi_world(&rank, &ranks);
    rc = endpoint_create(c, &spec, endpoint) ?: handle_start_agent(c, *endpoint, o);
    if (rc == PCOLL_OK)
        rc =
            event_log_open(rank, ranks, process_next_number(), &(*endpoint)->event_log);
    if (rc != PCOLL_OK || !o->device)
        return rc;
    if ((*endpoint)->event_log)
        return fail(PCOLL_EINVAL, "buffers on a device cannot be recorded or replayed: "
                                  "when they arrive is the device's business");
    return staging_create(o->device - 1, &(*endpoint)->staging);
}

/* Open the channel of MPI collectives that a native handle uses alone. Collective; a failure is
 * final. Waits without the drive lock, since other ranks may need the agent meanwhile. */
static int handle_open_channel(struct communicator *c, struct endpoint *endpoint)
{
    progress_lock(c->progress);
    int rc = endpoint_open(endpoint);
    while (rc == PCOLL_OK && endpoint->channel) {
        rc = c->transport->ops->opened(c->transport, endpoint->channel);
        if (rc != PCOLL_EAGAIN)
            break;
        progress_unlock(c->progress);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        rc = communicator_check(c);
        progress_lock(c->progress);
    }
    progress_unlock(c->progress);
    return rc == PCOLL_OK ? rc : communicator_fail_undriven(c, rc);
}

/* If the record of some rank is incomplete, all ranks replay the rounds that every rank has. */
static int handle_agree_replay(struct communicator *c, struct event_log *log)
{
    uint64_t lacking = UINT64_MAX - event_log_rounds(log);
    int rc = agree_max(c, &lacking, 1);
    event_log_set_limit(log, UINT64_MAX - lacking);
    return rc;
}

/* Agree with the other ranks. Set *unshared if, on all ranks, there was not enough memory to
 * share. `endpoint` is NULL if this rank has failed. */
static int handle_join_others(struct communicator *c, int local,
                              const pcoll_buffer *buffers, int nbuffers,
                              const pcoll_options *o, struct endpoint *endpoint,
                              bool *unshared)
{
    agree_settle(c);
    int rc = agree_arguments(c, local, buffers, nbuffers,
                             endpoint ? &endpoint->shape.payload : NULL, o);
    pcoll_options thrifty = options_thrifty(o);
    if (rc == PCOLL_OK && endpoint->event_log)
        rc = handle_agree_replay(c, endpoint->event_log);
    if (rc != PCOLL_OK)
        return rc;
    rc = sharing_settle(c, endpoint, &thrifty);
    *unshared = rc == PCOLL_ENOMEM;
    if (rc == PCOLL_OK)
        rc = handle_open_channel(c, endpoint);
    MOMENT("entering");
    return rc == PCOLL_OK ? agree_enter(c, &endpoint->base) : rc;
}

static int handle_create(struct communicator *c, const pcoll_buffer *buffers,
                         int nbuffers, const pcoll_options *options,
                         pcoll_handle **handle, bool *unshared)
{
    struct endpoint *endpoint = NULL;
    pcoll_handle *h = calloc(1, sizeof *h);
    int local = h ? handle_make_endpoint(c, buffers, nbuffers, options, &endpoint)
                  : fail(PCOLL_ENOMEM, "no memory for a handle");
    pcoll_options resolved = *options;
    if (endpoint)
        resolved.algorithm = (int32_t)endpoint->data.plan.algorithm;
    int rc =
        handle_join_others(c, local, buffers, nbuffers, &resolved, endpoint, unshared);
    if (rc != PCOLL_OK) {
        if (endpoint)
            endpoint_destroy(&endpoint);
        free(h);
        return rc;
    }
    user_object_init(&h->base, &handle_kind);
    h->endpoint = endpoint;
    if (options->on_failure == PCOLL_FAILURE_CONTINUE)
        handle_begin_recoverable(h);
    user_object_made(&h->base, c, &endpoint->base, options->progress);
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
    rc = handle_create(c, buffers, nbuffers, options, handle, &unshared);
    if (unshared && options->domain == PCOLL_DOMAIN_AUTO) {
        pcoll_options alone = *options;
        alone.domain = PCOLL_DOMAIN_RANK;
        rc = handle_create(c, buffers, nbuffers, &alone, handle, &unshared);
    }
    outage_leave(c->outage);
    return rc;
}

int pcoll_memory_estimate(uint32_t ranks, const pcoll_buffer *buffers, int32_t nbuffers,
                          const pcoll_options *options, uint64_t *bytes)
{
    struct round_shape shape;
    struct algorithm_plan plan;
    int rc = fail_if_null(buffers, options, bytes) ?: options_check(options);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_options thrifty = options_thrifty(options);
    struct endpoint_spec spec = {.ranks = ranks,
                                 .buffers = buffers,
                                 .nbuffers = nbuffers,
                                 .make_user = mpi_reduction_create,
                                 .options = &thrifty};
    bool node = options->domain != PCOLL_DOMAIN_RANK && ranks > 1;
    struct placement placement = {
        .ranks = ranks, .domains = node ? 1 : ranks, .members = node ? ranks : 1};
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

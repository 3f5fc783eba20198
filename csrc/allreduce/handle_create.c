/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creation of a handle. Each rank makes its part, and the leader of a domain the shared memory.
 * Two agreements follow. The first one compares the arguments and tells the members of each domain
 * where its memory is. They open it, and each rank enters the endpoint in its table. The second
 * one tells that all ranks have done so, at the same slot. A rank that fails takes part in the
 * agreements all the same, so that the call fails on every rank.
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
                    int nbuffers, const struct payload *payload, const pcoll_options *o,
                    uint64_t *more, int extra)
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
    return agree_same(c, local, fields, sizeof fields / sizeof *fields, more, extra);
}

/*
 * Shared memory: the leader of each domain makes a segment and tells all ranks its descriptor, and
 * the members open it. Each then reserves its own part. Whether some member has send buffers in the
 * memory is known when the descriptors are, so the segment has room for them, which takes no memory
 * before it is reserved.
 */
struct sharing {
    size_t bytes;        /* Of the segment. */
    struct failure made; /* Why the leader has none. */
    /* The maxima over all ranks: has a rank send buffers? Then, by rank, 1 + the descriptor of the
     * segment that the rank has made, or 0. */
    uint64_t *words;
    int count;
};

/* A native handle leaves everything to MPI. A record is of single ranks, and its replay, which
 * may run on other hosts, must add in the same order: neither shares memory. */
int sharing_place(struct communicator *c, const pcoll_buffer *buffers, int nbuffers,
                  const pcoll_options *options, const struct endpoint *follows,
                  struct endpoint **endpoint)
{
    const struct transport *t = c->transport;
    bool unplaced = options->algorithm == PCOLL_ALGORITHM_NATIVE || event_log_wanted();
    struct endpoint_spec spec = {
        .ranks = t->size,
        .failed = t->failed,
        .off_node = t->off_node,
        .hosts = unplaced ? NULL : t->hosts,
        .most = options->domain == PCOLL_DOMAIN_RANK ? 1 : options->domain_ranks,
        .buffers = buffers,
        .nbuffers = nbuffers,
        .make_user = mpi_reduction_create,
        .options = options,
        .follows = follows};
    return endpoint_create(c, &spec, endpoint);
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

/* Make the segment, if this rank leads a domain of several, and fill in what the ranks tell each
 * other. `endpoint` is NULL if this rank has failed. */
static int sharing_offer(struct communicator *c, struct endpoint *endpoint,
                         struct sharing *s)
{
    const struct transport *t = c->transport;
    *s = (struct sharing){.count = 1 + (int)t->size};
    if (!(s->words = calloc((size_t)s->count, sizeof *s->words)))
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", t->size);
    if (!endpoint || endpoint->placement.members == 1)
        return PCOLL_OK;
    const struct placement *p = &endpoint->placement;
    pcoll_options most = endpoint->options;
    most.owned_send = 1;
    s->words[0] = endpoint->options.owned_send != 0;
    s->bytes = node_bytes(&endpoint->shape, &most, p);
    if (p->leads)
        s->made = fail_keep(segment_create(
            s->bytes, node_bytes(&endpoint->shape, &endpoint->options, p),
            sharing_doorbell(endpoint, t->rank)->cookie, &endpoint->segment));
    s->words[1 + t->rank] = (uint64_t)(endpoint->segment.fd + 1);
    return PCOLL_OK;
}

static int sharing_open_segment(struct endpoint *endpoint, const struct sharing *s)
{
    uint32_t leader = endpoint->placement.member[0];
    uint64_t fd = s->words[1 + leader];
    if (!fd)
        return fail(PCOLL_ENOMEM, "rank %u could not make the memory of its domain",
                    leader);
    return segment_open(endpoint->communicator->transport->pids[leader], fd - 1,
                        s->bytes, sharing_doorbell(endpoint, leader)->cookie,
                        &endpoint->segment);
}

/* Give the endpoint its domain, by what the ranks have told each other. Local. */
static int sharing_accept(struct endpoint *endpoint, const struct sharing *s)
{
    const struct placement *p = &endpoint->placement;
    if (p->members == 1)
        return endpoint_settle_alone(endpoint);
    /* The options as far as the memory depends on them. */
    pcoll_options common = endpoint->options;
    common.owned_send = s->words[0] != 0;
    int rc = p->leads ? fail_again(&s->made) : sharing_open_segment(endpoint, s);
    for (int part = 0; part < NODE_PARTS && rc == PCOLL_OK; part++) {
        size_t offset, length;
        node_part(&endpoint->shape, &common, p, (enum node_part)part, &offset, &length);
        rc = segment_reserve(&endpoint->segment, offset, length);
    }
    if (rc != PCOLL_OK)
        return rc;
    struct node_hooks hooks = {.memory = endpoint->segment.memory,
                               .placement = p,
                               .slot = &endpoint->base.slot,
                               .owned_sends = common.owned_send,
                               .arg = endpoint,
                               .wake = sharing_wake,
                               .alert = sharing_alert,
                               .cores = sharing_count_cores(endpoint),
                               .now = sharing_now};
    return endpoint_settle(endpoint, domain_node_create, &hooks);
}

int sharing_settle(struct communicator *c, struct endpoint *endpoint)
{
    struct sharing s;
    int rc = sharing_offer(c, endpoint, &s);
    if (rc == PCOLL_OK && endpoint->placement.domains < endpoint->placement.ranks)
        rc = agree_max(c, s.words, s.count);
    if (rc == PCOLL_OK)
        rc = agree_outcome(c, sharing_accept(endpoint, &s));
    free(s.words);
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
    mpi_world(&rank, &ranks);
    rc = sharing_place(c, buffers, nbuffers, &thrifty, NULL, endpoint)
             ?: handle_start_agent(c, *endpoint, o);
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
static int handle_agree_replay(struct communicator *c, uint64_t *limit)
{
    uint64_t lacking = UINT64_MAX - *limit;
    int rc = agree_max(c, &lacking, 1);
    *limit = UINT64_MAX - lacking;
    return rc;
}

/* Agree with the other ranks. Set *unshared if, on all ranks, there was not enough memory to
 * share. `endpoint` is NULL if this rank has failed. */
static int handle_join_others(struct communicator *c, int local,
                              const pcoll_buffer *buffers, int nbuffers,
                              const pcoll_options *o, struct endpoint *endpoint,
                              bool *unshared)
{
    struct sharing s;
    agree_settle(c);
    int rc = sharing_offer(c, local == PCOLL_OK ? endpoint : NULL, &s)
                 ?: agree_arguments(c, local, buffers, nbuffers,
                                    endpoint ? &endpoint->shape.payload : NULL, o,
                                    s.words, s.count);
    if (rc == PCOLL_OK && endpoint->event_log)
        rc = handle_agree_replay(c, event_log_limit(endpoint->event_log));
    if (rc == PCOLL_OK) {
        int made = sharing_accept(endpoint, &s);
        if (endpoint->data.plan.algorithm == PCOLL_ALGORITHM_NATIVE)
            made = rc = agree_outcome(c, made) ?: handle_open_channel(c, endpoint);
        MOMENT("entering");
        rc = rc ?: agree_enter(c, &endpoint->base, made);
        *unshared = rc == PCOLL_ENOMEM;
    }
    free(s.words);
    if (endpoint)
        segment_sealed(&endpoint->segment);
    return rc;
}

static int handle_create(struct communicator *c, const pcoll_buffer *buffers,
                         int nbuffers, const pcoll_options *options,
                         pcoll_handle **handle, bool *unshared)
{
    struct endpoint *endpoint = NULL;
    pcoll_handle *h = handle_new(options->on_failure == PCOLL_FAILURE_CONTINUE);
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
        if (h)
            handle_free_shell(&h->base);
        return rc;
    }
    h->endpoint = endpoint;
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
    *bytes = node_bytes(&shape, &thrifty, &placement) / placement.members;
    *bytes += node ? 0 : endpoint_bytes(&shape, &plan, &options->policy);
    *bytes += options->device ? staging_bytes(&shape.payload) : 0;
    round_shape_destroy(&shape);
    return PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of an allreduce, as numbers that its ranks compare. */
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
#include "allreduce/endpoint.h"
#include "allreduce/handle.h"
#include "allreduce/event_log.h"

enum field {
    FIELD_BUFFERS,
    FIELD_COUNT,
    FIELD_DTYPE,
    FIELD_OP,
    FIELD_ELEMENT,
    FIELD_POLICY,
    FIELD_POLICY_COUNT,
    FIELD_POLICY_FRACTION,
    FIELD_LINGER,
    FIELD_DEADLINE,
    FIELD_MAX_STALENESS,
    FIELD_RECORDS,
    FIELD_DOMAIN,
    FIELD_DOMAIN_RANKS,
    FIELD_ALGORITHM,
    FIELD_DELIVER,
    FIELD_LATE,
    FIELD_HISTORY,
    FIELD_SEED,
    FIELD_NAME,
    FIELDS
};

static const char *const policy_names[] = {"solo",     "majority", "full", "quorum",
                                           "first_of", "last_of",  NULL};
static const char *const deliver_names[] = {"one", "all", NULL};
static const char *const set_names[] = {"not set", "set", NULL};
static const char *const domain_names[] = {"node", "rank", "auto", NULL};
static const char *const late_names[] = {"carry", "latest", "drop", NULL};

static const struct agree_field fields[FIELDS] = {
    [FIELD_BUFFERS] = {"number of buffers", NULL},
    [FIELD_COUNT] = {"count", NULL},
    [FIELD_DTYPE] = {"dtype", dtype_names},
    [FIELD_OP] = {"op", op_names},
    [FIELD_ELEMENT] = {"datatype (bytes of an element)", NULL},
    [FIELD_POLICY] = {"quorum", policy_names},
    [FIELD_POLICY_COUNT] = {"quorum (number of ranks)", NULL},
    [FIELD_POLICY_FRACTION] = {"quorum (fraction)", .real = true},
    [FIELD_LINGER] = {"quorum (linger)", .real = true},
    [FIELD_DEADLINE] = {"quorum (deadline)", .real = true},
    [FIELD_MAX_STALENESS] = {"quorum (max_staleness)", NULL},
    [FIELD_RECORDS] = {"PARTIALCOLL_RECORD, PARTIALCOLL_REPLAY", set_names},
    [FIELD_DOMAIN] = {"domain", domain_names},
    [FIELD_DOMAIN_RANKS] = {"domain (most ranks)", NULL},
    [FIELD_ALGORITHM] = {"algorithm", algorithm_names},
    [FIELD_DELIVER] = {"deliver", deliver_names},
    [FIELD_LATE] = {"late", late_names},
    [FIELD_HISTORY] = {"history", NULL},
    [FIELD_SEED] = {"seed", NULL},
    [FIELD_NAME] = {"name (its hash)", NULL},
};

/* One buffer: the value itself. Several: a hash of all, which only shows that they
 * differ. */
static uint64_t arguments_fold(uint64_t so_far, uint64_t value, int nbuffers)
{
    return nbuffers == 1 ? value : splitmix_mix(so_far ^ (value + 1)) >> 1;
}

static void arguments_fill(uint64_t *f, const pcoll_buffer *buffers, int nbuffers,
                           const struct payload *payload, const pcoll_options *o)
{
    memset(f, 0, FIELDS * sizeof *f);
    f[FIELD_BUFFERS] = (uint64_t)nbuffers;
    for (int i = 0; i < nbuffers; i++) {
        f[FIELD_COUNT] = arguments_fold(f[FIELD_COUNT], buffers[i].count, nbuffers);
        f[FIELD_DTYPE] =
            arguments_fold(f[FIELD_DTYPE], (uint64_t)buffers[i].dtype, nbuffers);
        f[FIELD_OP] = arguments_fold(f[FIELD_OP], (uint64_t)buffers[i].op, nbuffers);
        f[FIELD_ELEMENT] =
            arguments_fold(f[FIELD_ELEMENT], payload->part[i].element, nbuffers);
    }
    f[FIELD_POLICY] = (uint64_t)o->policy.kind;
    f[FIELD_POLICY_COUNT] = o->policy.count;
    memcpy(&f[FIELD_POLICY_FRACTION], &o->policy.fraction, sizeof *f);
    memcpy(&f[FIELD_LINGER], &o->policy.linger, sizeof *f);
    memcpy(&f[FIELD_DEADLINE], &o->policy.deadline, sizeof *f);
    f[FIELD_MAX_STALENESS] = o->policy.max_staleness;
    f[FIELD_RECORDS] = event_log_wanted();
    f[FIELD_DOMAIN] = (uint64_t)o->domain;
    f[FIELD_DOMAIN_RANKS] = o->domain_ranks;
    f[FIELD_ALGORITHM] = (uint64_t)o->algorithm;
    f[FIELD_DELIVER] = (uint64_t)o->deliver;
    f[FIELD_LATE] = (uint64_t)o->late;
    f[FIELD_HISTORY] = o->history;
    f[FIELD_SEED] = o->seed;
    f[FIELD_NAME] = o->name;
}

int agree_arguments(struct communicator *c, int local, const pcoll_buffer *buffers,
                    int nbuffers, const struct payload *payload,
                    const pcoll_options *options)
{
    _Static_assert((int)FIELDS <= (int)AGREE_FIELDS, "room for all of them");
    uint64_t own[FIELDS] = {0};
    if (local == PCOLL_OK)
        arguments_fill(own, buffers, nbuffers, payload, options);
    return agree_same(c, local, fields, own, FIELDS);
}

/*
 * How ranks come to share memory: the leader of each domain makes a segment, tells all
 * which file it is, and the members open it. Each then reserves its own part, and all
 * agree that all could.
 */

/* A native handle leaves everything to the vendor. A record is of single ranks, and its
 * replay, which may run on other hosts, must add in the same order. */
void sharing_place(const struct communicator *c, const pcoll_options *options,
                   struct endpoint_spec *spec)
{
    bool unplaced = options->algorithm == PCOLL_ALGORITHM_NATIVE || event_log_wanted();
    spec->hosts = unplaced ? NULL : c->transport->hosts;
    spec->most = options->domain == PCOLL_DOMAIN_RANK ? 1 : options->domain_ranks;
}

static struct doorbell_page *sharing_doorbell(const struct endpoint *v, uint32_t rank)
{
    const struct transport *t = v->communicator->transport;
    return rank == t->rank ? progress_doorbell(v->communicator->progress)->page
                           : t->doorbells[rank];
}

static void sharing_wake(void *arg, uint32_t rank)
{
    doorbell_wake_waiters(sharing_doorbell(arg, rank));
}

static void sharing_alert(void *arg, uint32_t rank)
{
    struct endpoint *v = arg;
    if (rank == v->communicator->transport->rank)
        communicator_notify(v->communicator, &v->base);
    else
        doorbell_ring(sharing_doorbell(v, rank));
}

static int64_t sharing_now(void *arg)
{
    return communicator_now(((struct endpoint *)arg)->communicator);
}

/* Return the number of cores that the members of this rank's domain may use together: a
 * container or a batch system may give them fewer than the machine has. */
static uint32_t sharing_count_cores(const struct endpoint *v)
{
    const struct placement *p = &v->placement;
    const uint64_t *pids = v->communicator->transport->pids;
    cpu_set_t one, all;
    CPU_ZERO(&all);
    for (uint32_t i = 0; i < p->members; i++)
        if (sched_getaffinity((pid_t)pids[p->member[i]], sizeof one, &one) == 0)
            CPU_OR(&all, &all, &one);
    int cores = CPU_COUNT(&all);
    return (uint32_t)(cores ? cores : sysconf(_SC_NPROCESSORS_ONLN));
}

static int sharing_open_segment(struct endpoint *v, size_t bytes, uint64_t fd)
{
    uint32_t leader = v->placement.leader[v->placement.index];
    if (!fd)
        return fail(PCOLL_ENOMEM, "rank %u could not make the memory of its domain",
                    leader);
    return segment_open(v->communicator->transport->pids[leader], fd - 1, bytes,
                        sharing_doorbell(v, leader)->cookie, &v->segment);
}

static int sharing_reserve(struct endpoint *v, const pcoll_options *options)
{
    int rc = PCOLL_OK;
    for (int part = 0; part < NODE_PARTS && rc == PCOLL_OK; part++) {
        size_t offset, bytes;
        node_part(&v->shape, options, &v->placement, (enum node_part)part, &offset,
                  &bytes);
        rc = segment_reserve(&v->segment, offset, bytes);
    }
    return rc;
}

/* common: options as far as the memory depends on them. */
static int sharing_settle_node(struct endpoint *v, const pcoll_options *options,
                               const pcoll_options *common, size_t bytes, uint64_t fd)
{
    int rc = v->placement.leads ? PCOLL_OK : sharing_open_segment(v, bytes, fd);
    if (rc == PCOLL_OK)
        rc = sharing_reserve(v, common);
    struct node_hooks hooks = {.memory = v->segment.memory,
                               .placement = &v->placement,
                               .slot = &v->base.slot,
                               .owned_sends = common->owned_send,
                               .arg = v,
                               .wake = sharing_wake,
                               .alert = sharing_alert,
                               .cores = sharing_count_cores(v),
                               .now = sharing_now};
    return rc == PCOLL_OK ? endpoint_settle(v, options, domain_node_create, &hooks)
                          : rc;
}

static int sharing_settle_single(struct endpoint *v, const pcoll_options *options)
{
    return endpoint_settle(v, options, domain_single_create,
                           &v->communicator->transport->rank);
}

static int sharing_share(struct communicator *c, struct endpoint *v,
                         const pcoll_options *options, const pcoll_options *common)
{
    const struct placement *p = &v->placement;
    bool shares = p->members > 1;
    size_t bytes = shares ? node_bytes(&v->shape, common, p) : 0;
    int made =
        shares && p->leads
            ? segment_create(bytes, sharing_doorbell(v, c->transport->rank)->cookie,
                             &v->segment)
            : PCOLL_OK;
    uint64_t *fds;
    int rc = agree_gather(c, (uint64_t)(v->segment.fd + 1), &fds);
    if (rc == PCOLL_OK) {
        uint64_t fd = fds[p->leader[p->index]];
        if (made == PCOLL_OK)
            made = shares ? sharing_settle_node(v, options, common, bytes, fd)
                          : sharing_settle_single(v, options);
        rc = agree_outcome(c, made);
    }
    free(fds);
    segment_sealed(&v->segment);
    return rc;
}

int sharing_settle(struct communicator *c, struct endpoint *v,
                   const pcoll_options *options)
{
    if (v->placement.domains == v->placement.ranks)
        return agree_outcome(c, sharing_settle_single(v, options));
    uint64_t owned = options->owned_send != 0;
    int rc = agree_max(c, &owned, 1);
    pcoll_options common = *options;
    common.owned_send = owned != 0;
    return rc == PCOLL_OK ? sharing_share(c, v, options, &common) : rc;
}

/*
 * Making a handle: each rank makes its part, then all compare their arguments, share
 * memory where they are to, agree on a slot, enter the endpoint in their
 * tables, and agree that all have done so. A rank that fails takes part in the
 * agreements all the same, so that it fails on every rank.
 */

static int handle_open_event_log(struct endpoint *v)
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
static int handle_make_staging(struct endpoint *v, const pcoll_options *o)
{
    if (v->event_log)
        return fail(PCOLL_EINVAL, "buffers on a device cannot be recorded or replayed: "
                                  "when they arrive is the device's business");
    return staging_create(o->device - 1, &v->staging);
}

/* This rank's part, before anybody else is asked. */
static int handle_make_endpoint(struct communicator *c, const pcoll_buffer *buffers,
                                int nbuffers, const pcoll_options *o,
                                struct endpoint **v)
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
        rc = handle_open_event_log(*v);
    return rc == PCOLL_OK && o->device ? handle_make_staging(*v, o) : rc;
}

/* Opening goes on while nobody holds the progress lock: others may need the agent. */
static int handle_await_channel(struct communicator *c, struct channel *channel)
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
static int handle_open_channel(struct communicator *c, struct endpoint *v)
{
    progress_lock(c->progress);
    int rc = endpoint_open(v);
    progress_unlock(c->progress);
    if (rc == PCOLL_OK && v->channel)
        rc = handle_await_channel(c, v->channel);
    return rc == PCOLL_OK ? rc : communicator_fail_undriven(c, rc);
}

/* Where a rank's record is incomplete, all replay the rounds that every rank has. */
static int handle_agree_replay(struct communicator *c, struct event_log *log)
{
    uint64_t lacking = UINT64_MAX - event_log_rounds(log);
    int rc = agree_max(c, &lacking, 1);
    event_log_set_limit(log, UINT64_MAX - lacking);
    return rc;
}

/* Agree with the others. *unshared: on all ranks, there was not enough memory to share.
 */
static int handle_join_others(struct communicator *c, int local,
                              const pcoll_buffer *buffers, int nbuffers,
                              const pcoll_options *o, struct endpoint *v,
                              bool *unshared)
{
    agree_settle(c);
    int rc =
        agree_arguments(c, local, buffers, nbuffers, v ? &v->shape.payload : NULL, o);
    pcoll_options thrifty = options_thrifty(o);
    if (rc == PCOLL_OK && v->event_log)
        rc = handle_agree_replay(c, v->event_log);
    if (rc == PCOLL_OK)
        *unshared = (rc = sharing_settle(c, v, &thrifty)) == PCOLL_ENOMEM;
    if (rc == PCOLL_OK)
        rc = handle_open_channel(c, v);
    MOMENT("entering");
    return rc == PCOLL_OK ? agree_enter(c, &v->base) : rc;
}

static int handle_create(struct communicator *c, const pcoll_buffer *buffers,
                         int nbuffers, const pcoll_options *options,
                         pcoll_handle **handle, bool *unshared)
{
    struct endpoint *v = NULL;
    pcoll_handle *h = calloc(1, sizeof *h);
    int local = h ? handle_make_endpoint(c, buffers, nbuffers, options, &v)
                  : fail(PCOLL_ENOMEM, "no memory for a handle");
    pcoll_options resolved = *options;
    if (v)
        resolved.algorithm = (int32_t)v->data.plan.algorithm;
    int rc = handle_join_others(c, local, buffers, nbuffers, &resolved, v, unshared);
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

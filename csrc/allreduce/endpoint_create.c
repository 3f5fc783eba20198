/* SPDX-License-Identifier: Apache-2.0 */
/* Making an endpoint: the form of its messages, its algorithm, its schedule. */
#include "allreduce/endpoint.h"

#include <stdlib.h>

#include "base/memory.h"
#include "runtime/user_object.h"
#include "allreduce/staging.h"
#include "allreduce/tuning.h"

void pcoll_options_init(pcoll_options *options)
{
    if (!options)
        return;
    *options = (pcoll_options){
        .policy.kind = PCOLL_FULL,
        .algorithm = PCOLL_ALGORITHM_AUTO,
        .deliver = PCOLL_DELIVER_ONE,
        .late = PCOLL_LATE_CARRY,
        .progress = PCOLL_PROGRESS_AGENT,
        .history = 8,
        .domain = PCOLL_DOMAIN_NODE,
    };
}

static int options_check_failure(const pcoll_options *o)
{
    int rc = user_object_check_failure(o->on_failure, o->progress);
    if (rc != PCOLL_OK || o->on_failure == PCOLL_FAILURE_RAISE)
        return rc;
    if (o->algorithm == PCOLL_ALGORITHM_NATIVE)
        return fail(
            PCOLL_EINVAL,
            "on_failure: \"continue\" cannot take back what algorithm \"native\" "
            "has left to MPI; use another one");
    if (o->device)
        return fail(PCOLL_EINVAL,
                    "on_failure: \"continue\" is for buffers of the host only");
    if (event_log_wanted())
        return fail(PCOLL_EINVAL, "on_failure: \"continue\" cannot be recorded or "
                                  "replayed: when ranks die is not in the record");
    return PCOLL_OK;
}

int options_check(const pcoll_options *o)
{
    if (o->invalid)
        return fail(PCOLL_EINVAL, "invalid arguments");
    char text[256]; /* The longest text has 130 characters. */
    int rc = pcoll_policy_format(&o->policy, text, sizeof text);
    if (rc != PCOLL_OK)
        return rc;
    if (o->history < 1 || o->history > 1u << 20)
        return fail(PCOLL_EINVAL, "history: expected 1 to %u rounds, got %u", 1u << 20,
                    o->history);
    if (o->deliver < PCOLL_DELIVER_ONE || o->deliver > PCOLL_DELIVER_ALL)
        return fail(PCOLL_EINVAL, "deliver: unknown value %d", o->deliver);
    if (o->algorithm < PCOLL_ALGORITHM_AUTO || o->algorithm > PCOLL_ALGORITHM_NATIVE)
        return fail(PCOLL_EINVAL, "algorithm: unknown value %d", o->algorithm);
    if (o->domain < PCOLL_DOMAIN_NODE || o->domain > PCOLL_DOMAIN_AUTO)
        return fail(PCOLL_EINVAL, "domain: unknown value %d", o->domain);
    if (o->late < PCOLL_LATE_CARRY || o->late > PCOLL_LATE_DROP)
        return fail(PCOLL_EINVAL, "late: unknown value %d", o->late);
    if (o->progress < PCOLL_PROGRESS_AGENT || o->progress > PCOLL_PROGRESS_SPIN)
        return fail(PCOLL_EINVAL, "progress: unknown value %d", o->progress);
    if (o->progress == PCOLL_PROGRESS_MANUAL && policy_has_timers(&o->policy))
        return fail(PCOLL_EINVAL,
                    "progress: linger and deadline need the agent, and manual progress "
                    "has none");
    bool all_arrive = o->policy.kind == PCOLL_FULL && o->policy.deadline <= 0;
    if (o->described && !(all_arrive && o->deliver == PCOLL_DELIVER_ONE && !o->device &&
                          o->algorithm <= PCOLL_ALGORITHM_RECDBL))
        return fail(
            PCOLL_EINVAL,
            "described: expected policy full without a deadline, deliver=\"one\", "
            "algorithm recdbl and buffers of the host");
    return options_check_failure(o);
}

/* If all ranks arrive at every round and read every round, none can be two rounds behind: one
 * result to read and one to build are enough, and they stay in the cache. */
pcoll_options options_thrifty(const pcoll_options *o)
{
    pcoll_options thrifty = *o;
    bool all_arrive = o->policy.kind == PCOLL_FULL && o->policy.deadline <= 0;
    if (all_arrive && o->deliver == PCOLL_DELIVER_ONE)
        thrifty.history = 1;
    return thrifty;
}

/* Check the algorithm that was asked for, or choose by the table. Use the ring instead of
 * Rabenseifner's algorithm if elements do not let the headers into the gaps. MPI's own allreduce
 * needs all ranks, not one for each domain. */
static int endpoint_choose_algorithm(const struct endpoint_spec *spec,
                                     const struct placement *placement,
                                     const struct payload *payload,
                                     enum pcoll_algorithm *a)
{
    if (*a == PCOLL_ALGORITHM_RABENSEIFNER && !payload_evenly_cut(payload))
        return fail(PCOLL_EINVAL,
                    "algorithm: rabenseifner needs elements whose size divides 64 "
                    "bytes; use recdbl or ring");
    if (*a == PCOLL_ALGORITHM_NATIVE && !payload_is_native(payload))
        return fail(
            PCOLL_EINVAL,
            "algorithm: native takes no ops or datatypes of users (a round to which "
            "a rank does not contribute needs an identity), and at most 2^31 - 1 "
            "elements in a buffer; use another one");
    if (spec->options->described) /* Whole payloads fit whatever form a peer has. */
        *a = PCOLL_ALGORITHM_RECDBL;
    if (*a != PCOLL_ALGORITHM_AUTO)
        return PCOLL_OK;
    int rc = tuning_choose(placement, payload->bytes, spec->off_node, a);
    bool continues = spec->options->on_failure == PCOLL_FAILURE_CONTINUE;
    bool native =
        placement->domains == spec->ranks && !continues && payload_is_native(payload);
    if (*a == PCOLL_ALGORITHM_NATIVE && !native)
        *a = PCOLL_ALGORITHM_RABENSEIFNER;
    if (*a == PCOLL_ALGORITHM_RABENSEIFNER && !payload_evenly_cut(payload))
        *a = PCOLL_ALGORITHM_RING;
    return rc;
}

int endpoint_lay_out(const struct endpoint_spec *spec,
                     const struct placement *placement, struct round_shape *shape,
                     struct algorithm_plan *plan)
{
    int rc = spec->follows ? round_shape_share(shape, &spec->follows->shape)
                           : round_shape_init(shape, spec->ranks, spec->buffers,
                                              spec->nbuffers, spec->make_user);
    if (rc != PCOLL_OK)
        return rc;
    const struct payload *payload = &shape->payload;
    bool plain = payload->parts == 1 && !payload->part[0].user;
    if (spec->options->described && !plain) {
        round_shape_destroy(shape);
        return fail(PCOLL_EINVAL, "described: expected one buffer without an MPI op or "
                                  "datatype");
    }
    shape->described = spec->options->described;
    round_shape_call(shape, 0);
    enum pcoll_algorithm algorithm = (enum pcoll_algorithm)spec->options->algorithm;
    rc = round_shape_bury(shape, spec->failed)
             ?: endpoint_choose_algorithm(spec, placement, payload, &algorithm);
    if (rc != PCOLL_OK) {
        round_shape_destroy(shape);
        return rc;
    }
    algorithm_plan(algorithm, placement->domains, payload->bytes, plan);
    plan->native_parts = payload->parts;
    if (plan->padded)
        round_shape_pad(shape, plan->padded);
    return PCOLL_OK;
}

size_t endpoint_bytes(const struct round_shape *shape,
                      const struct algorithm_plan *plan, const pcoll_policy *policy)
{
    return data_bytes(shape, plan) + endpoint_trigger_bytes(policy, shape->ranks,
                                                            shape->ranks,
                                                            bitset_words(shape->ranks));
}

static int endpoint_build_schedule(struct endpoint *endpoint)
{
    uint32_t rank = endpoint->drives ? endpoint->placement.index : 0,
             size = endpoint->drives ? endpoint->placement.domains : 1;
    if (!(endpoint->sched = sched_create()))
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    bool broadcasts = policy_activates(&endpoint->options.policy);
    build_activation(endpoint->sched, broadcasts ? rank : 0, broadcasts ? size : 1,
                     broadcasts && policy_starts_alone(&endpoint->options.policy),
                     &endpoint->activation);
    sched_end(endpoint->sched,
              build_allreduce(endpoint->sched, rank, size, endpoint->activation.active,
                              &endpoint->data.plan));
    if (endpoint->placement.leader)
        sched_map_peers(endpoint->sched, endpoint->placement.leader);
    return sched_commit(endpoint->sched)
               ?: engine_init(&endpoint->engine, endpoint->sched);
}

/* Everything but the domain. */
static int endpoint_init(struct endpoint *endpoint, const struct endpoint_spec *spec)
{
    struct algorithm_plan plan;
    struct placement *p = &endpoint->placement;
    int rc = placement_init(p, endpoint->communicator->transport->rank, spec->ranks,
                            spec->hosts, spec->failed, spec->most);
    if (rc != PCOLL_OK)
        return rc;
    endpoint->drives = p->members == 1 || (p->leads && p->domains > 1);
    if ((rc = endpoint_lay_out(spec, p, &endpoint->shape, &plan)) != PCOLL_OK)
        return rc;
    /* A round touches the send buffer, the deposit and the receive buffer of each member. */
    endpoint->shape.payload.past_cache =
        3 * p->members * endpoint->shape.payload.bytes > memory_cache_size();
    if (!endpoint->drives) /* It needs no memory for messages. */
        plan.temps = 0;
    rc = data_init(&endpoint->data, &endpoint->shape, &plan)
             ?: endpoint_trigger_init(endpoint)
             ?: endpoint_build_schedule(endpoint);
    /* A single member places the temporaries beside its domain. */
    return rc == PCOLL_OK && p->members > 1 ? data_place(&endpoint->data, NULL) : rc;
}

int endpoint_create(struct communicator *c, const struct endpoint_spec *spec,
                    struct endpoint **out)
{
    struct endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    endpoint->base = object_init(&endpoint_ops);
    endpoint->communicator = c;
    endpoint->options = *spec->options;
    endpoint->initiator = ROUND_NOBODY;
    endpoint->segment.fd = -1;
    int rc = endpoint_init(endpoint, spec);
    if (rc != PCOLL_OK) {
        endpoint_destroy(&endpoint);
        return rc;
    }
    *out = endpoint;
    return PCOLL_OK;
}

int endpoint_settle(struct endpoint *endpoint, domain_create_fn *create_domain,
                    void *arg)
{
    int rc =
        create_domain(&endpoint->shape, &endpoint->options, arg, &endpoint->domain);
    if (rc != PCOLL_OK)
        return rc;
    struct domain *d = endpoint->domain;
    endpoint->base.watched = endpoint->drives && d->members > 1;
    if (d->members > 1)
        return PCOLL_OK;
    return data_place(&endpoint->data, d->hooks.beside ? d->private_memory : NULL);
}

int endpoint_settle_alone(struct endpoint *endpoint)
{
    /* A device pins the domain's memory, which begins with a page then. */
    bool pinned = endpoint->options.device;
    size_t temps = data_bytes(&endpoint->shape, &endpoint->data.plan);
    struct node_hooks hooks = {.placement = &endpoint->placement,
                               .beside = pinned ? 0 : temps,
                               .owned_sends = endpoint->options.owned_send};
    return endpoint_settle(endpoint, domain_node_create, &hooks);
}

int endpoint_open(struct endpoint *endpoint)
{
    struct transport *t = endpoint->communicator->transport;
    bool native =
        endpoint->drives && endpoint->data.plan.algorithm == PCOLL_ALGORITHM_NATIVE;
    return native ? t->ops->open(t, &endpoint->channel) : PCOLL_OK;
}

void endpoint_begin_at(struct endpoint *endpoint, struct endpoint *old, uint64_t round,
                       const struct round_header *last)
{
    endpoint->engine.current = round;
    endpoint_trigger_find_live(endpoint, last);
    endpoint->domain->ops->begin_at(endpoint->domain, old ? old->domain : NULL, round,
                                    last);
}

int endpoint_inherit(struct endpoint *endpoint, struct endpoint *old,
                     const struct round_header *last)
{
    CHECK(!old || (!old->staging && !old->event_log)); /* Refused at creation. */
    if (old) {
        endpoint->engine.dropped += old->engine.dropped;
        endpoint->engine.early += old->engine.early;
    }
    if (old)
        round_shape_follow(&endpoint->shape, &old->shape);
    return endpoint->domain->ops->inherit(endpoint->domain, old ? old->domain : NULL,
                                          endpoint->engine.current, last);
}

void endpoint_destroy(struct endpoint **at)
{
    struct endpoint *endpoint = *at;
    staging_destroy(&endpoint->staging);
    if (endpoint->domain)
        endpoint->domain->ops->destroy(endpoint->domain);
    segment_close(&endpoint->segment);
    engine_destroy(&endpoint->engine);
    sched_free(&endpoint->sched);
    round_shape_destroy(&endpoint->shape);
    data_destroy(&endpoint->data);
    if (endpoint->channel)
        endpoint->communicator->transport->ops->close(endpoint->communicator->transport,
                                                      endpoint->channel);
    event_log_close(&endpoint->event_log);
    free(endpoint->trigger.live);
    placement_destroy(&endpoint->placement);
    free(endpoint);
    *at = NULL;
}

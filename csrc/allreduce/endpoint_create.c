/* SPDX-License-Identifier: Apache-2.0 */
/* Making an endpoint: the form of its messages, its algorithm, its schedule. */
#include <stdbool.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/error.h"
#include "protocol/policy.h"
#include "runtime/user_object.h"
#include "allreduce/endpoint.h"
#include "allreduce/event_log.h"
#include "allreduce/staging.h"
#include "allreduce/tuning.h"

void pcoll_options_init(pcoll_options *options)
{
    if (!options)
        return;
    *options = (pcoll_options){
        .policy.kind = PCOLL_SOLO,
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
    char text[256]; /* the longest has 130 */
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
    return options_check_failure(o);
}

/* Where all arrive at every round and are given every round, none can be two rounds
 * behind: one result to read and one to build are enough, and they stay in the cache.
 */
pcoll_options options_thrifty(const pcoll_options *o)
{
    pcoll_options thrifty = *o;
    bool all_arrive = o->policy.kind == PCOLL_FULL && o->policy.deadline <= 0;
    if (all_arrive && o->deliver == PCOLL_DELIVER_ONE)
        thrifty.history = 1;
    return thrifty;
}

/* Of the table; the ring, where elements do not let the headers into the gaps. MPI's own
 * needs all ranks, not one for each domain. */
static int endpoint_choose_algorithm(const struct endpoint_spec *spec,
                                     const struct placement *placement,
                                     const struct payload *payload,
                                     enum pcoll_algorithm *a)
{
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
    if ((rc = round_shape_bury(shape, spec->failed)) != PCOLL_OK) {
        round_shape_destroy(shape);
        return rc;
    }
    enum pcoll_algorithm algorithm = (enum pcoll_algorithm)spec->options->algorithm;
    if (algorithm == PCOLL_ALGORITHM_AUTO)
        rc = endpoint_choose_algorithm(spec, placement, &shape->payload, &algorithm);
    else if (algorithm == PCOLL_ALGORITHM_RABENSEIFNER &&
             !payload_evenly_cut(&shape->payload))
        rc = fail(PCOLL_EINVAL,
                  "algorithm: rabenseifner needs elements whose size divides 64 bytes; "
                  "use recdbl or ring");
    else if (algorithm == PCOLL_ALGORITHM_NATIVE && !payload_is_native(&shape->payload))
        rc = fail(
            PCOLL_EINVAL,
            "algorithm: native takes no ops or datatypes of users (a round to which "
            "a rank does not contribute needs an identity), and at most 2^31 - 1 "
            "elements in a buffer; use another one");
    if (rc != PCOLL_OK) {
        round_shape_destroy(shape);
        return rc;
    }
    algorithm_plan(algorithm, placement->domains, shape->payload.bytes, plan);
    plan->native_parts = shape->payload.parts;
    if (plan->padded)
        round_shape_pad(shape, plan->padded);
    return PCOLL_OK;
}

size_t endpoint_bytes(const struct round_shape *shape,
                      const struct algorithm_plan *plan, const pcoll_policy *policy)
{
    return data_bytes(shape, plan) +
           endpoint_trigger_bytes(policy, shape->ranks, shape->ranks);
}

static int endpoint_build_schedule(struct endpoint *v)
{
    uint32_t rank = v->drives ? v->placement.index : 0,
             size = v->drives ? v->placement.domains : 1;
    if (!(v->sched = sched_create()))
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    if (!policy_starts_alone(&v->policy))
        build_activation(v->sched, rank, size, &v->activation);
    else if (policy_activates(&v->policy))
        build_forced_activation(v->sched, rank, size, &v->activation);
    else
        build_own_activation(v->sched, &v->activation);
    sched_end(v->sched, build_allreduce(v->sched, rank, size, v->activation.active,
                                        &v->data.plan));
    sched_map_peers(v->sched, v->placement.leader);
    int rc = sched_commit(v->sched);
    return rc == PCOLL_OK ? engine_init(&v->engine, v->sched) : rc;
}

/* What an endpoint does not run needs no memory for messages. */
static int endpoint_allocate(struct endpoint *v, struct algorithm_plan *plan)
{
    if (!v->drives)
        plan->temps = 0;
    v->live = calloc(bitset_words(v->shape.ranks), sizeof *v->live);
    if (!v->live)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", v->shape.ranks);
    round_live_now(NULL, v->shape.ranks, v->shape.failed, v->live);
    int rc = data_init(&v->data, &v->shape, plan);
    return rc == PCOLL_OK ? endpoint_trigger_init(v) : rc;
}

int endpoint_create(struct communicator *c, const struct endpoint_spec *spec,
                    struct endpoint **out)
{
    struct endpoint *v = calloc(1, sizeof *v);
    if (!v)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    v->base = object_init(&endpoint_ops);
    v->communicator = c;
    v->options = *spec->options;
    v->confirms = spec->options->on_failure == PCOLL_FAILURE_CONTINUE;
    v->policy = spec->options->policy;
    v->seed = spec->options->seed;
    v->initiator = ROUND_NOBODY;
    v->segment.fd = -1;
    struct algorithm_plan plan;
    int rc = placement_init(&v->placement, c->transport->rank, spec->ranks, spec->hosts,
                            spec->failed, spec->most);
    v->drives =
        v->placement.members == 1 || (v->placement.leads && v->placement.domains > 1);
    if (rc == PCOLL_OK)
        rc = endpoint_lay_out(spec, &v->placement, &v->shape, &plan);
    v->shape.payload.past_cache =
        2 * v->placement.members * v->shape.payload.bytes > cache_size();
    if (rc == PCOLL_OK)
        rc = endpoint_allocate(v, &plan);
    if (rc == PCOLL_OK)
        rc = endpoint_build_schedule(v);
    if (rc == PCOLL_OK && spec->create_domain)
        rc = endpoint_settle(v, spec->options, spec->create_domain, spec->domain_arg);
    if (rc != PCOLL_OK) {
        endpoint_destroy(&v);
        return rc;
    }
    *out = v;
    return PCOLL_OK;
}

int endpoint_settle(struct endpoint *v, const pcoll_options *options,
                    domain_create_fn *create_domain, void *domain_arg)
{
    int rc = create_domain(&v->shape, options, domain_arg, &v->domain);
    v->base.watched = rc == PCOLL_OK && v->drives && v->domain->ops->attention;
    return rc;
}

int endpoint_open(struct endpoint *v)
{
    struct transport *t = v->communicator->transport;
    bool native = v->drives && v->data.plan.algorithm == PCOLL_ALGORITHM_NATIVE;
    return native ? t->ops->open(t, &v->channel) : PCOLL_OK;
}

void endpoint_begin_at(struct endpoint *v, struct endpoint *old, uint64_t round,
                       const struct round_header *last)
{
    engine_begin_at(&v->engine, round);
    round_live_now(last, v->shape.ranks, v->shape.failed, v->live);
    v->domain->ops->begin_at(v->domain, old ? old->domain : NULL, round, last);
}

int endpoint_inherit(struct endpoint *v, struct endpoint *old,
                     const struct round_header *last)
{
    CHECK(!old || (!old->staging && !old->event_log)); /* refused when it was made */
    if (old) {
        v->engine.dropped += old->engine.dropped;
        v->engine.early += old->engine.early;
    }
    return v->domain->ops->inherit(v->domain, old ? old->domain : NULL,
                                   v->engine.current, last);
}

void endpoint_destroy(struct endpoint **at)
{
    struct endpoint *v = *at;
    staging_destroy(&v->staging);
    if (v->domain)
        v->domain->ops->destroy(v->domain);
    segment_close(&v->segment);
    engine_destroy(&v->engine);
    sched_free(&v->sched);
    round_shape_destroy(&v->shape);
    data_destroy(&v->data);
    if (v->channel)
        v->communicator->transport->ops->close(v->communicator->transport, v->channel);
    event_log_close(&v->event_log);
    endpoint_trigger_destroy(v);
    placement_destroy(&v->placement);
    free(v->live);
    free(v);
    *at = NULL;
}

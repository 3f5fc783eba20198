/* SPDX-License-Identifier: Apache-2.0 */
/* Two members, one ring of results, contributions reduced in the order of the ranks. */
#include "pair.h"

#include <stdlib.h>

#include "check.h"

struct pair {
    struct domain base;
    struct member member[2];
    struct round_header *slots[2][MAX_SLOTS];
    struct round_header **results;
    struct round_header *gathered;
    uint32_t ring;
    uint64_t set[1];
};

static struct pair *of(struct domain *d)
{
    return (struct pair *)d;
}

static int pair_deposit(struct domain *d, int who, const void *const *buffers,
                        enum deposit_outcome *outcome)
{
    struct pair *p = of(d);
    struct member *m = &p->member[who];
    int rc = member_begin(m);
    if (rc != PCOLL_OK)
        return rc;
    struct deposit_plan plan = contribution_plan(&m->contribution);
    void *target = message_payload(d->shape, p->slots[who][plan.target]);
    if (plan.carried == NO_SLOT)
        payload_pack(&d->shape->payload, target, buffers);
    else
        CHECK_OK(payload_reduce_buffers(
            &d->shape->payload, target,
            message_payload(d->shape, p->slots[who][plan.carried]), buffers));
    *outcome = member_publish(m, plan);
    return PCOLL_OK;
}

static void *pair_send_slot(struct domain *d, int who)
{
    (void)d;
    (void)who;
    return NULL;
}

static bool pair_ready(struct domain *d, int who)
{
    return member_ready(&of(d)->member[who]);
}

static int pair_deliver(struct domain *d, int who, uint64_t last, uint64_t horizon,
                        void *const *buffers, pcoll_round *round, uint64_t *masks,
                        bool *moved)
{
    struct pair *p = of(d);
    struct member *m = &p->member[who];
    uint64_t index, lost;
    if (!member_read_begin(m, last, horizon, &index, &lost))
        return PCOLL_EEMPTY;
    const struct round_header *h = p->results[index % p->ring];
    if (round_is_null(h, d->shape->ranks))
        payload_identity(&d->shape->payload, buffers);
    else
        payload_unpack(&d->shape->payload, buffers, message_payload(d->shape, h));
    round_describe(d->shape, h, round, masks);
    *moved = member_read_end(m);
    round->lost = lost;
    round->included = member_included(m, index);
    round->joined = m->joined;
    return PCOLL_OK;
}

static void pair_snapshot(struct domain *d, int who, struct member *copy)
{
    *copy = of(d)->member[who];
}

static int pair_change(struct domain *d, int who, int (*step)(struct member *))
{
    return step(&of(d)->member[who]);
}

static void pair_arrivals(struct domain *d, uint64_t *arrived, uint64_t *deposited)
{
    for (int i = 0; i < 2; i++) {
        const struct member *m = &of(d)->member[i];
        if (member_arrived(m))
            bitset_add(arrived, m->rank);
        if (m->contribution.pending != NO_SLOT)
            bitset_add(deposited, m->rank);
    }
}

static bool pair_admits(struct domain *d)
{
    bool first = member_admits(&of(d)->member[0]),
         second = member_admits(&of(d)->member[1]);
    return first && second;
}

static struct round_header *pair_freeze(struct domain *d, uint64_t round)
{
    struct pair *p = of(d);
    uint32_t ranks = d->shape->ranks;
    struct payload *payload = (struct payload *)&d->shape->payload;
    void *to = message_payload(d->shape, p->gathered);
    bool any = false;
    round_header_clear(p->gathered, ranks, round);
    for (int i = 0; i < 2; i++) {
        int slot = member_freeze(&p->member[i], p->gathered, ranks);
        if (slot == NO_SLOT)
            continue;
        const void *from = message_payload(d->shape, p->slots[i][slot]);
        if (any)
            CHECK_OK(payload_reduce(payload, to, to, from));
        else
            memcpy(to, from, payload->bytes);
        any = true;
    }
    return p->gathered;
}

static struct round_header *pair_result(struct domain *d, uint64_t round)
{
    return of(d)->results[round % of(d)->ring];
}

static void pair_publish(struct domain *d, uint64_t round)
{
    for (int i = 0; i < 2; i++)
        member_complete(&of(d)->member[i], pair_result(d, round), d->shape->ranks);
}

static void pair_destroy(struct domain *d)
{
    struct pair *p = of(d);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < MAX_SLOTS; k++)
            free(p->slots[i][k]);
    for (uint32_t i = 0; i < p->ring; i++)
        free(p->results[i]);
    free(p->results);
    free(p->gathered);
    free(p);
}

static const struct domain_ops ops = {.deposit = pair_deposit,
                                      .send_slot = pair_send_slot,
                                      .ready = pair_ready,
                                      .deliver = pair_deliver,
                                      .snapshot = pair_snapshot,
                                      .change = pair_change,
                                      .arrivals = pair_arrivals,
                                      .admits = pair_admits,
                                      .freeze = pair_freeze,
                                      .result = pair_result,
                                      .publish = pair_publish,
                                      .destroy = pair_destroy};

int pair_create(const struct round_shape *shape, const pcoll_options *options,
                void *arg, struct domain **out)
{
    uint32_t first = *(const uint32_t *)arg;
    struct pair *p = calloc(1, sizeof *p);
    p->ring = options->history + 1;
    p->results = calloc(p->ring, sizeof *p->results);
    for (uint32_t i = 0; i < p->ring; i++)
        p->results[i] = aligned_alloc(64, shape->slot_bytes);
    p->gathered = aligned_alloc(64, shape->slot_bytes);
    for (uint32_t i = 0; i < 2; i++) {
        member_init(&p->member[i], first + i, options);
        bitset_add(p->set, first + i);
        for (int k = 0; k < MAX_SLOTS; k++)
            p->slots[i][k] = aligned_alloc(64, shape->slot_bytes);
    }
    p->base = (struct domain){
        .ops = &ops, .shape = shape, .members = 2, .member_set = p->set};
    *out = &p->base;
    return PCOLL_OK;
}

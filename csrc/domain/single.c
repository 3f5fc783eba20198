/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain of one rank, in the memory of its process.
 *
 * Who owns which byte:
 *   slots[i]  written by the application's thread while slot i is neither pending nor
 *             frozen; read by the driver while frozen, by the application in a carry.
 *   results[t mod (H+1)]
 *             written by the driver from the freeze of round t to its publish; read by
 *             the application after that. The driver does not freeze round t+H+1 while
 *             member_admits() forbids it, which is what keeps a slot that is being read
 *             from being reused.
 *   null      header of a round this rank contributes nothing to; the driver's.
 *   member    both sides, under the mutex, which is held for a few loads and stores and
 *             never during a copy or a reduction. Everything that one side wrote before
 *             it changed `member` is visible to the other after it sees the change.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/lock.h"
#include "domain/domain.h"

struct single {
    struct domain base;
    struct lock mutex;
    struct member member;
    uint64_t *set;
    uint32_t ring; /* result slots */
    struct round_header *slots[MAX_SLOTS];
    struct round_header **results;
    struct round_header *null;
    char *memory;
    size_t bytes;
};

static struct single *single_of(struct domain *d)
{
    return (struct single *)d;
}

static int single_begin_call(struct single *s)
{
    lock_take(&s->mutex);
    int rc = member_begin(&s->member);
    lock_release(&s->mutex);
    return rc;
}

/* The deposit could not be made: as if the call had not been. */
static int single_undo_call(struct single *s, int rc)
{
    lock_take(&s->mutex);
    s->member.started = false;
    lock_release(&s->mutex);
    return rc;
}

static struct deposit_plan single_plan_deposit(struct single *s)
{
    lock_take(&s->mutex);
    struct deposit_plan plan = contribution_plan(&s->member.contribution);
    lock_release(&s->mutex);
    return plan;
}

/* Outside the lock: the target is nobody else's, what is carried does not change. */
static int single_write_deposit(struct single *s, struct deposit_plan plan, int user,
                                const void *const *buffers)
{
    const struct round_shape *shape = s->base.shape;
    void *target = message_payload(shape, s->slots[plan.target]);
    if (plan.carried == NO_SLOT) {
        if (buffers)
            payload_pack(&shape->payload, target, buffers);
        else /* the target is the slot; such a plan always holds, so this is once */
            payload_pack_slot(&shape->payload, target);
        return PCOLL_OK;
    }
    const void *carried = message_payload(shape, s->slots[plan.carried]);
    if (buffers)
        return payload_reduce_buffers(&shape->payload, target, carried, buffers);
    return payload_reduce_slot(&shape->payload, target, carried,
                               message_payload(shape, s->slots[user]));
}

static int single_deposit(struct domain *d, const void *const *buffers,
                          enum deposit_outcome *outcome)
{
    struct single *s = single_of(d);
    int rc = single_begin_call(s);
    if (rc != PCOLL_OK)
        return rc;
    for (;;) {
        struct deposit_plan plan = single_plan_deposit(s);
        INTERLEAVE();
        rc = single_write_deposit(s, plan, s->member.contribution.user, buffers);
        if (rc != PCOLL_OK)
            return single_undo_call(s, rc);
        INTERLEAVE();
        MOMENT("deposit written");
        lock_take(&s->mutex);
        CHECK(plan.target != s->member.contribution.frozen);
        bool holds = contribution_plan_holds(&s->member.contribution, plan);
        if (holds)
            *outcome = member_publish(&s->member, plan);
        lock_release(&s->mutex);
        MOMENT("deposit published");
        if (holds) /* else what was to be carried has left with a round: once at most */
            return PCOLL_OK;
    }
}

static void *single_send_slot(struct domain *d)
{
    struct single *s = single_of(d);
    int user = s->member.contribution.user; /* only this thread changes it */
    return user == NO_SLOT ? NULL : message_payload(d->shape, s->slots[user]);
}

static bool single_ready(struct domain *d)
{
    struct single *s = single_of(d);
    lock_take(&s->mutex);
    bool ready = member_ready(&s->member);
    lock_release(&s->mutex);
    return ready;
}

static int single_deliver(struct domain *d, uint64_t last, uint64_t horizon,
                          void *const *buffers, pcoll_round *round, uint64_t *masks,
                          bool *moved)
{
    struct single *s = single_of(d);
    uint64_t index;
    lock_take(&s->mutex);
    bool any = member_read_begin(&s->member, last, horizon, &index);
    lock_release(&s->mutex);
    if (!any)
        return PCOLL_EEMPTY;

    INTERLEAVE();
    const struct round_header *h = s->results[index % s->ring];
    CHECK(h->round == index);
    if (buffers && round_is_null(h, d->shape->ranks))
        payload_identity(&d->shape->payload, buffers);
    else if (buffers)
        payload_unpack(&d->shape->payload, buffers, message_payload(d->shape, h));
    round_describe(d->shape, h, round, masks);
    INTERLEAVE();
    MOMENT("result read");

    lock_take(&s->mutex);
    *moved = member_read_end(&s->member, &round->lost);
    round->lag = s->member.complete - s->member.delivered;
    round->included = member_included(&s->member, index);
    round->joined = s->member.joined;
    lock_release(&s->mutex);
    return PCOLL_OK;
}

static void single_snapshot(struct domain *d, struct member *copy)
{
    struct single *s = single_of(d);
    lock_take(&s->mutex);
    *copy = s->member;
    lock_release(&s->mutex);
}

/* A rank on its own: the one member is this process's. */
static void single_poll(struct domain *d, int who, struct member *copy)
{
    (void)who;
    single_snapshot(d, copy);
}

static int single_change(struct domain *d, int (*step)(struct member *))
{
    struct single *s = single_of(d);
    lock_take(&s->mutex);
    int rc = step(&s->member);
    lock_release(&s->mutex);
    return rc;
}

static void single_retire(struct domain *d)
{
    struct single *s = single_of(d);
    lock_take(&s->mutex);
    s->member.retired = true;
    lock_release(&s->mutex);
}

static void single_arrivals(struct domain *d, uint64_t *arrived, uint64_t *deposited)
{
    struct single *s = single_of(d);
    lock_take(&s->mutex);
    if (member_arrived(&s->member))
        bitset_add(arrived, s->member.rank);
    if (s->member.contribution.pending != NO_SLOT)
        bitset_add(deposited, s->member.rank);
    lock_release(&s->mutex);
}

static bool single_admits(struct domain *d)
{
    struct single *s = single_of(d);
    lock_take(&s->mutex);
    bool admits = member_admits(&s->member);
    lock_release(&s->mutex);
    return admits;
}

static struct round_header *single_freeze(struct domain *d, uint64_t round)
{
    struct single *s = single_of(d);
    uint32_t ranks = d->shape->ranks;
    round_header_clear(s->null, ranks, round);
    round_header_bury(s->null, ranks, d->shape->failed);
    lock_take(&s->mutex);
    CHECK(s->member.complete <= s->member.frozen);
    int slot = member_freeze(&s->member, s->null, ranks);
    lock_release(&s->mutex);
    if (slot == NO_SLOT)
        return s->null;
    memcpy(s->slots[slot], s->null, d->shape->header_bytes);
    return s->slots[slot];
}

static struct round_header *single_result(struct domain *d, uint64_t round)
{
    struct single *s = single_of(d);
    return s->results[round % s->ring];
}

static void single_publish(struct domain *d, uint64_t round)
{
    struct single *s = single_of(d);
    const struct round_header *h = s->results[round % s->ring];
    CHECK(h->round == round);
    if (round_is_null(h, d->shape->ranks))
        payload_identity_block(&d->shape->payload, message_payload(d->shape, h));
    MOMENT("publishing");
    lock_take(&s->mutex);
    member_complete(&s->member, h, d->shape->ranks);
    lock_release(&s->mutex);
}

static void single_release(void *memory, size_t bytes)
{
    (void)bytes;
    free(memory);
}

static void single_destroy(struct domain *d)
{
    struct single *s = single_of(d);
    lock_destroy(&s->mutex);
    free(s->results);
    if (s->memory)
        memory_dispose(s->memory, s->bytes, single_release);
    free(s->set);
    free(s);
}

static void single_memory(struct domain *d, void **memory, size_t *bytes)
{
    *memory = single_of(d)->memory;
    *bytes = single_of(d)->bytes;
}

static struct round_header *single_slot(struct domain *d, int i)
{
    CHECK(i >= 0 && i < single_of(d)->member.contribution.slots);
    return single_of(d)->slots[i];
}

static void single_begin_at(struct domain *d, struct domain *old, uint64_t round,
                            const struct round_header *last)
{
    struct single *s = single_of(d);
    domain_copy_results(d, old, round, last, s->ring - 1);
    s->member.complete = s->member.frozen = s->member.delivered = round;
}

static int single_inherit(struct domain *d, struct domain *old, uint64_t round,
                          const struct round_header *last)
{
    struct single *s = single_of(d);
    struct member m = s->member;
    int rc = domain_recover_member(d, old, round, last, &m);
    lock_take(&s->mutex);
    s->member = m;
    lock_release(&s->mutex);
    return rc;
}

static const struct domain_ops single_ops = {
    .deposit = single_deposit,
    .send_slot = single_send_slot,
    .ready = single_ready,
    .deliver = single_deliver,
    .snapshot = single_snapshot,
    .poll = single_poll,
    .change = single_change,
    .retire = single_retire,
    .arrivals = single_arrivals,
    .admits = single_admits,
    .freeze = single_freeze,
    .result = single_result,
    .publish = single_publish,
    .destroy = single_destroy,
    .slot = single_slot,
    .begin_at = single_begin_at,
    .inherit = single_inherit,
    .memory = single_memory,
};

size_t domain_single_bytes(const struct round_shape *shape,
                           const pcoll_options *options)
{
    CHECK(options->history >= 1);
    size_t messages =
        (size_t)contribution_slots(options->owned_send) + options->history + 1;
    return messages * shape->slot_bytes + shape->header_bytes;
}

/* Cut the one block into messages. */
static void single_carve(struct single *s)
{
    char *next = s->memory;
    for (int i = 0; i < s->member.contribution.slots;
         i++, next += s->base.shape->slot_bytes)
        s->slots[i] = (struct round_header *)next;
    for (uint32_t i = 0; i < s->ring; i++, next += s->base.shape->slot_bytes) {
        s->results[i] = (struct round_header *)next;
        memset(next, 0, s->base.shape->header_bytes); /* blank: domain.h */
    }
    s->null = (struct round_header *)next;
}

int domain_single_create(const struct round_shape *shape, const pcoll_options *options,
                         void *arg, struct domain **out)
{
    CHECK(*(const uint32_t *)arg < shape->ranks);
    uint32_t rank = *(const uint32_t *)arg;
    size_t bytes = domain_single_bytes(shape, options);
    struct single *s = calloc(1, sizeof *s);
    if (!s)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    s->ring = options->history + 1;
    s->set = calloc(bitset_words(shape->ranks), sizeof *s->set);
    s->results = calloc(s->ring, sizeof *s->results);
    s->bytes = bytes;
    s->memory = pages_allocate(bytes);
    if (!s->set || !s->results || !s->memory) {
        lock_init(&s->mutex, LOCK_DOMAIN);
        single_destroy(&s->base);
        return fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a handle", bytes);
    }
    lock_init(&s->mutex, LOCK_DOMAIN);
    bitset_add(s->set, rank);
    s->base = (struct domain){
        .ops = &single_ops, .shape = shape, .members = 1, .member_set = s->set};
    member_init(&s->member, rank, options);
    single_carve(s);
    *out = &s->base;
    return PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A member of a domain in shared memory: what its application calls, and what drives
 * the rounds. The protocol is in node.h. */
#include "domain/node.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "base/fence.h"
#include "base/moment.h"
#include "domain/node_memory.h"
#include "domain/recovery.h"

static struct node_line *own_line(const struct node *n)
{
    return &n->lines[n->who];
}

static _Atomic uint64_t *own_descriptor(const struct node *n)
{
    return &n->descriptors[n->who];
}

/* Has the last deposit left, and with which round? The closer swaps the descriptor
 * before it writes `taken_in`; as long as the descriptor names a frozen slot it is the
 * descriptor that tells. */
static void note_departure(struct node *n, uint64_t word)
{
    struct member *m = &n->member;
    if (!n->owes || descriptor_pending(word) != NO_SLOT)
        return;
    uint64_t rounds = m->contribution.frozen != NO_SLOT
                          ? descriptor_rounds(word)
                          : STEP(atomic_load(&own_line(n)->taken_in));
    m->taken_in = (int64_t)rounds - 1;
    m->stats.included++;
    n->owes = false;
}

/* What the others have changed of this member: descriptor first, so that what control
 * says is not older. Returns the descriptor. */
static uint64_t look(struct node *n)
{
    uint64_t word = STEP(atomic_load(own_descriptor(n)));
    descriptor_load(word, &n->member);
    n->member.complete = control_round(node_control(n));
    CHECK(member_counts_hold(&n->member));
    note_departure(n, word);
    if (n->member.complete >= n->member.frozen) /* the round that read it is over */
        n->member.contribution.frozen = NO_SLOT;
    return word;
}

static void set_flag(struct node *n, uint32_t flag, bool on)
{
    _Atomic uint32_t *flags = &own_line(n)->flags;
    uint32_t now = atomic_load_explicit(flags, memory_order_relaxed);
    now = on ? now | flag : now & ~flag;
    atomic_store_explicit(flags, now, memory_order_relaxed);
}

static void note_arrival_time(struct node *n)
{
    if (policy_has_timers(&n->policy))
        STEP(atomic_store(&own_line(n)->arrived_at, n->hooks.now(n->hooks.arg)));
}

static char *own_slot(const struct node *n, int slot)
{
    return message_payload(n->base.shape, node_slot(n, n->who, slot));
}

static int write_deposit(struct node *n, struct deposit_plan plan,
                         const void *const *buffers)
{
    const struct payload *p = &n->base.shape->payload;
    char *target = own_slot(n, plan.target);
    MOMENT("deposit written");
    CHECK(plan.target >= 0 && plan.target < n->slots_each);
    CHECK(plan.target != n->member.contribution.frozen);
    INTERLEAVE();
    if (plan.carried == NO_SLOT && buffers)
        payload_pack(p, target, buffers);
    else if (plan.carried == NO_SLOT)
        payload_pack_slot(p, target); /* such a plan always holds, so this is once */
    else if (buffers)
        return payload_reduce_buffers(p, target, own_slot(n, plan.carried), buffers);
    else
        return payload_reduce_slot(p, target, own_slot(n, plan.carried),
                                   own_slot(n, n->member.contribution.user));
    return PCOLL_OK;
}

/* Hand in what has been written. False if what was to be carried has left meanwhile. */
static bool publish(struct node *n, struct deposit_plan plan,
                    enum deposit_outcome *outcome)
{
    for (;;) {
        uint64_t word = look(n);
        if (!contribution_plan_holds(&n->member.contribution, plan))
            return false;
        struct member after = n->member;
        *outcome = member_publish(&after, plan);
        if (*outcome == DEPOSIT_ARRIVED)
            note_arrival_time(n);
        if (*outcome == DEPOSIT_DROPPED ||
            STEP(atomic_compare_exchange_strong(own_descriptor(n), &word,
                                                descriptor_of(&after)))) {
            MOMENT("deposit published");
            n->member = after;
            n->owes = *outcome != DEPOSIT_DROPPED;
            return true;
        }
    }
}

static int node_deposit(struct domain *d, const void *const *buffers,
                        enum deposit_outcome *outcome)
{
    struct node *n = node_of(d);
    int rc = member_begin(&n->member);
    if (rc != PCOLL_OK)
        return rc;
    struct deposit_plan plan;
    do {
        look(n);
        plan = contribution_plan(&n->member.contribution);
        rc = write_deposit(n, plan, buffers);
        if (rc != PCOLL_OK) {
            n->member.started = false;
            return rc;
        }
    } while (!publish(n, plan, outcome)); /* once more at most */
    set_flag(n, NODE_CALLING, true);
    return PCOLL_OK;
}

static void *node_send_slot(struct domain *d)
{
    struct node *n = node_of(d);
    int user = n->member.contribution.user;
    return user == NO_SLOT ? NULL : own_slot(n, user);
}

static bool node_ready(struct domain *d)
{
    struct node *n = node_of(d);
    return control_round(node_control(n)) >= n->member.wanted;
}

/* The round that the ring has no room for any more has begun to close. */
static bool overwritten(const struct node *n, uint64_t round)
{
    uint64_t control = node_control(n), reuse = round + n->ring;
    return control_round(control) > reuse ||
           (control_round(control) == reuse && control_phase(control) != NODE_OPEN);
}

static void copy_out(struct node *n, const struct round_header *h, void *const *buffers,
                     pcoll_round *round, uint64_t *masks)
{
    const struct round_shape *shape = n->base.shape;
    INTERLEAVE();
    if (buffers && round_is_null(h, shape->ranks))
        payload_identity(&shape->payload, buffers);
    else if (buffers)
        payload_unpack(&shape->payload, buffers, message_payload(shape, h));
    INTERLEAVE();
    round_describe(shape, h, round, masks);
}

/* Does the header say that with this round all have joined? Then the rank no longer
 * announces it, and says so before it says that it has read the round, since nobody
 * starts the next one before. */
static bool ends_join(const struct node *n, const struct round_header *h)
{
    const struct member *m = &n->member;
    uint32_t ranks = n->base.shape->ranks;
    return m->joining &&
           bitset_has(round_mask_const(h, ranks, ROUND_JOINED), m->rank) &&
           round_all_gone(h, ranks);
}

/* Was a round held back for this member, as far as it can tell? It will look. */
static bool end_read(struct node *n, uint64_t before)
{
    struct member *m = &n->member;
    member_read_end(m);
    MOMENT("result read");
    if (m->joined)
        STEP(atomic_fetch_and(own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));
    STEP(atomic_store(&own_line(n)->delivered, m->delivered));
    uint64_t control = node_control(n);
    return control_phase(control) == NODE_OPEN &&
           (m->joined || control_round(control) >= before + m->history);
}

static int node_deliver(struct domain *d, uint64_t last, uint64_t horizon,
                        void *const *buffers, pcoll_round *round, uint64_t *masks,
                        bool *moved)
{
    struct node *n = node_of(d);
    struct member *m = &n->member;
    uint64_t index, lost, before = m->delivered;
    bool joined = false;
    for (bool whole = false; !whole;) {
        look(n);
        if (!member_read_begin(m, last, horizon, &index, &lost)) {
            m->reading = NO_ROUND;
            return PCOLL_EEMPTY;
        }
        n->unreported += lost;
        const struct round_header *h = node_result(n, index);
        copy_out(n, h, buffers, round, masks);
        joined = ends_join(n, h);
        fence_after_reads();
        whole = m->deliver == PCOLL_DELIVER_ONE || !overwritten(n, index);
    }
    CHECK(index < m->complete);
    if (joined)
        m->joined_in = (int64_t)index;
    *moved = end_read(n, before);
    look(n);
    round->index = index;
    round->lost = n->unreported;
    n->unreported = 0;
    round->lag = m->complete - m->delivered;
    round->included = member_included(m, index);
    round->joined = m->joined;
    return PCOLL_OK;
}

static void node_snapshot(struct domain *d, struct member *copy)
{
    struct node *n = node_of(d);
    look(n);
    *copy = n->member;
    copy->stats.rounds = copy->complete;
}

/* From its words alone: for other threads and other members. */
static void node_poll(struct domain *d, int who, struct member *copy)
{
    const struct node *n = node_of(d);
    const struct node_line *line = &n->lines[who];
    uint64_t word = STEP(atomic_load(&n->descriptors[who]));
    uint32_t flags = STEP(atomic_load(&line->flags));
    *copy = (struct member){.rank = n->hooks.placement->member[who],
                            .deliver = n->deliver,
                            .history = n->history,
                            .started = flags & NODE_CALLING,
                            .retired = flags & NODE_RETIRED,
                            .joining = descriptor_joining(word),
                            .left = descriptor_left(word),
                            .joined_in = NO_ROUND,
                            .delivered = STEP(atomic_load(&line->delivered)),
                            .complete = control_round(node_control(n))};
    descriptor_load(word, copy);
}

/* Joins and leaves show in the descriptor; the end of a call is the member's own. */
static int node_change(struct domain *d, int (*step)(struct member *))
{
    struct node *n = node_of(d);
    for (;;) {
        uint64_t word = look(n);
        struct member after = n->member;
        int rc = step(&after);
        if (rc != PCOLL_OK)
            return rc;
        uint64_t next = descriptor_of(&after);
        if (next != word)
            note_arrival_time(n);
        if (next == word ||
            STEP(atomic_compare_exchange_strong(own_descriptor(n), &word, next))) {
            n->member = after;
            set_flag(n, NODE_CALLING, after.started);
            return PCOLL_OK;
        }
    }
}

static void node_retire(struct domain *d)
{
    struct node *n = node_of(d);
    STEP(atomic_fetch_or(&own_line(n)->flags, NODE_RETIRED));
}

static void node_help(struct domain *d, bool driver, int64_t *alarm)
{
    struct node *n = node_of(d);
    enum node_side side = driver ? NODE_DRIVER : NODE_APPLICATION;
    *alarm = INT64_MAX;
    for (bool more = true; more;) {
        uint64_t control = node_control(n);
        uint64_t round = control_round(control);
        more = false;
        if (control_phase(control) == NODE_OPEN && !n->fabric)
            more = node_decide(n, round, side, alarm);
        else if (control_phase(control) == NODE_REDUCING)
            more = node_reduce(n, round);
    }
}

/* For its rounds: sets its bit before it looks for the last time. */
static void node_sleeps(struct domain *d, bool asleep)
{
    struct node *n = node_of(d);
    uint64_t bit = (uint64_t)1 << n->who % 64;
    _Atomic uint64_t *word = &n->asleep[n->who / 64];
    if (asleep)
        STEP(atomic_fetch_or(word, bit));
    else
        STEP(atomic_fetch_and(word, ~bit));
}

static int node_failure(struct domain *d)
{
    return atomic_load_explicit(&node_of(d)->shared->failure, memory_order_acquire);
}

/* The fabric's side: the leader's driver. */

static bool node_attention(struct domain *d)
{
    struct node *n = node_of(d);
    return STEP(atomic_load(&n->shared->attention)) &&
           STEP(atomic_exchange(&n->shared->attention, 0));
}

static void fabric_arrivals(struct domain *d, uint64_t *arrived, uint64_t *deposited)
{
    struct node *n = node_of(d);
    struct node_view *v = &n->view[NODE_DRIVER];
    size_t words = bitset_words(d->shape->ranks);
    node_arrivals(n, v, control_round(node_control(n)));
    for (size_t i = 0; i < words; i++) {
        arrived[i] |= v->arrived[i];
        deposited[i] |= v->deposited[i];
    }
}

static bool fabric_admits(struct domain *d)
{
    struct node *n = node_of(d);
    return node_admits(n, control_round(node_control(n)), NODE_DRIVER);
}

static struct round_header *fabric_freeze(struct domain *d, uint64_t round)
{
    struct node *n = node_of(d);
    if (control_phase(node_control(n)) == NODE_OPEN)
        node_close(n, round, ROUND_NOBODY);
    else if (control_phase(node_control(n)) == NODE_REDUCING)
        node_reduce(n, round);
    if (control_phase(node_control(n)) != NODE_FABRIC)
        return NULL;
    if (atomic_load_explicit(&n->shared->parts, memory_order_relaxed) != 1)
        return n->gathered;
    struct round_header *alone = node_slot(n, n->list[0].member, (int)n->list[0].slot);
    memcpy(alone, n->gathered, d->shape->header_bytes);
    return alone;
}

static struct round_header *fabric_result(struct domain *d, uint64_t round)
{
    return node_result(node_of(d), round);
}

static void fabric_publish(struct domain *d, uint64_t round)
{
    struct node *n = node_of(d);
    const struct round_header *h = node_result(n, round);
    CHECK(control_phase(node_control(n)) == NODE_FABRIC && h->round == round);
    if (round_is_null(h, d->shape->ranks))
        payload_identity_block(&d->shape->payload, message_payload(d->shape, h));
    node_note_join(n, round, h);
    node_complete(n, round);
}

static void node_destroy(struct domain *d)
{
    struct node *n = node_of(d);
    for (int side = 0; side < NODE_SIDES; side++) {
        struct node_view *v = &n->view[side];
        free(v->live);
        free(v->absences);
    }
    free(n->set);
    free(n);
}

static void node_memory(struct domain *d, void **memory, size_t *bytes)
{
    *memory = node_of(d)->hooks.memory;
    *bytes = node_of(d)->bytes;
}

static struct round_header *node_own_slot(struct domain *d, int i)
{
    CHECK(i >= 0 && i < node_of(d)->slots_each);
    return node_slot(node_of(d), node_of(d)->who, i);
}

/* The first member writes what belongs to all: nobody looks yet. */
static void node_begin_at(struct domain *d, struct domain *old, uint64_t round,
                          const struct round_header *last)
{
    struct node *n = node_of(d);
    uint32_t ranks = d->shape->ranks;
    n->member.complete = n->member.frozen = n->member.delivered = round;
    STEP(atomic_store(own_descriptor(n), descriptor_of(&n->member)));
    STEP(atomic_store(&own_line(n)->delivered, round));
    int failed = old && old->ops->failure ? old->ops->failure(old) : PCOLL_OK;
    if (failed != PCOLL_OK)
        atomic_store(&n->shared->failure, failed);
    domain_copy_results(d, old, round, last, n->history);
    if (n->who != 0)
        return;
    uint64_t live[bitset_words(ranks)];
    round_live_now(last, ranks, d->shape->failed, live);
    for (size_t i = 0; i < bitset_words(ranks); i++)
        atomic_store(&n->live[i], live[i]);
    if (last)
        node_note_join(n, round - 1, last);
    STEP(atomic_store(&n->shared->control, control_word(round, NODE_OPEN, 0)));
}

/* Of the words that others read the descriptor comes last. */
static int node_inherit(struct domain *d, struct domain *old, uint64_t round,
                        const struct round_header *last)
{
    struct node *n = node_of(d);
    struct member m = n->member;
    struct node_line *line = own_line(n);
    int rc = domain_recover_member(d, old, round, last, &m);
    m.joined_in = NO_ROUND; /* known here when it is read */
    n->member = m;
    n->owes = m.contribution.pending != NO_SLOT && m.taken_in == NO_ROUND;
    STEP(atomic_store(&line->delivered, m.delivered));
    set_flag(n, NODE_CALLING, m.started);
    set_flag(n, NODE_RETIRED, m.retired);
    note_arrival_time(n);
    STEP(atomic_store(own_descriptor(n), descriptor_of(&n->member)));
    return rc;
}

static const struct domain_ops node_ops = {
    .deposit = node_deposit,
    .send_slot = node_send_slot,
    .ready = node_ready,
    .deliver = node_deliver,
    .snapshot = node_snapshot,
    .poll = node_poll,
    .change = node_change,
    .retire = node_retire,
    .help = node_help,
    .sleeps = node_sleeps,
    .failure = node_failure,
    .busy = node_busy,
    .awaited = node_awaited,
    .alert = node_alert,
    .attention = node_attention,
    .arrivals = fabric_arrivals,
    .admits = fabric_admits,
    .freeze = fabric_freeze,
    .result = fabric_result,
    .publish = fabric_publish,
    .destroy = node_destroy,
    .slot = node_own_slot,
    .begin_at = node_begin_at,
    .inherit = node_inherit,
    .memory = node_memory,
};

/* All sets of a view in one block. */
static bool create_view(struct node *n, struct node_view *v, uint32_t ranks)
{
    size_t words = bitset_words(ranks);
    uint64_t *sets = calloc(5 * words, sizeof *sets);
    if (n->policy.max_staleness)
        v->absences = calloc(ranks, sizeof *v->absences);
    v->live = sets;
    if (!sets || (n->policy.max_staleness && !v->absences))
        return false;
    bitset_fill(v->live, ranks);
    v->arrived = sets + words;
    v->deposited = sets + 2 * words;
    v->round = (struct policy_round){.ranks = ranks,
                                     .live = v->live,
                                     .drawn = sets + 3 * words,
                                     .overdue = sets + 4 * words};
    return true;
}

int domain_node_create(const struct round_shape *shape, const pcoll_options *options,
                       void *arg, struct domain **out)
{
    CHECK(((const struct node_hooks *)arg)->placement->members > 0);
    CHECK(((const struct node_hooks *)arg)->placement->who <
          ((const struct node_hooks *)arg)->placement->members);
    CHECK(options->history >= 1);
    const struct node_hooks *hooks = arg;
    const struct placement *placement = hooks->placement;
    struct node *n = calloc(1, sizeof *n);
    if (!n)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    n->hooks = *hooks;
    n->policy = options->policy;
    n->seed = options->seed;
    n->fabric = placement->domains > 1;
    n->members = placement->members;
    n->who = placement->who;
    n->hands = hooks->cores ? hooks->cores : placement->members;
    n->deliver = options->deliver;
    n->history = options->history;
    n->ring = options->history + 1;
    n->set = calloc(bitset_words(shape->ranks), sizeof *n->set);
    bool enough = n->set;
    for (int side = 0; side < NODE_SIDES; side++)
        enough = create_view(n, &n->view[side], shape->ranks) && enough;
    if (!enough) {
        node_destroy(&n->base);
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", shape->ranks);
    }
    for (uint32_t i = 0; i < n->members; i++)
        bitset_add(n->set, placement->member[i]);
    n->base = (struct domain){.ops = &node_ops,
                              .shape = shape,
                              .members = (int)n->members,
                              .member_set = n->set};
    member_init(&n->member, placement->member[n->who], options);
    node_map(n, options);
    *out = &n->base;
    return PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A domain as the rest sees it: its memory, deposits, recovery, creation. The protocol is in
 * node.h. */
#include "domain/node.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"

/*
 * One block of memory: the words that all members read in every round come first and close
 * together, then the members' lines, then the slots of each member, then the results. In the
 * private memory of one member the words come last: with many ranks, messages are far apart,
 * because of the room for their headers, and the words share a page with what is allocated next.
 */

/* A sum and its operands stay in a core's cache while a chunk is reduced. A short message has
 * shorter chunks, so that each member can take one. Still shorter ones were not faster. */
#ifdef PCOLL_TEST_CHUNK_BYTES
static size_t const chunk_bytes = PCOLL_TEST_CHUNK_BYTES, least_chunk_bytes = 64;
#else
static size_t const chunk_bytes = 64 << 10, least_chunk_bytes = 8 << 10;
#endif

struct node_layout {
    size_t words, descriptors, asleep, live, absent, lines, list, finished, slots,
        gathered, results;
    size_t total;
};

static size_t node_place(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static uint32_t node_count_chunks(size_t bytes, uint32_t members)
{
    size_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
    size_t most = bytes / least_chunk_bytes;
    most = most < members ? most : members;
    chunks = chunks > most ? chunks : most;
    return chunks > 1 ? (uint32_t)chunks : 1;
}

/* Return whether an endpoint drives the rounds. */
static bool node_has_fabric(const struct placement *placement)
{
    return placement->domains > 1 || placement->members == 1;
}

static void node_lay_out_messages(struct node_layout *l, size_t *at,
                                  const struct round_shape *shape,
                                  const pcoll_options *options,
                                  const struct placement *placement)
{
    size_t slots = placement->members * (size_t)contribution_slots(options->owned_send);
    /* A slot is sent without a copy, with a header behind it. Only one slot is sent at a time, so
     * this header may use the room of the next slot's header. */
    l->slots = node_place(at, slots * shape->message_bytes + shape->header_bytes);
    if (placement->members > 1)
        l->gathered =
            node_place(at, node_has_fabric(placement) ? shape->slot_bytes : 0);
    l->results = node_place(at, ((size_t)options->history + 1) * shape->slot_bytes);
}

static struct node_layout node_lay_out(const struct round_shape *shape,
                                       const pcoll_options *options,
                                       const struct placement *placement)
{
    size_t members = placement->members;
    bool fabric = node_has_fabric(placement);
    bool counts_absences = options->policy.max_staleness && !fabric;
    struct node_layout l;
    size_t at = 0;
    if (members == 1)
        node_lay_out_messages(&l, &at, shape, options, placement);
    /* One member never adds up: the header of a round without its deposit is enough. It is
     * next to the words. */
    if (members == 1)
        l.gathered = node_place(&at, shape->header_bytes);
    l.words = node_place(&at, sizeof(struct node_shared));
    l.descriptors = node_place(&at, members * sizeof(uint64_t));
    l.asleep = node_place(&at, bitset_words(placement->members) * sizeof(uint64_t));
    l.live =
        node_place(&at, fabric ? 0 : bitset_words(shape->ranks) * sizeof(uint64_t));
    l.absent = node_place(&at, counts_absences ? shape->ranks * sizeof(uint32_t) : 0);
    l.lines = node_place(&at, members * sizeof(struct node_line));
    l.list = node_place(&at, members * sizeof(struct node_frozen));
    size_t chunks = node_count_chunks(round_shape_capacity(shape), placement->members);
    l.finished = node_place(&at, fabric ? chunks * sizeof(uint64_t) : 0);
    if (members > 1)
        node_lay_out_messages(&l, &at, shape, options, placement);
    l.total = at;
    return l;
}

size_t node_bytes(const struct round_shape *shape, const pcoll_options *options,
                  const struct placement *placement)
{
    return node_lay_out(shape, options, placement).total;
}

/* A member reserves its slots and its share of the results; the leader all that comes before
 * the slots. */
void node_part(const struct round_shape *shape, const pcoll_options *options,
               const struct placement *placement, enum node_part part, size_t *offset,
               size_t *bytes)
{
    CHECK(part < NODE_PARTS && placement->members > 1);
    struct node_layout l = node_lay_out(shape, options, placement);
    size_t first = part == NODE_PART_SLOTS ? l.slots : l.gathered;
    size_t all = part == NODE_PART_SLOTS ? l.gathered - l.slots : l.total - l.gathered;
    size_t begin = all * placement->who / placement->members;
    *offset = first + begin;
    *bytes = all * (placement->who + 1) / placement->members - begin;
    if (part == NODE_PART_WORDS)
        *offset = 0, *bytes = placement->leads ? l.slots : 0;
}

/* Point n at its memory. Write what this member has to write before any member begins. */
static void node_map(struct domain *n, const struct node_layout *at,
                     const pcoll_options *options)
{
    struct node_layout l = *at;
    char *base = n->hooks.memory;
    n->bytes = l.total;
    n->slots_each = contribution_slots(n->hooks.owned_sends);
    n->chunks = n->shape->described
                    ? 1 /* A helper may read it while the form changes. */
                    : node_count_chunks(n->shape->payload.bytes, n->members);
    n->shared = (struct node_shared *)(base + l.words);
    n->descriptors = (_Atomic uint64_t *)(base + l.descriptors);
    n->asleep = (_Atomic uint64_t *)(base + l.asleep);
    n->live = (_Atomic uint64_t *)(base + l.live);
    if (options->policy.max_staleness && !n->fabric)
        n->absent = (_Atomic uint32_t *)(base + l.absent);
    n->lines = (struct node_line *)(base + l.lines);
    n->list = (struct node_frozen *)(base + l.list);
    n->finished = (_Atomic uint64_t *)(base + l.finished);
    n->slots = base + l.slots;
    n->gathered = message_in(n->shape, base + l.gathered);
    n->results = base + l.results;
    atomic_store(&n->descriptors[n->who], descriptor_of(&n->member));
    if (n->who == 0 && !n->fabric)
        node_write_live(n, NULL);
}

/* A deposit: the application writes a slot, then names it in the descriptor. */

static char *node_own_payload(const struct domain *n, int slot)
{
    return message_payload(node_slot(n, n->who, slot));
}

/* Pending deposits: see node.h. */

static void node_keep(struct domain *n, uint64_t round, const char *payload)
{
    size_t bytes = n->shape->payload.bytes;
    struct node_kept *k = malloc(sizeof *k);
    char *copy = memory_allocate(bytes, false);
    if (!k || !copy) {
        free(k);
        free(copy);
        n->pending.failed = true;
        return;
    }
    memcpy(copy, payload, bytes);
    *k = (struct node_kept){.next = n->pending.kept, .round = round, .payload = copy};
    n->pending.kept = k;
}

/* Drop what was deposited for rounds before `round`. */
static void node_drop_kept(struct domain *n, uint64_t round)
{
    for (struct node_kept **at = &n->pending.kept; *at;) {
        struct node_kept *k = *at;
        if (k->round >= round) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        free(k->payload);
        free(k);
    }
}

/* The application is about to write this slot: keep the deposit in it, if no round that it has
 * read contains the deposit. */
static void node_reuse_slot(struct domain *n, int slot)
{
    uint64_t *taken = &n->pending.taken_in[slot];
    if (n->member.contribution.held >> slot & 1) {
        node_drop_kept(n, n->member.delivered);
        node_keep(n, *taken - 1, node_own_payload(n, slot));
        n->member.contribution.held &= ~(1u << slot);
    }
    *taken = 0;
}

/* Add a deposit to the sum in `block`, which is empty until *any. */
static int node_add_pending(const struct domain *n, char *block, bool *any,
                            const char *payload)
{
    const struct payload *p = &n->shape->payload;
    if (*any)
        return payload_reduce(p, block, block, payload);
    memcpy(block, payload, p->bytes);
    *any = true;
    return PCOLL_OK;
}

/* Deposits are added in the order in which they were made. */
static int node_sum_pending(const struct domain *n, char *block, bool *any)
{
    const struct member *m = &n->member;
    uint64_t done = m->delivered;
    int rc = PCOLL_OK;
    for (;;) { /* the next round that took one */
        uint64_t round = UINT64_MAX;
        const char *payload = NULL;
        for (const struct node_kept *k = n->pending.kept; k; k = k->next)
            if (k->round >= done && k->round < round)
                round = k->round, payload = k->payload;
        for (int i = 0; i < n->slots_each; i++)
            if (n->pending.taken_in[i] > done && n->pending.taken_in[i] - 1 < round)
                round = n->pending.taken_in[i] - 1, payload = node_own_payload(n, i);
        if (!payload || rc != PCOLL_OK)
            break;
        rc = node_add_pending(n, block, any, payload);
        done = round + 1;
    }
    if (rc == PCOLL_OK && m->contribution.pending != NO_SLOT)
        rc = node_add_pending(n, block, any,
                              node_own_payload(n, m->contribution.pending));
    return rc;
}

int node_pending(struct domain *n, void *const *buffers)
{
    const struct payload *p = &n->shape->payload;
    n->pending.wanted = true;
    node_look(n);
    char *block = n->pending.failed ? NULL : memory_allocate(p->bytes, false);
    if (!block)
        return fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a deposit", p->bytes);
    bool any = false;
    int rc = node_sum_pending(n, block, &any);
    if (rc == PCOLL_OK && any)
        payload_unpack(p, buffers, block);
    free(block);
    return rc == PCOLL_OK && !any ? PCOLL_EEMPTY : rc;
}

static int node_write_deposit(struct domain *n, struct deposit_plan plan,
                              const void *const *buffers)
{
    const struct payload *p = &n->shape->payload;
    char *target = node_own_payload(n, plan.target);
    MOMENT("deposit written");
    CHECK(plan.target >= 0 && plan.target < n->slots_each);
    CHECK(plan.target != n->member.contribution.frozen);
    INTERLEAVE();
    if (plan.carried == NO_SLOT && buffers)
        payload_pack(p, target, buffers);
    else if (plan.carried == NO_SLOT)
        payload_pack_slot(p, target); /* such a plan always holds, so this runs once */
    else if (buffers)
        return payload_reduce_buffers(p, target, node_own_payload(n, plan.carried),
                                      buffers);
    else
        return payload_reduce_slot(p, target, node_own_payload(n, plan.carried),
                                   node_own_payload(n, n->member.contribution.user));
    return PCOLL_OK;
}

/* Publish the deposit that was written. Returns false if a round has meanwhile taken the
 * deposit that it was added to. */
static bool node_publish(struct domain *n, struct deposit_plan plan,
                         enum deposit_outcome *outcome)
{
    for (;;) {
        uint64_t word = node_look(n);
        if (!contribution_plan_holds(&n->member.contribution, plan))
            return false;
        struct member after = n->member;
        *outcome = member_publish(&after, plan);
        if (*outcome == DEPOSIT_ARRIVED)
            node_note_arrival_time(n);
        if (*outcome == DEPOSIT_DROPPED ||
            STEP(atomic_compare_exchange_strong(node_own_descriptor(n), &word,
                                                descriptor_of(&after)))) {
            MOMENT("deposit published");
            n->member = after;
            n->owes = *outcome != DEPOSIT_DROPPED;
            if (!n->owes)
                return true;
            n->pending.last = plan.target;
            n->pending.taken_in[plan.target] = 0;
            if (n->member.contribution.user != NO_SLOT)
                node_reuse_slot(n, n->member.contribution.user);
            return true;
        }
    }
}

static int node_deposit(struct domain *n, const void *const *buffers,
                        enum deposit_outcome *outcome)
{
    int rc = member_begin(&n->member);
    if (rc != PCOLL_OK)
        return rc;
    struct deposit_plan plan;
    do {
        node_look(n);
        plan = contribution_plan(&n->member.contribution);
        if (member_drops(&n->member))
            continue;
        node_reuse_slot(n, plan.target);
        atomic_store_explicit(&node_own_line(n)->intent, n->shape->intent,
                              memory_order_relaxed);
        rc = node_write_deposit(n, plan, buffers);
        if (rc != PCOLL_OK) {
            n->member.started = false;
            return rc;
        }
    } while (!node_publish(n, plan, outcome)); /* at most one repetition */
    node_set_calling(n, true);
    return PCOLL_OK;
}

void *node_send_slot(struct domain *n)
{
    int user = n->member.contribution.user;
    return user == NO_SLOT ? NULL : node_own_payload(n, user);
}

/* The other operations of a member. */

static bool node_ready(struct domain *n)
{
    return node_control_round(node_control(n)) >= n->member.wanted;
}

void node_snapshot(struct domain *n, struct member *copy)
{
    node_look(n);
    *copy = n->member;
    copy->retired = atomic_load(&node_own_line(n)->retired);
    copy->stats.rounds = copy->complete;
}

void node_poll(struct domain *n, int who, struct member *copy)
{
    const struct node_line *line = &n->lines[who];
    uint64_t word = STEP(atomic_load(&n->descriptors[who]));
    *copy = (struct member){.rank = n->hooks.placement->member[who],
                            .deliver = n->deliver,
                            .history = n->history,
                            .started = atomic_load(&line->calling),
                            .retired = STEP(atomic_load(&line->retired)),
                            .joining = word & DESCRIPTOR_JOINING,
                            .left = word & DESCRIPTOR_LEFT,
                            .joined_in = NO_ROUND,
                            .delivered = STEP(atomic_load(&line->delivered)),
                            .complete = node_control_round(node_control(n))};
    descriptor_load(word, copy);
}

/* A join or leave is part of the descriptor; the end of a call is private to the member. */
static int node_change(struct domain *n, int (*step)(struct member *))
{
    for (;;) {
        uint64_t word = node_look(n);
        struct member after = n->member;
        int rc = step(&after);
        if (rc != PCOLL_OK)
            return rc;
        uint64_t next = descriptor_of(&after);
        if (next != word)
            node_note_arrival_time(n);
        if (next == word ||
            STEP(atomic_compare_exchange_strong(node_own_descriptor(n), &word, next))) {
            n->member = after;
            node_set_calling(n, after.started);
            return PCOLL_OK;
        }
    }
}

void node_retire(struct domain *d)
{
    STEP(atomic_store(&node_own_line(d)->retired, 1));
}

void node_help(struct domain *n, bool driver, int64_t *alarm)
{
    enum node_side side = driver ? NODE_DRIVER : NODE_APPLICATION;
    *alarm = INT64_MAX;
    for (bool more = true; more;) {
        uint64_t control = node_control(n);
        uint64_t round = node_control_round(control);
        more = false;
        if (node_control_phase(control) == NODE_OPEN && !n->fabric)
            more = node_decide(n, round, side, alarm);
        else if (node_control_phase(control) == NODE_REDUCING)
            more = node_reduce(n, round, side);
    }
}

/* The driver of a domain of one member is in the same process and wakes its waiters itself. */
void node_sleeps(struct domain *n, bool asleep)
{
    uint64_t bit = (uint64_t)1 << n->who % 64;
    _Atomic uint64_t *word = &n->asleep[n->who / 64];
    if (n->members == 1)
        return;
    if (asleep)
        STEP(atomic_fetch_or(word, bit));
    else
        STEP(atomic_fetch_and(word, ~bit));
}

static void node_release_memory(void *memory, size_t bytes)
{
    (void)bytes;
    free(memory);
}

static void node_destroy(struct domain *n)
{
    for (int side = 0; side < NODE_SIDES; side++) {
        free(n->view[side].live);
        free(n->view[side].absences);
    }
    node_drop_kept(n, UINT64_MAX);
    if (n->private_memory)
        memory_dispose(n->private_memory, n->hooks.beside + n->bytes,
                       node_release_memory);
    free(n);
}

/* Recovery: a domain continues where another one has stopped; see domain.h. */

uint64_t node_copy_results(struct domain *d, struct domain *old, uint64_t round,
                           const struct round_header *last)
{
    const struct round_shape *shape = d->shape;
    uint32_t kept = d->history;
    uint64_t first = round - (round > 0), oldest = round > kept ? round - kept : 0;
    struct member m;
    if (old) {
        node_snapshot(old, &m);
        first = m.delivered ? m.delivered - 1 : 0;
        oldest = old->oldest > oldest ? old->oldest : oldest;
    }
    first = first > oldest ? first : oldest;
    for (uint64_t r = first; r < round; r++) {
        const struct round_header *from = r + 1 == round ? last : node_result(old, r);
        struct round_header *to = node_result(d, r);
        /* The ring has one entry more than results are kept: the open round uses another one. */
        CHECK(from->round == r);
        round_header_copy(to, from, shape->ranks);
        memcpy(message_payload(to), message_payload(from),
               round_shape_data_bytes(shape));
    }
    return first;
}

static void node_begin_at(struct domain *n, struct domain *old, uint64_t round,
                          const struct round_header *last)
{
    n->member.complete = n->member.frozen = n->member.delivered = round;
    STEP(atomic_store(node_own_descriptor(n), descriptor_of(&n->member)));
    STEP(atomic_store(&node_own_line(n)->delivered, round));
    int failed = old ? node_failure(old) : PCOLL_OK;
    if (failed != PCOLL_OK)
        atomic_store(&n->shared->failure, failed);
    n->oldest = node_copy_results(n, old, round, last);
    if (n->who != 0)
        return;
    /* The first member writes what belongs to all: no member reads it yet. */
    if (!n->fabric)
        node_write_live(n, last);
    if (last)
        node_note_join(n, round - 1, last);
    node_set_control(n, round, NODE_OPEN);
}

/* Move the deposit that is pending after the recovery to the new domain. */
static int node_move_deposit(struct domain *n, const struct domain *old,
                             const struct recovered_deposit *r)
{
    const struct round_shape *shape = n->shape;
    if (r->into == NO_SLOT)
        return PCOLL_OK;
    void *to = node_own_payload(n, r->into);
    const void *part[2] = {NULL, NULL};
    int parts = 0;
    if (r->older != NO_SLOT)
        part[parts++] = node_own_payload(old, r->older);
    if (r->newer != NO_SLOT)
        part[parts++] = node_own_payload(old, r->newer);
    CHECK(parts > 0);
    if (parts == 2)
        return payload_reduce(&shape->payload, to, part[0], part[1]);
    memcpy(to, part[0], round_shape_data_bytes(shape));
    return PCOLL_OK;
}

/* Move what node_pending needs of rounds before `round`. */
static void node_move_pending(struct domain *n, struct domain *old, uint64_t round)
{
    node_look(old);
    for (int i = 0; i < old->slots_each; i++)
        if (old->member.contribution.held >> i & 1 && old->pending.taken_in[i] <= round)
            node_keep(old, old->pending.taken_in[i] - 1, node_own_payload(old, i));
    n->pending.wanted = old->pending.wanted;
    n->pending.failed = old->pending.failed;
    n->pending.kept = old->pending.kept;
    old->pending.kept = NULL;
}

/* The member's state after the recovery is whole even if a user's op fails on its deposit. */
static int node_inherit(struct domain *n, struct domain *old, uint64_t round,
                        const struct round_header *last)
{
    struct member m = n->member;
    struct node_line *line = node_own_line(n);
    int rc = PCOLL_OK;
    if (old) {
        node_snapshot(old, &m);
        struct recovered_deposit r = member_recover(&m, round, last);
        rc = node_move_deposit(n, old, &r);
        node_move_pending(n, old, round);
    } else {
        member_enter(&m, round, last);
    }
    n->member = m;
    n->owes = m.contribution.pending != NO_SLOT && m.taken_in == NO_ROUND;
    n->pending.last = n->owes ? m.contribution.pending : 0;
    STEP(atomic_store(&line->delivered, m.delivered));
    node_set_calling(n, m.started);
    STEP(atomic_store(&line->retired, m.retired));
    atomic_store_explicit(&line->intent, n->shape->intent, memory_order_relaxed);
    node_note_arrival_time(n);
    /* Publish the descriptor last: other members act on it as soon as they see it. */
    STEP(atomic_store(node_own_descriptor(n), descriptor_of(&n->member)));
    return rc;
}

static const struct domain_ops node_ops = {
    .deposit = node_deposit,
    .ready = node_ready,
    .deliver = node_deliver,
    .change = node_change,
    .admits = node_fabric_admits,
    .freeze = node_fabric_freeze,
    .publish = node_fabric_publish,
    .destroy = node_destroy,
    .begin_at = node_begin_at,
    .inherit = node_inherit,
};

/* Allocate all sets of a view in one block. */
static bool node_create_view(struct domain *n, struct node_view *v, uint32_t ranks)
{
    size_t words = bitset_words(ranks);
    uint64_t *sets = calloc(5 * words, sizeof *sets);
    if (n->policy.max_staleness)
        v->absences = calloc(ranks, sizeof *v->absences);
    v->live = sets;
    if (!sets || (n->policy.max_staleness && !v->absences))
        return false;
    v->arrived = sets + words;
    v->deposited = sets + 2 * words;
    v->round = (struct policy_round){.ranks = ranks,
                                     .words = (uint32_t)words,
                                     .live = v->live,
                                     .drawn = sets + 3 * words,
                                     .overdue = sets + 4 * words};
    return true;
}

int domain_node_create(const struct round_shape *shape, const pcoll_options *options,
                       void *arg, struct domain **out)
{
    const struct node_hooks *hooks = arg;
    const struct placement *placement = hooks->placement;
    CHECK(hooks->memory || placement->members == 1);
    pcoll_options common = *options;
    common.owned_send = hooks->owned_sends;
    struct node_layout l = node_lay_out(shape, &common, placement);
    char *memory = hooks->memory
                       ? NULL
                       : memory_allocate(hooks->beside + l.total, options->device);
    struct domain *n = hooks->memory || memory ? calloc(1, sizeof *n) : NULL;
    if (!n) {
        free(memory);
        return fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a handle", l.total);
    }
    n->hooks = *hooks;
    if (memory) { /* Of one member. Only the words have to be zero. */
        n->private_memory = memory;
        n->hooks.memory = memory += hooks->beside;
        memset(memory + l.words, 0, l.total - l.words);
        n->bytes = l.total;
    }
    n->policy = options->policy;
    n->seed = options->seed;
    n->deliver = options->deliver;
    n->history = options->history;
    n->ring = options->history + 1;
    n->fabric = node_has_fabric(placement);
    n->members = placement->members;
    n->who = placement->who;
    n->hands = hooks->cores ? hooks->cores : placement->members;
    n->ops = &node_ops;
    n->shape = shape;
    member_init(&n->member, placement->member[n->who], options);
    int rc = PCOLL_OK;
    for (int side = 0; side < NODE_SIDES && !n->fabric && rc == PCOLL_OK; side++)
        if (!node_create_view(n, &n->view[side], shape->ranks))
            rc = fail(PCOLL_ENOMEM, "no memory for %u ranks", shape->ranks);
    if (rc != PCOLL_OK) {
        node_destroy(n);
        return rc;
    }
    node_map(n, &l, options);
    n->first_chunk =
        (uint32_t)((uint64_t)placement->index * n->chunks / placement->domains);
    *out = n;
    return PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* From CLOSING to the end of a round: freezing the members, reducing what they have
 * deposited, what the result changes for the next round, opening that one. The protocol is in node.h. */
#include "base/check.h"
#include "base/fence.h"
#include "base/moment.h"
#include "domain/node.h"

/* At most so many. */
static void node_wake_sleepers(struct node *n, uint32_t most)
{
    CHECK(most <= n->members || n->hands > n->members);
    for (size_t i = 0; i < bitset_words(n->members); i++) {
        uint64_t asleep = STEP(atomic_load(&n->asleep[i]));
        for (; asleep && most; asleep &= asleep - 1, most--) {
            size_t member = 64 * i + (size_t)__builtin_ctzll(asleep);
            n->hooks.wake(n->hooks.arg, n->hooks.placement->member[member]);
        }
    }
}

void node_alert(struct domain *d)
{
    CHECK(node_of(d)->members > 0);
    struct node *n = node_of(d);
    STEP(atomic_store(&n->shared->attention, 1));
    n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);
}

static void node_set_control(struct node *n, uint64_t round, enum node_phase phase)
{
    CHECK(node_control_who(node_control_word(round, phase, n->who)) == n->who);
    STEP(atomic_store(&n->shared->control, node_control_word(round, phase, n->who)));
}

/* The closer: take member j's deposit, if there is one; its slot. */
static int node_freeze_member(struct node *n, uint32_t j, struct round_header *h)
{
    CHECK(j < n->members);
    uint32_t rank = n->hooks.placement->member[j];
    struct node_line *line = &n->lines[j];
    uint64_t word = STEP(atomic_load(&n->descriptors[j]));
    while (!STEP(atomic_compare_exchange_weak(&n->descriptors[j], &word,
                                              descriptor_freeze(word))))
        ;
    int slot = descriptor_pending(word);
    CHECK(descriptor_rounds(word) == h->round);
    CHECK(slot < n->slots_each);
    descriptor_announce(word, rank, h, n->base.shape->ranks);
    MOMENT("member frozen");
    if (n->hooks.frozen)
        n->hooks.frozen(n->hooks.arg, rank, h->round, h,
                        slot == NO_SLOT
                            ? NULL
                            : message_payload(n->base.shape, node_slot(n, j, slot)));
    if (slot != NO_SLOT)
        STEP(
            atomic_store_explicit(&line->taken_in, h->round + 1, memory_order_release));
    return slot;
}

/* Where the sum of the domain goes. */
static struct round_header *node_target(const struct node *n, uint64_t round)
{
    return n->fabric ? n->gathered : node_result(n, round);
}

static uint32_t node_freeze_all(struct node *n, uint64_t round, uint32_t initiator)
{
    struct round_header *h = node_target(n, round);
    uint32_t parts = 0;
    round_header_clear(h, n->base.shape->ranks, round);
    round_header_bury(h, n->base.shape->ranks, n->base.shape->failed);
    for (uint32_t j = 0; j < n->members; j++) {
        int slot = node_freeze_member(n, j, h);
        if (slot != NO_SLOT)
            n->list[parts++] =
                (struct node_frozen){.member = j, .slot = (uint32_t)slot};
    }
    h->initiator = initiator;
    CHECK(parts <= n->members);
    atomic_store_explicit(&n->shared->parts, parts, memory_order_relaxed);
    return parts;
}

static const char *node_part_payload(const struct node *n, uint32_t k)
{
    CHECK(k < atomic_load_explicit(&n->shared->parts, memory_order_relaxed));
    const struct node_frozen *part = &n->list[k];
    return message_payload(n->base.shape, node_slot(n, part->member, (int)part->slot));
}

/* One after the other in the order of the ranks, whoever does it. */
static int node_reduce_chunk(struct node *n, uint64_t round, uint32_t chunk)
{
    CHECK(chunk < n->chunks);
    const struct payload *p = &n->base.shape->payload;
    uint32_t parts = atomic_load_explicit(&n->shared->parts, memory_order_relaxed);
    size_t begin = payload_cut(p, chunk, n->chunks),
           end = payload_cut(p, chunk + 1, n->chunks);
    char *out = (char *)message_payload(n->base.shape, node_target(n, round)) + begin;
    if (parts == 1) {
        memcpy(out, node_part_payload(n, 0) + begin, end - begin);
        return PCOLL_OK;
    }
    int rc = PCOLL_OK;
    const char *sum = node_part_payload(n, 0) + begin;
    for (uint32_t k = 1; k < parts && rc == PCOLL_OK; k++, sum = out)
        rc = payload_reduce_slice(p, out, sum, node_part_payload(n, k) + begin, begin,
                                  end);
    return rc;
}

static void node_do_chunk(struct node *n, uint64_t round, uint32_t chunk)
{
    INTERLEAVE();
    MOMENT("chunk taken");
    int rc = node_reduce_chunk(n, round, chunk);
    if (rc != PCOLL_OK)
        atomic_store(&n->shared->failure, rc);
    if (!n->fabric)
        return;
    STEP(atomic_store(&n->finished[chunk], round + 1));
    if (STEP(atomic_load(&n->shared->awaited)) &&
        STEP(atomic_exchange(&n->shared->awaited, 0)))
        node_alert(&n->base);
}

/* The round is over: what its result says of the next one. */

void node_note_join(struct node *n, uint64_t round, const struct round_header *result)
{
    CHECK(result->round == round);
    uint32_t ranks = n->base.shape->ranks;
    if (round_all_gone(result, ranks) &&
        !bitset_empty(round_mask_const(result, ranks, ROUND_JOINED),
                      bitset_words(ranks)))
        STEP(atomic_store(&n->shared->all_joined, round + 1));
}

static void node_count_absences(struct node *n, const struct round_header *result)
{
    uint32_t ranks = n->base.shape->ranks;
    const uint64_t *active = round_mask_const(result, ranks, ROUND_ACTIVE);
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t before = atomic_load_explicit(&n->absent[i], memory_order_relaxed);
        uint64_t live = atomic_load_explicit(&n->live[i / 64], memory_order_relaxed);
        uint32_t now =
            round_absences(before, bitset_has(active, i), live >> i % 64 & 1);
        STEP(atomic_store_explicit(&n->absent[i], now, memory_order_release));
    }
}

/* Before the live set changes. */
static void node_judge(struct node *n, uint64_t round, struct round_header *result)
{
    uint32_t ranks = n->base.shape->ranks;
    uint64_t live[bitset_words(ranks)], drawn[bitset_words(ranks)],
        overdue[bitset_words(ranks)];
    uint32_t absences[n->absent ? ranks : 1];
    struct policy_round asked = {
        .ranks = ranks, .live = live, .drawn = drawn, .overdue = overdue};
    for (size_t i = 0; i < bitset_words(ranks); i++)
        live[i] = atomic_load_explicit(&n->live[i], memory_order_relaxed);
    for (uint32_t i = 0; n->absent && i < ranks; i++)
        absences[i] = atomic_load_explicit(&n->absent[i], memory_order_relaxed);
    node_ask(n, round, n->absent ? absences : NULL, &asked);
    if (!policy_kept(&n->policy, &asked, result))
        result->flags |= ROUND_BELOW_QUORUM;
}

/* What the completed round changes for the next. */
static void node_account(struct node *n, uint64_t round, struct round_header *result)
{
    uint32_t ranks = n->base.shape->ranks;
    if (n->policy.deadline > 0)
        node_judge(n, round, result);
    if (n->absent)
        node_count_absences(n, result);
    uint64_t live[bitset_words(ranks)];
    round_live(result, ranks, live);
    for (size_t i = 0; i < bitset_words(ranks); i++)
        STEP(atomic_store_explicit(&n->live[i], live[i], memory_order_release));
    node_note_join(n, round, result);
}

/* The sum of the domain is there. */
static void node_end_reduction(struct node *n, uint64_t round)
{
    MOMENT("sum ready");
    if (n->fabric) {
        node_set_control(n, round, NODE_FABRIC);
        node_alert(&n->base);
        return;
    }
    node_account(n, round, node_result(n, round));
    node_complete(n, round);
}

/* Nothing to add up: with a fabric what there is is sent from where it lies. */
static bool node_needs_no_reduction(struct node *n, uint64_t round, uint32_t parts)
{
    const struct round_shape *shape = n->base.shape;
    if (!parts && !n->fabric)
        payload_identity_block(&shape->payload,
                               message_payload(shape, node_result(n, round)));
    return parts == 0 || (parts == 1 && n->fabric);
}

/* The ring sends the part before this domain's own first, then the one before that. */
static uint32_t node_chunk_at(const struct node *n, uint32_t position)
{
    return n->fabric ? (n->first_chunk + n->chunks - 1 - position) % n->chunks
                     : position;
}

/* The next chunk of this round; false if there is none, or the round is another. */
static bool node_take_chunk(struct node *n, uint64_t round, uint32_t *chunk)
{
    uint64_t word = STEP(atomic_load(&n->shared->taken));
    do {
        *chunk = (uint32_t)word;
        if (word >> 32 != (uint32_t)round || *chunk >= n->chunks)
            return false;
    } while (!STEP(atomic_compare_exchange_weak(&n->shared->taken, &word, word + 1)));
    *chunk = node_chunk_at(n, *chunk);
    return true;
}

/* Take one chunk. *ended: it was the last to be finished. */
static bool node_reduce_one(struct node *n, uint64_t round, bool *ended)
{
    uint32_t chunk;
    if (!node_take_chunk(n, round, &chunk))
        return false;
    node_do_chunk(n, round, chunk);
    uint64_t done = STEP(atomic_fetch_add(&n->shared->done, 1)) + 1;
    CHECK(done <= n->chunks);
    *ended = done == n->chunks;
    return true;
}

/* Chunks of this round, as long as there are any, as one who is counted. */
static bool node_work(struct node *n, uint64_t round)
{
    bool ended = false;
    _Atomic uint64_t *working = &n->lines[n->who].working;
    atomic_store_explicit(working, round + 1, memory_order_relaxed);
    while (!ended && node_reduce_one(n, round, &ended))
        ;
    atomic_store_explicit(working, 0, memory_order_relaxed);
    STEP(atomic_fetch_sub(&n->shared->workers, 1));
    if (ended)
        node_end_reduction(n, round);
    return ended;
}

/* Of each member its application and its driver at most. */
static uint32_t node_count_worker(struct node *n)
{
    uint32_t others = STEP(atomic_fetch_add(&n->shared->workers, 1));
    CHECK(others < NODE_SIDES * n->members);
    return others;
}

/* The closer is never refused: those who are counted may be about to leave. */
static void node_reduce_closed(struct node *n, uint64_t round)
{
    node_count_worker(n);
    node_work(n, round);
}

/* More than the machine has cores would only take them from each other, each with a
 * chunk that the others wait for. */
static bool node_join_work(struct node *n)
{
    if (node_count_worker(n) < n->hands)
        return true;
    STEP(atomic_fetch_sub(&n->shared->workers, 1));
    return false;
}

bool node_reduce_next(struct node *n, uint64_t round)
{
    bool ended = false;
    _Atomic uint64_t *working = &n->lines[n->who].working;
    atomic_store_explicit(working, round + 1, memory_order_relaxed);
    bool any = node_reduce_one(n, round, &ended);
    atomic_store_explicit(working, 0, memory_order_relaxed);
    if (ended)
        node_end_reduction(n, round);
    return any;
}

bool node_reduce(struct node *n, uint64_t round)
{
    CHECK(n->chunks > 1);
    return node_join_work(n) && node_work(n, round);
}

bool node_close(struct node *n, uint64_t round, uint32_t initiator)
{
    CHECK(n->who < n->members);
    uint64_t open = STEP(atomic_load(&n->shared->control));
    if (node_control_round(open) != round || node_control_phase(open) != NODE_OPEN)
        return false;
    if (!STEP(atomic_compare_exchange_strong(
            &n->shared->control, &open,
            node_control_word(round, NODE_CLOSING, n->who))))
        return false;
    fence_before_writes();
    MOMENT("closing a round");
    uint32_t parts = node_freeze_all(n, round, initiator);
    MOMENT("members frozen");
    if (node_needs_no_reduction(n, round, parts)) {
        node_end_reduction(n, round);
    } else if (n->chunks == 1) {
        node_do_chunk(n, round, 0);
        node_end_reduction(n, round);
    } else {
        STEP(atomic_store(&n->shared->done, 0));
        STEP(atomic_store(&n->shared->taken, round << 32));
        node_set_control(n, round, NODE_REDUCING);
        node_wake_sleepers(n, n->hands - 1); /* as they are going to be woken anyway */
        if (!n->fabric)
            node_reduce_closed(n, round);
    }
    return true;
}

void node_complete(struct node *n, uint64_t round)
{
    CHECK(node_control_round(node_control(n)) == round);
    CHECK(node_control_phase(node_control(n)) != NODE_OPEN);
    if (n->hooks.over)
        n->hooks.over(n->hooks.arg, round);
    MOMENT("publishing");
    node_set_control(n, round + 1, NODE_OPEN);
    MOMENT("published");
    node_wake_sleepers(n, n->members);
}

void node_busy(struct domain *d, uint64_t *set)
{
    CHECK(set);
    struct node *n = node_of(d);
    uint64_t control = node_control(n);
    if (node_control_phase(control) == NODE_CLOSING)
        bitset_add(set, n->hooks.placement->member[node_control_who(control)]);
    for (uint32_t j = 0; j < n->members; j++)
        if (node_control_phase(control) == NODE_REDUCING &&
            atomic_load_explicit(&n->lines[j].working, memory_order_relaxed) ==
                node_control_round(control) + 1)
            bitset_add(set, n->hooks.placement->member[j]);
}

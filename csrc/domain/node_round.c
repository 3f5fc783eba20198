/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a domain in shared memory: deciding, closing, delivering. The protocol is in node.h. */
#include "domain/node.h"

#include "base/check.h"
#include "base/lock.h"

/*
 * When does the open round of a domain without a fabric start? Everybody can tell: the
 * descriptors say who has come, and protocol/round_trigger.h what that means. (With a
 * fabric the endpoint decides, see allreduce/endpoint.h.)
 *
 * met: {round, time} of the moment at which the policy was found met, for linger. The
 * first to find it writes it by swap. One who is late for round t puts {t, …} in a
 * later round's place, or its swap fails: the others see another round's number and
 * write theirs. Time in microseconds. Of the
 * round there is room for 16 bits: one that finds its number written 65536 rounds ago
 * does not linger, once.
 */

enum { MET_TIME_BITS = 48 };

static bool node_is_open(uint64_t control, uint64_t round)
{
    return node_control_round(control) == round &&
           node_control_phase(control) == NODE_OPEN;
}

/* Find out what the open round asks for; false if it has begun to close. What was
 * written for it is released before control names it, and what is written for the next
 * one only when it closes. */
static bool node_open_view(struct node *n, struct node_view *v, uint64_t round)
{
    uint32_t ranks = n->base.shape->ranks;
    if (v->opened == round + 1)
        return true;
    for (size_t i = 0; i < bitset_words(ranks); i++)
        v->live[i] = STEP(atomic_load_explicit(&n->live[i], memory_order_acquire));
    for (uint32_t i = 0; n->absent && i < ranks; i++)
        v->absences[i] =
            STEP(atomic_load_explicit(&n->absent[i], memory_order_acquire));
    if (!node_is_open(node_control(n), round))
        return false;
    node_ask(n, round, v->absences, &v->round);
    v->opened = round + 1;
    return true;
}

/* Has the rank read the round with which all had joined? Until then its descriptor may
 * still say that it joins. */
static bool node_knows_end_of_join(const struct node *n, uint32_t j)
{
    uint64_t joined = STEP(atomic_load(&n->shared->all_joined));
    return !joined || STEP(atomic_load(&n->lines[j].delivered)) >= joined;
}

/* Does the rank announce a join that is not over? It ceases to say so before it says
 * that it has read the round; so what it says counts only if it is read after that. */
static bool node_announces_join(const struct node *n, uint32_t j, uint64_t word)
{
    return descriptor_joining(word) && node_knows_end_of_join(n, j) &&
           descriptor_joining(STEP(atomic_load(&n->descriptors[j])));
}

static bool node_has_arrived(const struct node *n, const struct node_view *v,
                             uint32_t j, uint64_t word)
{
    CHECK(j < n->members);
    if (descriptor_arrived(word))
        return true;
    bool goes = descriptor_left(word) || node_announces_join(n, j, word);
    return goes && bitset_has(v->live, n->hooks.placement->member[j]);
}

/* A descriptor that has been frozen for this round already means that the round is
 * under way: whoever counts it finds control changed. */
void node_arrivals(struct node *n, struct node_view *v, uint64_t round)
{
    CHECK(v->opened || n->fabric);
    size_t words = bitset_words(n->base.shape->ranks);
    bitset_clear(v->arrived, words);
    bitset_clear(v->deposited, words);
    for (uint32_t j = 0; j < n->members; j++) {
        uint64_t word = STEP(atomic_load(&n->descriptors[j]));
        uint32_t rank = n->hooks.placement->member[j];
        if (descriptor_rounds(word) != round)
            continue;
        if (node_has_arrived(n, v, j, word))
            bitset_add(v->arrived, rank);
        if (descriptor_pending(word) != NO_SLOT)
            bitset_add(v->deposited, rank);
    }
}

static bool node_is_behind(const struct node *n, uint32_t j, uint64_t round)
{
    const struct node_line *line = &n->lines[j];
    if (n->deliver != PCOLL_DELIVER_ONE ||
        round < n->history + STEP(atomic_load(&line->delivered)))
        return false;
    bool away = descriptor_left(STEP(atomic_load(&n->descriptors[j])));
    return !away && !(STEP(atomic_load(&line->flags)) & NODE_RETIRED);
}

/* Nothing comes after the round with which all have joined before each has read it. */
static bool node_is_unaware(const struct node *n, uint32_t j)
{
    return descriptor_joining(STEP(atomic_load(&n->descriptors[j]))) &&
           !node_knows_end_of_join(n, j) &&
           !(STEP(atomic_load(&n->lines[j].flags)) & NODE_RETIRED);
}

/* Rounds delivered only grow, so what was admitted stays so; with "one" it is known for
 * as many rounds ahead as the history has. With "all" only the end of a join holds a
 * round back. */
bool node_admits(struct node *n, uint64_t round, enum node_side side)
{
    CHECK(side < NODE_SIDES);
    struct node_view *v = &n->view[side];
    bool joined = STEP(atomic_load(&n->shared->all_joined)) == round;
    bool known = n->deliver != PCOLL_DELIVER_ONE || round < v->admitted;
    if (known && !joined)
        return true;
    uint64_t least = UINT64_MAX;
    for (uint32_t j = 0; j < n->members; j++) {
        if (node_is_behind(n, j, round) || (joined && node_is_unaware(n, j)))
            return false;
        uint64_t delivered = STEP(atomic_load(&n->lines[j].delivered));
        least = delivered < least ? delivered : least;
    }
    v->admitted = least + n->history;
    return true;
}

/* Since when has the policy been met? It is met now: the first to say so is right. */
static int64_t node_met_since(struct node *n, uint64_t round, int64_t now)
{
    uint64_t const mask = ((uint64_t)1 << MET_TIME_BITS) - 1;
    uint64_t tag = (round + 1) << MET_TIME_BITS;
    uint64_t word = STEP(atomic_load(&n->shared->met));
    while ((word & ~mask) != tag) {
        uint64_t mine = tag | ((uint64_t)(now / 1000) & mask);
        if (STEP(atomic_compare_exchange_strong(&n->shared->met, &word, mine)))
            word = mine;
    }
    return (int64_t)(word & mask) * 1000;
}

/* When the first of those who have arrived did, and who that was. */
static int64_t node_first_arrival(const struct node *n, const struct node_view *v,
                                  uint32_t *first)
{
    int64_t least = ROUND_NEVER;
    for (uint32_t j = 0; j < n->members; j++) {
        uint32_t rank = n->hooks.placement->member[j];
        int64_t at = STEP(atomic_load(&n->lines[j].arrived_at));
        if (!bitset_has(v->arrived, rank) || !bitset_has(v->live, rank) || at >= least)
            continue;
        least = at;
        *first = rank;
    }
    return least;
}

/* May the round start? A linger begins when it is first seen to be met, by whoever. */
static struct round_trigger node_trigger_of(struct node *n, struct node_view *v,
                                            uint64_t round)
{
    const pcoll_policy *p = &n->policy;
    struct policy_report report = policy_count(&v->round, v->arrived, v->deposited);
    struct round_state state = {
        .report = &report,
        .members = n->base.member_set,
        .starter = round_trigger_starter(p, &v->round, v->arrived),
        .met_since = ROUND_NEVER,
        .now = policy_has_timers(p) ? n->hooks.now(n->hooks.arg) : 0,
    };
    struct round_trigger t = round_trigger_evaluate(p, &v->round, &state);
    if (!t.start && t.met_since != ROUND_NEVER) {
        state.met_since = node_met_since(n, round, state.now);
        t = round_trigger_evaluate(p, &v->round, &state);
    }
    if (t.start || !(p->deadline > 0))
        return t;
    state.first_arrival = node_first_arrival(n, v, &state.first);
    struct round_trigger deadline = round_trigger_deadline(p, &state);
    deadline.alarm = t.alarm < deadline.alarm ? t.alarm : deadline.alarm;
    return deadline;
}

bool node_decide(struct node *n, uint64_t round, enum node_side side, int64_t *alarm)
{
    CHECK(!n->fabric);
    CHECK(side < NODE_SIDES);
    struct node_view *v = &n->view[side];
    if (!node_open_view(n, v, round))
        return true;
    node_arrivals(n, v, round);
    struct round_trigger t = node_trigger_of(n, v, round);
    if (t.alarm < *alarm)
        *alarm = t.alarm;
    if (!t.start || !node_admits(n, round, side))
        return node_control_round(node_control(n)) != round;
    node_close(n, round, t.initiator);
    return true;
}

const uint64_t *node_awaited(struct domain *d)
{
    CHECK(node_of(d)->members > 0);
    struct node *n = node_of(d);
    struct node_view *v = &n->view[NODE_DRIVER];
    uint64_t round = node_control_round(node_control(n));
    return node_open_view(n, v, round) ? policy_awaited(&n->policy, &v->round) : NULL;
}

/*
 * From CLOSING to the end of a round: freezing the members, reducing what they have
 * deposited, what the result changes for the next round, opening that one.
 */

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

/* A member reads a round, while others may begin to overwrite it: node.h, invariant 5. */

/* The round that the ring has no room for any more has begun to close. */
static bool node_overwritten(const struct node *n, uint64_t round)
{
    uint64_t control = node_control(n), reuse = round + n->ring;
    return node_control_round(control) > reuse ||
           (node_control_round(control) == reuse &&
            node_control_phase(control) != NODE_OPEN);
}

static void node_copy_out(struct node *n, const struct round_header *h,
                          void *const *buffers, pcoll_round *round, uint64_t *masks)
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
static bool node_ends_join(const struct node *n, const struct round_header *h)
{
    const struct member *m = &n->member;
    uint32_t ranks = n->base.shape->ranks;
    return m->joining &&
           bitset_has(round_mask_const(h, ranks, ROUND_JOINED), m->rank) &&
           round_all_gone(h, ranks);
}

/* Was a round held back for this member, as far as it can tell? It will look. */
static bool node_end_read(struct node *n, uint64_t before, uint64_t *lost)
{
    struct member *m = &n->member;
    member_read_end(m, lost);
    MOMENT("result read");
    if (m->joined)
        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));
    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));
    uint64_t control = node_control(n);
    return node_control_phase(control) == NODE_OPEN &&
           (m->joined || node_control_round(control) >= before + m->history);
}

int node_deliver(struct domain *d, uint64_t last, uint64_t horizon,
                 void *const *buffers, pcoll_round *round, uint64_t *masks, bool *moved)
{
    struct node *n = node_of(d);
    struct member *m = &n->member;
    uint64_t index, before = m->delivered;
    bool joined = false;
    for (bool whole = false; !whole;) {
        node_look(n);
        if (!member_read_begin(m, last, horizon, &index))
            return PCOLL_EEMPTY;
        const struct round_header *h = node_result(n, index);
        node_copy_out(n, h, buffers, round, masks);
        joined = node_ends_join(n, h);
        fence_after_reads();
        whole = m->deliver == PCOLL_DELIVER_ONE || !node_overwritten(n, index);
    }
    CHECK(index < m->complete);
    if (joined)
        m->joined_in = (int64_t)index;
    *moved = node_end_read(n, before, &round->lost);
    node_look(n);
    round->index = index;
    round->lag = m->complete - m->delivered;
    round->included = member_included(m, index);
    round->joined = m->joined;
    return PCOLL_OK;
}

/* The fabric's side of a domain: the leader's driver. */

bool node_attention(struct domain *d)
{
    struct node *n = node_of(d);
    return STEP(atomic_load(&n->shared->attention)) &&
           STEP(atomic_exchange(&n->shared->attention, 0));
}

void node_fabric_arrivals(struct domain *d, uint64_t *arrived, uint64_t *deposited)
{
    struct node *n = node_of(d);
    struct node_view *v = &n->view[NODE_DRIVER];
    size_t words = bitset_words(d->shape->ranks);
    node_arrivals(n, v, node_control_round(node_control(n)));
    for (size_t i = 0; i < words; i++) {
        arrived[i] |= v->arrived[i];
        deposited[i] |= v->deposited[i];
    }
}

bool node_fabric_admits(struct domain *d)
{
    struct node *n = node_of(d);
    return node_admits(n, node_control_round(node_control(n)), NODE_DRIVER);
}

struct round_header *node_fabric_freeze(struct domain *d, uint64_t round)
{
    struct node *n = node_of(d);
    bool closed = node_close(n, round, ROUND_NOBODY);
    CHECK(closed);
    if (atomic_load_explicit(&n->shared->parts, memory_order_relaxed) != 1)
        return n->gathered;
    struct round_header *alone = node_slot(n, n->list[0].member, (int)n->list[0].slot);
    memcpy(alone, n->gathered, d->shape->header_bytes);
    return alone;
}

/* Is all that there is to add up in these bytes finished? */
static bool node_is_gathered(const struct node *n, uint64_t round, size_t begin,
                             size_t end)
{
    const struct payload *p = &n->base.shape->payload;
    if (node_control_phase(node_control(n)) == NODE_FABRIC)
        return true;
    if (begin == 0 &&
        end == p->bytes) /* then whoever is last has one more step to do */
        return false;
    for (uint32_t i = 0; i < n->chunks; i++)
        if (payload_cut(p, i, n->chunks) < end &&
            payload_cut(p, i + 1, n->chunks) > begin &&
            STEP(atomic_load(&n->finished[i])) != round + 1)
            return false;
    return true;
}

bool node_fabric_gather(struct domain *d, uint64_t round, size_t begin, size_t end)
{
    struct node *n = node_of(d);
    CHECK(node_control_round(node_control(n)) == round);
    while (!node_is_gathered(n, round, begin, end)) {
        if (node_reduce_next(n, round))
            continue;
        STEP(atomic_store(&n->shared->awaited, 1));
        return node_is_gathered(n, round, begin, end);
    }
    return true;
}

struct round_header *node_fabric_result(struct domain *d, uint64_t round)
{
    return node_result(node_of(d), round);
}

void node_fabric_publish(struct domain *d, uint64_t round)
{
    struct node *n = node_of(d);
    const struct round_header *h = node_result(n, round);
    CHECK(node_control_phase(node_control(n)) == NODE_FABRIC && h->round == round);
    if (round_is_null(h, d->shape->ranks))
        payload_identity_block(&d->shape->payload, message_payload(d->shape, h));
    node_note_join(n, round, h);
    node_complete(n, round);
}

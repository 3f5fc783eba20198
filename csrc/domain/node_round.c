/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rounds of a domain: what a member knows of them, when the open round starts, closing it,
 * reading its result, and what the driver of a fabric calls. The protocol is in node.h.
 */
#include "domain/node.h"

#include "base/lock.h"

/* The member's view of itself. */

/*
 * The closer swaps the descriptor before it writes `taken_in`. So while the descriptor names a
 * frozen slot, its round count gives the round that took the last deposit; afterwards `taken_in`
 * does.
 */
uint64_t node_look(struct domain *n)
{
    struct member *m = &n->member;
    uint64_t word = STEP(atomic_load(node_own_descriptor(n)));
    descriptor_load(word, m);
    m->complete = node_control_round(node_control(n));
    CHECK(member_counts_hold(m));
    if (n->owes && m->contribution.pending == NO_SLOT) {
        uint64_t rounds = m->contribution.frozen != NO_SLOT
                              ? m->frozen
                              : STEP(atomic_load(&node_own_line(n)->taken_in));
        m->taken_in = (int64_t)rounds - 1;
        n->pending.taken_in[n->pending.last] = rounds;
        m->stats.included++;
        n->owes = false;
    }
    if (m->complete >= m->frozen) /* the round that read it is over */
        m->contribution.frozen = NO_SLOT;
    m->contribution.held = 0;
    for (int i = 0; n->pending.wanted && i < n->slots_each; i++)
        if (n->pending.taken_in[i] > m->delivered)
            m->contribution.held |= 1u << i;
    return word;
}

void node_note_arrival_time(struct domain *n)
{
    if (!n->fabric &&
        policy_has_timers(&n->policy)) /* else the endpoint notes the time */
        STEP(atomic_store(&node_own_line(n)->arrived_at, n->hooks.now(n->hooks.arg)));
}

/* No other thread uses the sets of this view yet. */
void node_write_live(struct domain *n, const struct round_header *last)
{
    const struct round_shape *shape = n->shape;
    uint64_t *live = n->view[NODE_APPLICATION].live;
    size_t words = bitset_words(shape->ranks);
    round_live(last, shape->ranks, shape->failed, 0, words, live);
    for (size_t i = 0; i < words; i++)
        atomic_store(&n->live[i], live[i]);
}

/*
 * Deciding. In a domain without a fabric every member can tell whether the open round may
 * start: the descriptors say which ranks have arrived, and protocol/policy.h says what
 * follows from that. (With a fabric the endpoint decides: allreduce/endpoint.h.)
 *
 * met: {round, time} at which the policy was first found met, for linger. The member that
 * finds it first writes it by swap. If a member that is late writes {t, ...} over the word of
 * a later round, the others see another round's number and write theirs again. Time is in
 * microseconds. The round has 16 bits: a member that finds its number written 65,536 rounds
 * ago does not linger in that one round.
 */

enum { MET_TIME_BITS = 48 };

/* Find out what this round asks for. */
static void node_read_view(const struct domain *n, uint64_t round, struct node_view *v)
{
    uint32_t ranks = n->shape->ranks;
    for (size_t i = 0; i < bitset_words(ranks); i++)
        v->live[i] = STEP(atomic_load_explicit(&n->live[i], memory_order_acquire));
    for (uint32_t i = 0; n->absent && i < ranks; i++)
        v->absences[i] =
            STEP(atomic_load_explicit(&n->absent[i], memory_order_acquire));
    v->round.live_count = v->round.own_count = bitset_count(v->live, v->round.words);
    struct policy_draw draw = {
        .seed = n->seed, .slot = *n->hooks.slot, .round = round, .endpoints = 1};
    policy_open(&n->policy, &draw, v->absences, &v->round);
}

/* Find out what the open round asks for. Returns false if it has begun to close. `live` and
 * `absent` of a round are written before control names the round, and not again until the
 * round closes. */
static bool node_open_view(struct domain *n, struct node_view *v, uint64_t round)
{
    if (v->opened == round + 1)
        return true;
    node_read_view(n, round, v);
    uint64_t control = node_control(n);
    if (node_control_round(control) != round ||
        node_control_phase(control) != NODE_OPEN)
        return false;
    v->opened = round + 1;
    return true;
}

/* Return whether this member has read the round with which all had joined. Before that, its
 * descriptor may still say that it joins. */
static bool node_knows_end_of_join(const struct domain *n, uint32_t j)
{
    uint64_t joined = STEP(atomic_load(&n->shared->all_joined));
    return !joined || STEP(atomic_load(&n->lines[j].delivered)) >= joined;
}

/*
 * Add the ranks that have arrived, and those with a deposit. A descriptor that is frozen for
 * this round already shows that the round is being closed: a member that counts it then finds
 * control changed.
 *
 * A member withdraws the announcement of a join before it says that it has read the round that
 * ends it, so the announcement counts only if it is read after that. live: NULL if the caller
 * leaves out the ranks that are not live.
 */
static void node_arrivals(const struct domain *n, uint64_t round, const uint64_t *live,
                          uint32_t first_word, uint64_t *arrived, uint64_t *deposited)
{
    for (uint32_t j = 0; j < n->members; j++) {
        uint64_t word = STEP(atomic_load(&n->descriptors[j]));
        uint32_t rank = n->hooks.placement->member[j];
        if (descriptor_rounds(word) != round)
            continue;
        bool goes = word & DESCRIPTOR_LEFT;
        if (!goes && (word & DESCRIPTOR_JOINING) && node_knows_end_of_join(n, j))
            goes = STEP(atomic_load(&n->descriptors[j])) & DESCRIPTOR_JOINING;
        if ((word & DESCRIPTOR_ARRIVED) || (goes && (!live || bitset_has(live, rank))))
            bitset_add(arrived, rank - 64 * first_word);
        if (descriptor_pending(word) != NO_SLOT)
            bitset_add(deposited, rank - 64 * first_word);
    }
}

static bool node_is_behind(const struct domain *n, uint32_t j, uint64_t round)
{
    const struct node_line *line = &n->lines[j];
    if (n->deliver != PCOLL_DELIVER_ONE ||
        round < n->history + STEP(atomic_load(&line->delivered)))
        return false;
    bool away = STEP(atomic_load(&n->descriptors[j])) & DESCRIPTOR_LEFT;
    return !away && !STEP(atomic_load(&line->retired));
}

/* No round follows the one with which all have joined before each member has read that one. */
static bool node_is_unaware(const struct domain *n, uint32_t j)
{
    return (STEP(atomic_load(&n->descriptors[j])) & DESCRIPTOR_JOINING) &&
           !node_knows_end_of_join(n, j) && !STEP(atomic_load(&n->lines[j].retired));
}

/* Return whether the round may start: every member has read the result that the round would
 * overwrite. The number of delivered rounds only grows, so a round that was admitted stays
 * admitted. With deliver="one" this is known for as many rounds ahead as the history has. With
 * "all" only the end of a join holds a round back. */
static bool node_admits(struct domain *n, uint64_t round, enum node_side side)
{
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

/* Return the time since which the policy has been met. It is met now. */
static int64_t node_met_since(struct domain *n, uint64_t round, int64_t now)
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

/* Return the time of the first arrival, and set *first to its rank. */
static int64_t node_first_arrival(const struct domain *n, const struct node_view *v,
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

/* Decide whether the round may start. A linger begins when a member first finds the policy met. */
static struct round_trigger node_trigger_of(struct domain *n, struct node_view *v,
                                            uint64_t round)
{
    const pcoll_policy *p = &n->policy;
    struct policy_report report = policy_count(&v->round, v->arrived, v->deposited);
    struct round_state state = {
        .report = &report,
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

static bool node_close(struct domain *n, uint64_t round, uint32_t initiator,
                       enum node_side side);

bool node_decide(struct domain *n, uint64_t round, enum node_side side, int64_t *alarm)
{
    struct node_view *v = &n->view[side];
    size_t words = bitset_words(n->shape->ranks);
    if (!node_open_view(n, v, round))
        return true;
    bitset_clear(v->arrived, words);
    bitset_clear(v->deposited, words);
    node_arrivals(n, round, v->live, 0, v->arrived, v->deposited);
    struct round_trigger t = node_trigger_of(n, v, round);
    if (t.alarm < *alarm)
        *alarm = t.alarm;
    if (!t.start || !node_admits(n, round, side))
        return node_control_round(node_control(n)) != round;
    node_close(n, round, t.initiator, side);
    return true;
}

const uint64_t *node_awaited(struct domain *n)
{
    struct node_view *v = &n->view[NODE_DRIVER];
    uint64_t round = node_control_round(node_control(n));
    if (n->fabric || !node_open_view(n, v, round))
        return NULL;
    return policy_awaited(&n->policy, &v->round);
}

/*
 * From CLOSING to the end of a round: freezing the members, reducing what they have
 * deposited, recording what the result changes for the next round, opening that round.
 */

/* Wake at most `most` sleeping members. */
static void node_wake_sleepers(struct domain *n, uint32_t most)
{
    for (size_t i = 0; i < bitset_words(n->members); i++) {
        uint64_t asleep = STEP(atomic_load(&n->asleep[i]));
        for (; asleep && most; asleep &= asleep - 1, most--) {
            size_t member = 64 * i + (size_t)__builtin_ctzll(asleep);
            n->hooks.wake(n->hooks.arg, n->hooks.placement->member[member]);
        }
    }
}

void node_alert(struct domain *n)
{
    STEP(atomic_store(&n->shared->attention, 1));
    n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);
}

/* The closer: take the deposits of all members, and list their slots. Return their number. */
static uint32_t node_freeze_all(struct domain *n, uint64_t round, uint32_t initiator)
{
    const struct round_shape *shape = n->shape;
    struct round_header *h = node_target(n, round);
    uint32_t parts = 0;
    round_header_clear(h, round);
    if (shape->failed) {
        round_add_set(h, shape->ranks, ROUND_LEFT, shape->failed);
        round_add_set(h, shape->ranks, ROUND_FAILED, shape->failed);
    }
    for (uint32_t j = 0; j < n->members; j++) {
        uint32_t rank = n->hooks.placement->member[j];
        uint64_t word = STEP(atomic_load(&n->descriptors[j]));
        while (!STEP(atomic_compare_exchange_weak(&n->descriptors[j], &word,
                                                  descriptor_freeze(word))))
            ;
        int slot = descriptor_pending(word);
        CHECK(descriptor_rounds(word) == round);
        CHECK(slot < n->slots_each);
        descriptor_announce(word, rank, h, shape->ranks);
        if (slot != NO_SLOT)
            h->intent |=
                atomic_load_explicit(&n->lines[j].intent, memory_order_relaxed);
        else if (shape->described) /* Its handle is being freed. */
            h->intent |= ROUND_INTENT_ENDED;
        MOMENT("member frozen");
        if (n->hooks.frozen)
            n->hooks.frozen(n->hooks.arg, rank, round, h,
                            slot == NO_SLOT ? NULL
                                            : message_payload(node_slot(n, j, slot)));
        if (slot == NO_SLOT)
            continue;
        STEP(atomic_store_explicit(&n->lines[j].taken_in, round + 1,
                                   memory_order_release));
        n->list[parts++] = (struct node_frozen){.member = j, .slot = (uint32_t)slot};
    }
    h->initiator = initiator;
    atomic_store_explicit(&n->shared->parts, parts, memory_order_relaxed);
    return parts;
}

static const char *node_part_payload(const struct domain *n, uint32_t k)
{
    CHECK(k < atomic_load_explicit(&n->shared->parts, memory_order_relaxed));
    const struct node_frozen *part = &n->list[k];
    return message_payload(node_slot(n, part->member, (int)part->slot));
}

/* Reduce one chunk in the order of the ranks, whichever member does it. */
static void node_reduce_chunk(struct domain *n, uint64_t round, uint32_t chunk)
{
    INTERLEAVE();
    MOMENT("chunk taken");
    const struct payload *p = &n->shape->payload;
    uint32_t parts = atomic_load_explicit(&n->shared->parts, memory_order_relaxed);
    size_t begin = payload_cut(p, chunk, n->chunks),
           end = payload_cut(p, chunk + 1, n->chunks);
    char *out = (char *)message_payload(node_target(n, round)) + begin;
    const char *sum = node_part_payload(n, 0) + begin;
    int rc = PCOLL_OK;
    if (parts == 1)
        memcpy(out, sum, end - begin);
    for (uint32_t k = 1; k < parts && rc == PCOLL_OK; k++, sum = out)
        rc = payload_reduce_slice(p, out, sum, node_part_payload(n, k) + begin, begin,
                                  end);
    if (rc != PCOLL_OK)
        atomic_store(&n->shared->failure, rc);
    if (!n->fabric)
        return;
    STEP(atomic_store(&n->finished[chunk], round + 1));
    if (STEP(atomic_load(&n->shared->awaited)) &&
        STEP(atomic_exchange(&n->shared->awaited, 0)))
        node_alert(n);
}

void node_note_join(struct domain *n, uint64_t round, const struct round_header *result)
{
    CHECK(result->round == round);
    uint32_t ranks = n->shape->ranks;
    if (round_count(result, ranks, ROUND_JOINED) && round_all_gone(result, ranks))
        STEP(atomic_store(&n->shared->all_joined, round + 1));
}

static void node_count_absences(struct domain *n, const struct round_header *result)
{
    uint32_t ranks = n->shape->ranks;
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t before = atomic_load_explicit(&n->absent[i], memory_order_relaxed);
        uint64_t live = atomic_load_explicit(&n->live[i / 64], memory_order_relaxed);
        uint32_t now = round_absences(before, round_has(result, ranks, ROUND_ACTIVE, i),
                                      live >> i % 64 & 1);
        STEP(atomic_store_explicit(&n->absent[i], now, memory_order_release));
    }
}

/* The result is in the ring: open the next round. */
static void node_complete(struct domain *n, uint64_t round)
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

/* The sum of the domain is ready. Without a fabric it is the result: record what the round changes
 * for the next one, and open that. Uses the sets of the caller's view, which is opened again for
 * the next round. */
static void node_end_reduction(struct domain *n, uint64_t round, enum node_side side)
{
    MOMENT("sum ready");
    if (n->fabric) {
        node_set_control(n, round, NODE_FABRIC);
        return;
    }
    struct round_header *result = node_result(n, round);
    struct node_view *v = &n->view[side];
    uint32_t ranks = n->shape->ranks;
    v->opened = 0;
    if (n->policy.deadline > 0) { /* judged by the live set of this round */
        node_read_view(n, round, v);
        if (!policy_kept(&n->policy, &v->round, result, v->arrived, v->deposited))
            result->flags |= ROUND_BELOW_QUORUM;
    }
    if (n->absent)
        node_count_absences(n, result);
    size_t words = bitset_words(ranks);
    round_live(result, ranks, n->shape->failed, 0, words, v->live);
    for (size_t i = 0; i < words; i++)
        STEP(atomic_store_explicit(&n->live[i], v->live[i], memory_order_release));
    node_note_join(n, round, result);
    node_complete(n, round);
}

/* Take the next chunk of this round. Returns false if there is none, or if the round has
 * changed. */
static bool node_take_chunk(struct domain *n, uint64_t round, uint32_t *chunk)
{
    uint64_t word = STEP(atomic_load(&n->shared->taken));
    do {
        *chunk = (uint32_t)word;
        if (word >> 32 != (uint32_t)round || *chunk >= n->chunks)
            return false;
    } while (!STEP(atomic_compare_exchange_weak(&n->shared->taken, &word, word + 1)));
    if (n->fabric) /* The ring sends the part before this domain's own first, then the one before it. */
        *chunk = (n->first_chunk + n->chunks - 1 - *chunk) % n->chunks;
    return true;
}

/* Take one chunk and reduce it. Sets *ended if it was the last one to be finished. Returns
 * false if there was none to take. */
static bool node_reduce_one(struct domain *n, uint64_t round, bool *ended)
{
    uint32_t chunk;
    if (!node_take_chunk(n, round, &chunk))
        return false;
    node_reduce_chunk(n, round, chunk);
    uint64_t done = STEP(atomic_fetch_add(&n->shared->done, 1)) + 1;
    CHECK(done <= n->chunks);
    *ended = done == n->chunks;
    return true;
}

static void node_set_working(struct domain *n, uint64_t round_plus_1)
{
    atomic_store_explicit(&node_own_line(n)->working, round_plus_1,
                          memory_order_relaxed);
}

/* Reduce chunks until there are none left, as a counted worker. */
static bool node_work(struct domain *n, uint64_t round, enum node_side side)
{
    bool ended = false;
    node_set_working(n, round + 1);
    while (!ended && node_reduce_one(n, round, &ended))
        ;
    node_set_working(n, 0);
    STEP(atomic_fetch_sub(&n->shared->workers, 1));
    if (ended)
        node_end_reduction(n, round, side);
    if (ended && n->fabric)
        node_alert(n);
    return ended;
}

/* Count another worker: at most the application and the driver of each member. Returns the
 * number of workers before. */
static uint32_t node_count_worker(struct domain *n)
{
    uint32_t others = STEP(atomic_fetch_add(&n->shared->workers, 1));
    CHECK(others < NODE_SIDES * n->members);
    return others;
}

bool node_reduce(struct domain *n, uint64_t round, enum node_side side)
{
    CHECK(n->chunks > 1);
    if (node_count_worker(n) < n->hands)
        return node_work(n, round, side);
    /* More workers than cores would only preempt each other. */
    STEP(atomic_fetch_sub(&n->shared->workers, 1));
    return false;
}

/* Close the round, as far as this thread can. Returns false if another member has closed it. */
static bool node_close(struct domain *n, uint64_t round, uint32_t initiator,
                       enum node_side side)
{
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
    bool null = round_is_null(node_target(n, round), n->shape->ranks);
    if (null ||
        (n->fabric && parts == 1)) { /* a single deposit is sent from its slot */
        if (!parts && !n->fabric)
            payload_identity_block(&n->shape->payload,
                                   message_payload(node_result(n, round)));
        node_end_reduction(n, round, side);
    } else if (n->chunks == 1) {
        node_reduce_chunk(n, round, 0);
        node_end_reduction(n, round, side);
    } else {
        STEP(atomic_store(&n->shared->done, 0));
        STEP(atomic_store(&n->shared->taken, round << 32));
        node_set_control(n, round, NODE_REDUCING);
        node_wake_sleepers(n, n->hands - 1); /* they are woken at the end anyway */
        if (!n->fabric) {
            /* The closer is never refused: counted workers may be about to stop. */
            node_count_worker(n);
            node_work(n, round, side);
        }
    }
    return true;
}

void node_busy(struct domain *n, uint64_t *set)
{
    uint64_t control = node_control(n);
    if (node_control_phase(control) == NODE_CLOSING)
        bitset_add(set, n->hooks.placement->member[node_control_who(control)]);
    for (uint32_t j = 0; j < n->members; j++)
        if (node_control_phase(control) == NODE_REDUCING &&
            atomic_load_explicit(&n->lines[j].working, memory_order_relaxed) ==
                node_control_round(control) + 1)
            bitset_add(set, n->hooks.placement->member[j]);
}

/* Reading a result that other members may begin to overwrite: node.h, invariant 5. */

/* Return whether the round that reuses this entry of the ring has begun to close. */
static bool node_overwritten(const struct domain *n, uint64_t round)
{
    uint64_t control = node_control(n), reuse = round + n->ring;
    return node_control_round(control) > reuse ||
           (node_control_round(control) == reuse &&
            node_control_phase(control) != NODE_OPEN);
}

/* Copy out a result and describe it. The header may change meanwhile: the caller then discards
 * both. */
static void node_copy_out(struct domain *n, const struct round_header *h,
                          void *const *buffers, pcoll_round *round, uint64_t *masks)
{
    const struct round_shape *shape = n->shape;
    size_t words = bitset_words(shape->ranks);
    INTERLEAVE();
    if (round_intents_differ(h->intent))
        buffers = NULL;
    if (buffers && round_is_null(h, shape->ranks))
        payload_identity(&shape->payload, buffers);
    else if (buffers)
        payload_unpack(&shape->payload, buffers, message_payload(h));
    INTERLEAVE();
    uint32_t active = round_count(h, shape->ranks, ROUND_ACTIVE);
    INTERLEAVE(); /* between two loads that have to fit together */
    *round = (pcoll_round){
        .index = h->round,
        .active = active,
        .stored = round_count(h, shape->ranks, ROUND_STORED),
        .initiator = h->initiator == ROUND_NOBODY ? -1 : (int32_t)h->initiator,
        .below_quorum = h->flags & ROUND_BELOW_QUORUM,
        .failed = round_count(h, shape->ranks, ROUND_FAILED),
        .differ = round_intents_differ(h->intent),
    };
    if (!masks)
        return;
    bitset_clear(masks, 3 * words);
    round_apply(h, shape->ranks, ROUND_ACTIVE, masks, true);
    round_apply(h, shape->ranks, ROUND_STORED, masks + words, true);
    round_apply(h, shape->ranks, ROUND_FAILED, masks + 2 * words, true);
}

/* A rank with which all have joined no longer announces its join. It clears JOINING before it writes
 * `delivered`: as soon as `delivered` is written, other members may start the next round, and they
 * must not find the bit set. Return whether a round may have waited for this read; the caller then checks whether that
 * round may start. */
static bool node_end_read(struct domain *n, uint64_t before, uint64_t *lost)
{
    struct member *m = &n->member;
    member_read_end(m, lost);
    MOMENT("result read");
    if (m->joined)
        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));
    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));
    uint64_t control = node_control(n);
    return node_control_phase(control) == NODE_OPEN &&
           (m->joined || (m->deliver == PCOLL_DELIVER_ONE &&
                          node_control_round(control) >= before + m->history));
}

int node_deliver(struct domain *n, uint64_t last, uint64_t horizon,
                 void *const *buffers, pcoll_round *round, uint64_t *masks, bool *moved)
{
    struct member *m = &n->member;
    uint64_t index = 0, before = m->delivered;
    bool joined = false;
    for (bool whole = false, again = false; !whole; again = true) {
        uint64_t overwritten = index;
        node_look(n);
        if (!member_read_begin(m, last, horizon, &index))
            return PCOLL_EEMPTY;
        /* A result is overwritten after more rounds are complete than are kept. */
        CHECK(!again || index > overwritten);
        const struct round_header *h = node_result(n, index);
        node_copy_out(n, h, buffers, round, masks);
        joined = m->joining && round_has(h, n->shape->ranks, ROUND_JOINED, m->rank) &&
                 round_all_gone(h, n->shape->ranks);
        fence_after_reads();
        whole = m->deliver == PCOLL_DELIVER_ONE || !node_overwritten(n, index);
    }
    CHECK(index < m->complete);
    CHECK(round->index == index && round->stored <= round->active);
    CHECK(round->initiator < (int32_t)n->shape->ranks);
    if (joined)
        m->joined_in = (int64_t)index;
    *moved = node_end_read(n, before, &round->lost);
    node_look(n);
    round->lag = m->complete - m->delivered;
    round->included = member_included(m, index);
    round->joined = m->joined;
    return PCOLL_OK;
}

/* The driver of a fabric. */

bool node_attention(struct domain *n)
{
    return STEP(atomic_load(&n->shared->attention)) &&
           STEP(atomic_exchange(&n->shared->attention, 0));
}

void node_fabric_arrivals(struct domain *n, uint32_t first_word, uint64_t *arrived,
                          uint64_t *deposited)
{
    node_arrivals(n, node_control_round(node_control(n)), NULL, first_word, arrived,
                  deposited);
}

bool node_fabric_admits(struct domain *n)
{
    return node_admits(n, node_control_round(node_control(n)), NODE_DRIVER);
}

struct round_header *node_fabric_freeze(struct domain *n, uint64_t round)
{
    bool closed = node_close(n, round, ROUND_NOBODY, NODE_DRIVER);
    CHECK(closed);
    if (atomic_load_explicit(&n->shared->parts, memory_order_relaxed) != 1)
        return n->gathered;
    struct round_header *alone = node_slot(n, n->list[0].member, (int)n->list[0].slot);
    round_header_copy(alone, n->gathered, n->shape->ranks);
    return alone;
}

/* Return whether all chunks of these bytes are finished. */
static bool node_is_gathered(const struct domain *n, uint64_t round, size_t begin,
                             size_t end)
{
    const struct payload *p = &n->shape->payload;
    if (node_control_phase(node_control(n)) == NODE_FABRIC)
        return true;
    if (begin == 0 &&
        end == p->bytes) /* the last member still has to end the reduction */
        return false;
    for (uint32_t i = 0; i < n->chunks; i++)
        if (payload_cut(p, i, n->chunks) < end &&
            payload_cut(p, i + 1, n->chunks) > begin &&
            STEP(atomic_load(&n->finished[i])) != round + 1)
            return false;
    return true;
}

bool node_fabric_gather(struct domain *n, uint64_t round, size_t begin, size_t end)
{
    CHECK(node_control_round(node_control(n)) == round);
    while (!node_is_gathered(n, round, begin, end)) {
        bool ended = false;
        node_set_working(n, round + 1);
        bool any = node_reduce_one(n, round, &ended);
        node_set_working(n, 0);
        if (ended)
            node_end_reduction(n, round, NODE_DRIVER);
        if (any)
            continue;
        STEP(atomic_store(&n->shared->awaited, 1));
        return node_is_gathered(n, round, begin, end);
    }
    return true;
}

void node_fabric_publish(struct domain *n, uint64_t round)
{
    const struct round_header *h = node_result(n, round);
    CHECK(node_control_phase(node_control(n)) == NODE_FABRIC && h->round == round);
    if (round_is_null(h, n->shape->ranks) && !round_intents_differ(h->intent))
        payload_identity_block(&n->shape->payload, message_payload(h));
    node_note_join(n, round, h);
    node_complete(n, round);
}

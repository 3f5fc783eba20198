/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When does the open round of a domain without a fabric start, and what does its end
 * change? Everybody can tell: the descriptors say who has come. (With a fabric the
 * vertex decides, see allreduce/starting.h.)
 *
 * met: {round, time} of the moment at which the policy was found met, for linger. The
 * first to find it writes it by swap. One who is late for round t puts {t, …} in a
 * later round's place, or its swap fails: the others see another round's number and
 * write theirs. Time in microseconds. Of the
 * round there is room for 16 bits: one that finds its number written 65536 rounds ago
 * does not linger, once.
 */
#include "../base/clock.h"
#include "node.h"

enum { MET_TIME_BITS = 48 };

static bool is_open(uint64_t control, uint64_t round)
{
    return control_round(control) == round && control_phase(control) == NODE_OPEN;
}

/* What a round asks for, of those who are live in it. */
static void ask(const struct node *n, uint64_t round, const uint32_t *absences,
                struct policy_round *asked)
{
    struct policy_draw draw = {
        .stream = splitmix_mix(n->seed) ^ *n->site.slot, .round = round, .vertices = 1};
    policy_open(&n->policy, &draw, absences, asked);
}

/* Find out what the open round asks for; false if it has begun to close. What was
 * written for it is released before control names it, and what is written for the next
 * one only when it closes. */
static bool open_view(struct node *n, struct node_view *v, uint64_t round)
{
    uint32_t ranks = n->base.shape->ranks;
    if (v->opened == round + 1)
        return true;
    for (size_t i = 0; i < bitset_words(ranks); i++)
        v->live[i] = STEP(atomic_load_explicit(&n->live[i], memory_order_acquire));
    for (uint32_t i = 0; n->absent && i < ranks; i++)
        v->absences[i] =
            STEP(atomic_load_explicit(&n->absent[i], memory_order_acquire));
    if (!is_open(node_control(n), round))
        return false;
    ask(n, round, v->absences, &v->round);
    v->opened = round + 1;
    return true;
}

/* Has the rank read the round with which all had joined? Until then its descriptor may
 * still say that it joins. */
static bool knows_end_of_join(const struct node *n, uint32_t j)
{
    uint64_t joined = STEP(atomic_load(&n->shared->all_joined));
    return !joined || STEP(atomic_load(&n->lines[j].delivered)) >= joined;
}

/* Does the rank announce a join that is not over? It ceases to say so before it says
 * that it has read the round; so what it says counts only if it is read after that. */
static bool announces_join(const struct node *n, uint32_t j, uint64_t word)
{
    return descriptor_joining(word) && knows_end_of_join(n, j) &&
           descriptor_joining(STEP(atomic_load(&n->descriptors[j])));
}

static bool has_arrived(const struct node *n, const struct node_view *v, uint32_t j,
                        uint64_t word)
{
    if (descriptor_arrived(word))
        return true;
    bool goes = descriptor_left(word) || announces_join(n, j, word);
    return goes && bitset_has(v->live, n->site.plane->member[j]);
}

/* A descriptor that has been frozen for this round already means that the round is
 * under way: whoever counts it finds control changed. */
void node_arrivals(struct node *n, struct node_view *v, uint64_t round)
{
    size_t words = bitset_words(n->base.shape->ranks);
    bitset_clear(v->arrived, words);
    bitset_clear(v->deposited, words);
    for (uint32_t j = 0; j < n->members; j++) {
        uint64_t word = STEP(atomic_load(&n->descriptors[j]));
        uint32_t rank = n->site.plane->member[j];
        if (descriptor_rounds(word) != round)
            continue;
        if (has_arrived(n, v, j, word))
            bitset_add(v->arrived, rank);
        if (descriptor_pending(word) != NO_SLOT)
            bitset_add(v->deposited, rank);
    }
}

static bool is_behind(const struct node *n, uint32_t j, uint64_t round)
{
    const struct node_line *line = &n->lines[j];
    if (n->deliver != PCOLL_DELIVER_ONE ||
        round < n->history + STEP(atomic_load(&line->delivered)))
        return false;
    bool away = descriptor_left(STEP(atomic_load(&n->descriptors[j])));
    return !away && !(STEP(atomic_load(&line->flags)) & NODE_RETIRED);
}

/* Nothing comes after the round with which all have joined before each has read it. */
static bool is_unaware(const struct node *n, uint32_t j)
{
    return descriptor_joining(STEP(atomic_load(&n->descriptors[j]))) &&
           !knows_end_of_join(n, j) &&
           !(STEP(atomic_load(&n->lines[j].flags)) & NODE_RETIRED);
}

/* Rounds delivered only grow, so what was admitted stays so; with "one" it is known for
 * as many rounds ahead as the history has. With "all" only the end of a join holds a
 * round back. */
bool node_admits(struct node *n, uint64_t round, enum node_side side)
{
    struct node_view *v = &n->view[side];
    bool joined = STEP(atomic_load(&n->shared->all_joined)) == round;
    bool known = n->deliver != PCOLL_DELIVER_ONE || round < v->admitted;
    if (known && !joined)
        return true;
    uint64_t least = UINT64_MAX;
    for (uint32_t j = 0; j < n->members; j++) {
        if (is_behind(n, j, round) || (joined && is_unaware(n, j)))
            return false;
        uint64_t delivered = STEP(atomic_load(&n->lines[j].delivered));
        least = delivered < least ? delivered : least;
    }
    v->admitted = least + n->history;
    return true;
}

static int64_t now(const struct node *n)
{
    return n->site.now(n->site.arg);
}

static bool passed(const struct node *n, int64_t due, int64_t *alarm)
{
    bool over = now(n) >= due;
    if (!over && due < *alarm)
        *alarm = due;
    return over;
}

/* Since when has the policy been met? */
static int64_t met_since(struct node *n, uint64_t round)
{
    uint64_t const mask = ((uint64_t)1 << MET_TIME_BITS) - 1;
    uint64_t tag = (round + 1) << MET_TIME_BITS;
    uint64_t word = STEP(atomic_load(&n->shared->met));
    while ((word & ~mask) != tag) {
        uint64_t mine = tag | ((uint64_t)(now(n) / 1000) & mask);
        if (STEP(atomic_compare_exchange_strong(&n->shared->met, &word, mine)))
            word = mine;
    }
    return (int64_t)(word & mask) * 1000;
}

/* When the first of those who have arrived did, and who that was. */
static int64_t first_arrival(const struct node *n, const struct node_view *v,
                             uint32_t *first)
{
    int64_t least = INT64_MAX;
    for (uint32_t j = 0; j < n->members; j++) {
        uint32_t rank = n->site.plane->member[j];
        int64_t at = STEP(atomic_load(&n->lines[j].arrived_at));
        if (!bitset_has(v->arrived, rank) || !bitset_has(v->live, rank) || at >= least)
            continue;
        least = at;
        *first = rank;
    }
    return least;
}

/* The lowest rank among those whose arrival can have started the round. */
static uint32_t starter(const struct node *n, const struct node_view *v)
{
    size_t words = bitset_words(n->base.shape->ranks);
    const uint64_t *among = policy_draws(&n->policy) ? v->round.drawn : v->live;
    return bitset_first_common(v->arrived, among, words);
}

/* The round may start: the rank that starts it. */
static bool may_start(struct node *n, struct node_view *v, uint64_t round,
                      int64_t *alarm, uint32_t *initiator)
{
    const pcoll_policy *p = &n->policy;
    struct policy_report report = policy_count(&v->round, v->arrived, v->deposited);
    bool met = policy_met(p, &v->round, &report, n->base.member_set);
    *initiator = starter(n, v);
    if (met && p->linger > 0 && !policy_all_arrived(&v->round, &report))
        met = passed(n, met_since(n, round) + seconds_to_ns(p->linger), alarm);
    if (!met && p->deadline > 0) {
        int64_t first = first_arrival(n, v, initiator);
        met =
            first != INT64_MAX && passed(n, first + seconds_to_ns(p->deadline), alarm);
    }
    return met;
}

bool node_decide(struct node *n, uint64_t round, enum node_side side, int64_t *alarm)
{
    struct node_view *v = &n->view[side];
    uint32_t initiator;
    if (!open_view(n, v, round))
        return true;
    node_arrivals(n, v, round);
    if (!may_start(n, v, round, alarm, &initiator) || !node_admits(n, round, side))
        return control_round(node_control(n)) != round;
    node_close(n, round, initiator);
    return true;
}

static void count_absences(struct node *n, const struct round_header *result)
{
    uint32_t ranks = n->base.shape->ranks;
    const uint64_t *active = round_mask_const(result, ranks, ROUND_ACTIVE);
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t before = atomic_load_explicit(&n->absent[i], memory_order_relaxed);
        uint64_t live = atomic_load_explicit(&n->live[i / 64], memory_order_relaxed);
        bool here = bitset_has(active, i) || !(live >> i % 64 & 1);
        STEP(atomic_store_explicit(&n->absent[i], here ? 0 : before + 1,
                                   memory_order_release));
    }
}

/* Before the live set changes. */
static void judge(struct node *n, uint64_t round, struct round_header *result)
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
    ask(n, round, n->absent ? absences : NULL, &asked);
    if (!policy_kept(&n->policy, &asked, result))
        result->flags |= ROUND_BELOW_QUORUM;
}

void node_account(struct node *n, uint64_t round, struct round_header *result)
{
    uint32_t ranks = n->base.shape->ranks;
    if (n->policy.deadline > 0)
        judge(n, round, result);
    if (n->absent)
        count_absences(n, result);
    uint64_t live[bitset_words(ranks)];
    round_live(result, ranks, live);
    for (size_t i = 0; i < bitset_words(ranks); i++)
        STEP(atomic_store_explicit(&n->live[i], live[i], memory_order_release));
    node_note_join(n, round, result);
}

const uint64_t *node_awaited(struct domain *d)
{
    struct node *n = node_of(d);
    struct node_view *v = &n->view[NODE_DRIVER];
    uint64_t round = control_round(node_control(n));
    return open_view(n, v, round) ? policy_awaited(&n->policy, &v->round) : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When does the open round of a domain without a fabric start? Everybody can tell: the
 * descriptors say who has come, and protocol/round_trigger.h what that means. (With a
 * fabric the endpoint decides, see allreduce/endpoint_trigger.h.)
 *
 * met: {round, time} of the moment at which the policy was found met, for linger. The
 * first to find it writes it by swap. One who is late for round t puts {t, …} in a
 * later round's place, or its swap fails: the others see another round's number and
 * write theirs. Time in microseconds. Of the
 * round there is room for 16 bits: one that finds its number written 65536 rounds ago
 * does not linger, once.
 */
#include "domain/node.h"
#include "base/check.h"

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

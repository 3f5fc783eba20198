/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the policies, the draws, the counts of a coordinator, and the decision when
 * a round starts; see policy.h. */
#include "protocol/policy.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/random.h"

/* Return the number of ranks that a quorum needs, at most the live ones. */
static uint32_t policy_needed(const struct pcoll_policy *policy,
                              const struct policy_round *round)
{
    double share = ceil(policy->fraction * round->ranks * (1 - 1e-12));
    uint32_t count = policy->count ? policy->count : (uint32_t)share;
    count = count ? count : 1;
    return count < round->live_count ? count : round->live_count;
}

/* Return whether the live ranks that are counted are enough, without regard to overdue
 * ranks. */
static bool policy_rule_met(const struct pcoll_policy *policy,
                            const struct policy_round *round,
                            const struct policy_report *report)
{
    switch ((enum pcoll_policy_kind)policy->kind) {
    case PCOLL_SOLO:
        return report->arrived > 0;
    case PCOLL_MAJORITY:
    case PCOLL_FIRST_OF:
        return report->drawn > 0;
    case PCOLL_LAST_OF:
        return round->drawn_count && report->drawn == round->drawn_count;
    case PCOLL_QUORUM:
        return round->live_count && report->arrived >= policy_needed(policy, round);
    case PCOLL_FULL:
        return round->live_count && report->arrived == round->live_count;
    }
    return false;
}

/* The rules, by kind. */
static const struct {
    bool draws;  /* Draws policy.count ranks, or one. */
    bool counts; /* Ranks of several endpoints have to arrive. */
    bool alone;  /* Each endpoint waits for its own members, and the data for all. */
} rules[] = {
    [PCOLL_SOLO] = {.draws = false},
    [PCOLL_MAJORITY] = {.draws = true},
    [PCOLL_FULL] = {.alone = true},
    [PCOLL_QUORUM] = {.counts = true},
    [PCOLL_FIRST_OF] = {.draws = true},
    [PCOLL_LAST_OF] = {.draws = true, .counts = true},
};

int policy_check(const struct pcoll_policy *p, uint32_t ranks)
{
    CHECK(ranks > 0);
    bool fraction = p->kind == PCOLL_QUORUM && !p->count;
    bool count = p->kind == PCOLL_FIRST_OF || p->kind == PCOLL_LAST_OF ||
                 (p->kind == PCOLL_QUORUM && p->count);
    if (p->kind < 0 || p->kind >= (int)(sizeof rules / sizeof *rules))
        return fail(PCOLL_EINVAL, "quorum: unknown policy kind %d", p->kind);
    if (fraction && !(p->fraction > 0 && p->fraction <= 1))
        return fail(PCOLL_EINVAL,
                    "quorum: expected a fraction above 0, at most 1, got %g",
                    p->fraction);
    if (count && (p->count < 1 || p->count > ranks))
        return fail(PCOLL_EINVAL, "quorum: expected 1 to %u ranks, got %u", ranks,
                    p->count);
    if (!(p->linger >= 0 && p->linger <= PCOLL_LONGEST_TIME))
        return fail(PCOLL_EINVAL, "quorum: expected a linger of 0 to %g s, got %g",
                    (double)PCOLL_LONGEST_TIME, p->linger);
    if (!(p->deadline >= 0 && p->deadline <= PCOLL_LONGEST_TIME))
        return fail(PCOLL_EINVAL, "quorum: expected a deadline of 0 to %g s, got %g",
                    (double)PCOLL_LONGEST_TIME, p->deadline);
    return PCOLL_OK;
}

bool policy_starts_alone(const struct pcoll_policy *policy)
{
    CHECK(policy->kind >= 0 && policy->kind < (int)(sizeof rules / sizeof *rules));
    return rules[policy->kind].alone;
}

/* With full, a linger has nothing to wait for, and no rank is ever absent. */
bool policy_coordinated(const struct pcoll_policy *policy)
{
    CHECK(policy->kind >= 0 && policy->kind < (int)(sizeof rules / sizeof *rules));
    return !rules[policy->kind].alone &&
           (rules[policy->kind].counts || policy->linger > 0 || policy->max_staleness);
}

bool policy_activates(const struct pcoll_policy *policy)
{
    CHECK(policy->kind >= 0 && policy->kind < (int)(sizeof rules / sizeof *rules));
    return !rules[policy->kind].alone || policy->deadline > 0;
}

/* Draw the next rank from `first` on that is live and not drawn yet. */
static void policy_draw_from(struct policy_round *round, uint32_t first)
{
    for (uint32_t i = 0; i < round->ranks; i++) {
        uint32_t rank = (first + i) % round->ranks;
        if (bitset_has(round->live, rank) && !bitset_has(round->drawn, rank)) {
            bitset_add(round->drawn, rank);
            return;
        }
    }
}

/* Draw m ranks, uniform among all sets of m (Floyd's algorithm). A rank that is not live
 * is replaced by the next live one. `picked` is room for a set. */
static void policy_draw_ranks(struct policy_round *round, uint64_t stream, uint64_t n,
                              uint32_t m, uint64_t *picked)
{
    bitset_clear(picked, bitset_words(round->ranks));
    for (uint32_t top = round->ranks - m; top < round->ranks; top++) {
        uint32_t rank = splitmix_below(stream, n, top + 1);
        rank = bitset_has(picked, rank) ? top : rank;
        bitset_add(picked, rank);
        stream = splitmix_mix(stream + 1); /* the next draw of this round */
    }
    for (uint32_t rank = 0; rank < round->ranks; rank++)
        if (bitset_has(picked, rank))
            policy_draw_from(round, rank);
}

static void policy_find_overdue(struct policy_round *round, const uint32_t *absences,
                                uint32_t most)
{
    for (uint32_t rank = 0; rank < round->ranks; rank++)
        if (absences[rank] >= most && bitset_has(round->live, rank))
            bitset_add(round->overdue, rank);
}

void policy_open(const struct pcoll_policy *policy, const struct policy_draw *d,
                 const uint32_t *absences, struct policy_round *round)
{
    CHECK(round->ranks > 0 && d->endpoints > 0);
    CHECK(d->endpoints <= round->ranks);
    static uint64_t const coordinators = 0x636f6f7264696e61u; /* another stream */
    uint64_t stream = splitmix_mix(d->seed) ^ d->slot;
    size_t words = bitset_words(round->ranks);
    bitset_clear(round->drawn, words);
    if (rules[policy->kind].draws)
        policy_draw_ranks(round, stream, d->round,
                          policy->kind == PCOLL_MAJORITY ? 1 : policy->count,
                          round->overdue); /* Free until it is filled below. */
    bitset_clear(round->overdue, words);
    if (policy->max_staleness && absences)
        policy_find_overdue(round, absences, policy->max_staleness);
    round->live_count = bitset_count(round->live, words);
    round->drawn_count = bitset_count(round->drawn, words);
    round->overdue_count = bitset_count(round->overdue, words);
    round->coordinator = splitmix_below(stream ^ coordinators, d->round, d->endpoints);
    CHECK(round->coordinator < d->endpoints);
    CHECK(round->drawn_count <= round->live_count);
    CHECK(round->overdue_count <= round->live_count);
}

/* Count 64 ranks. */
static void policy_count_word(const struct policy_round *round, size_t i,
                              uint64_t arrived, uint64_t deposited,
                              struct policy_report *report)
{
    uint64_t came = arrived & round->live[i];
    uint64_t present = came | (deposited & round->live[i]);
    report->arrived += (uint32_t)__builtin_popcountll(came);
    report->drawn += (uint32_t)__builtin_popcountll(came & round->drawn[i]);
    report->overdue += (uint32_t)__builtin_popcountll(present & round->overdue[i]);
}

struct policy_report policy_count(const struct policy_round *round,
                                  const uint64_t *arrived, const uint64_t *deposited)
{
    struct policy_report report = {0};
    for (size_t i = 0; i < bitset_words(round->ranks); i++)
        policy_count_word(round, i, arrived[i], deposited[i], &report);
    CHECK(report.drawn <= report.arrived);
    return report;
}

bool policy_has_timers(const struct pcoll_policy *policy)
{
    CHECK(policy->linger >= 0 && policy->deadline >= 0);
    return policy->linger > 0 || policy->deadline > 0;
}

bool policy_draws(const struct pcoll_policy *policy)
{
    CHECK(policy->kind >= 0 && policy->kind < (int)(sizeof rules / sizeof *rules));
    return rules[policy->kind].draws;
}

struct policy_report policy_relevant(const struct pcoll_policy *policy,
                                     struct policy_report report)
{
    CHECK(report.drawn <= report.arrived);
    if (policy_draws(policy) && !(policy->linger > 0))
        report.arrived = 0;
    return report;
}

/* Return whether all live members have arrived. If no rank is live, no round starts. */
static bool policy_members_arrived(const struct policy_round *round,
                                   const struct policy_report *report,
                                   const uint64_t *members)
{
    uint32_t count = 0;
    for (size_t i = 0; i < bitset_words(round->ranks); i++)
        count += (uint32_t)__builtin_popcountll(members[i] & round->live[i]);
    return round->live_count && report->arrived == count;
}

bool policy_met(const struct pcoll_policy *policy, const struct policy_round *round,
                const struct policy_report *report, const uint64_t *members)
{
    CHECK(report->drawn <= round->drawn_count);
    CHECK(report->overdue <= round->overdue_count);
    CHECK(report->arrived <= round->live_count);
    if (rules[policy->kind].alone)
        return policy_members_arrived(round, report, members);
    return policy_rule_met(policy, round, report) &&
           report->overdue == round->overdue_count;
}

bool policy_all_arrived(const struct policy_round *round,
                        const struct policy_report *report)
{
    CHECK(report->arrived <= round->live_count);
    return report->arrived == round->live_count;
}

bool policy_kept(const struct pcoll_policy *policy, const struct policy_round *round,
                 const struct round_header *header)
{
    CHECK(round->live_count <= round->ranks);
    struct policy_report all = {0};
    const uint64_t *mask[ROUND_MASKS];
    for (int m = 0; m < ROUND_MASKS; m++)
        mask[m] = round_mask_const(header, round->ranks, (enum round_mask)m);
    for (size_t i = 0; i < bitset_words(round->ranks); i++)
        policy_count_word(round, i,
                          (mask[ROUND_ACTIVE][i] & ~mask[ROUND_STORED][i]) |
                              mask[ROUND_JOINED][i] | mask[ROUND_LEFT][i],
                          mask[ROUND_ACTIVE][i], &all);
    return policy_rule_met(policy, round, &all) && all.overdue == round->overdue_count;
}

const uint64_t *policy_awaited(const struct pcoll_policy *policy,
                               const struct policy_round *round)
{
    CHECK(round->drawn_count <= round->live_count);
    return policy_draws(policy) ? round->drawn : NULL;
}

/* The counts of a coordinator. */

void vote_count_init(struct vote_count *count, struct policy_report *of_endpoint,
                     uint32_t endpoints)
{
    CHECK(endpoints || !of_endpoint);
    *count = (struct vote_count){.of_endpoint = of_endpoint, .endpoints = endpoints};
    vote_count_clear(count);
}

bool vote_count_grown(const struct policy_report *now,
                      const struct policy_report *before)
{
    CHECK(now->arrived >= now->drawn || now->arrived == 0);
    return now->arrived > before->arrived || now->drawn > before->drawn ||
           now->overdue > before->overdue;
}

static uint32_t vote_count_raise(uint32_t *mine, uint32_t value)
{
    uint32_t more = value > *mine ? value - *mine : 0;
    *mine += more;
    return more;
}

void vote_count_add(struct vote_count *count, uint32_t endpoint,
                    const struct policy_report *report, uint32_t rank)
{
    CHECK(count->of_endpoint);
    CHECK(endpoint < count->endpoints);
    struct policy_report *of = &count->of_endpoint[endpoint];
    if (vote_count_grown(report, of) && rank != ROUND_NOBODY)
        count->last = rank;
    count->total.arrived += vote_count_raise(&of->arrived, report->arrived);
    count->total.drawn += vote_count_raise(&of->drawn, report->drawn);
    count->total.overdue += vote_count_raise(&of->overdue, report->overdue);
    CHECK(count->total.arrived >= of->arrived && count->total.drawn >= of->drawn);
}

void vote_count_clear(struct vote_count *count)
{
    CHECK(count->of_endpoint || !count->total.arrived);
    if (count->of_endpoint)
        memset(count->of_endpoint, 0, count->endpoints * sizeof *count->of_endpoint);
    count->total = (struct policy_report){0};
    count->last = ROUND_NOBODY;
}

/* When a round starts. */

uint32_t round_trigger_starter(const struct pcoll_policy *policy,
                               const struct policy_round *round,
                               const uint64_t *arrived)
{
    CHECK(policy->kind >= 0);
    const uint64_t *among = policy_draws(policy) ? round->drawn : round->live;
    return bitset_first_common(arrived, among, bitset_words(round->ranks));
}

static int64_t round_trigger_after(int64_t since, double seconds)
{
    return since + (int64_t)(seconds * 1e9);
}

/* Return the decision to start at a time, with this initiator. */
static struct round_trigger round_trigger_at(int64_t due, int64_t now,
                                             uint32_t initiator)
{
    bool over = now >= due;
    return (struct round_trigger){.start = over,
                                  .initiator = initiator,
                                  .met_since = ROUND_NEVER,
                                  .alarm = over ? ROUND_NEVER : due};
}

struct round_trigger round_trigger_evaluate(const struct pcoll_policy *policy,
                                            const struct policy_round *round,
                                            const struct round_state *state)
{
    CHECK(state->report);
    CHECK(state->met_since == ROUND_NEVER || policy->linger > 0);
    if (!policy_met(policy, round, state->report, state->members))
        return (struct round_trigger){.met_since = state->met_since,
                                      .alarm = ROUND_NEVER};
    bool lingers = policy->linger > 0 && !policy_starts_alone(policy);
    if (!lingers || policy_all_arrived(round, state->report))
        return round_trigger_at(state->now, state->now, state->starter);
    int64_t since = state->met_since == ROUND_NEVER ? state->now : state->met_since;
    struct round_trigger t = round_trigger_at(
        round_trigger_after(since, policy->linger), state->now, state->starter);
    t.met_since = since;
    return t;
}

struct round_trigger round_trigger_deadline(const struct pcoll_policy *policy,
                                            const struct round_state *state)
{
    CHECK(policy->deadline >= 0);
    if (!(policy->deadline > 0) || state->first_arrival == ROUND_NEVER)
        return (struct round_trigger){.alarm = ROUND_NEVER};
    return round_trigger_at(round_trigger_after(state->first_arrival, policy->deadline),
                            state->now, state->first);
}

uint32_t round_absences(uint32_t before, bool active, bool live)
{
    CHECK(before < UINT32_MAX);
    return active || !live ? 0 : before + 1;
}

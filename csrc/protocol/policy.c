/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the policies, and the draws. */
#include "protocol/policy.h"

#include <math.h>

#include "base/check.h"
#include "base/error.h"
#include "base/random.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Ranks that a quorum needs: never more than are live. */
static uint32_t needed(const struct pcoll_policy *policy,
                       const struct policy_round *round)
{
    double share = ceil(policy->fraction * round->ranks * (1 - 1e-12));
    uint32_t count = policy->count ? policy->count : (uint32_t)share;
    return smaller(count ? count : 1, round->live_count);
}

static bool any_met(const struct pcoll_policy *policy, const struct policy_round *round,
                    const struct policy_report *report)
{
    (void)policy;
    (void)round;
    return report->arrived > 0;
}

static bool first_met(const struct pcoll_policy *policy,
                      const struct policy_round *round,
                      const struct policy_report *report)
{
    (void)policy;
    (void)round;
    return report->drawn > 0;
}

static bool last_met(const struct pcoll_policy *policy,
                     const struct policy_round *round,
                     const struct policy_report *report)
{
    (void)policy;
    return round->drawn_count && report->drawn == round->drawn_count;
}

static bool quorum_met(const struct pcoll_policy *policy,
                       const struct policy_round *round,
                       const struct policy_report *report)
{
    return round->live_count && report->arrived >= needed(policy, round);
}

static bool full_met(const struct pcoll_policy *policy,
                     const struct policy_round *round,
                     const struct policy_report *report)
{
    (void)policy;
    return round->live_count && report->arrived == round->live_count;
}

/* By kind. */
static const struct {
    bool (*met)(const struct pcoll_policy *, const struct policy_round *,
                const struct policy_report *);
    bool draws;  /* policy.count ranks, or one */
    bool counts; /* ranks of several endpoints have to come */
    bool alone;  /* every endpoint waits for its own members, the data part for all */
} rules[] = {
    [PCOLL_SOLO] = {any_met, .draws = false, .counts = false, .alone = false},
    [PCOLL_MAJORITY] = {first_met, .draws = true, .counts = false, .alone = false},
    [PCOLL_FULL] = {full_met, .draws = false, .counts = false, .alone = true},
    [PCOLL_QUORUM] = {quorum_met, .draws = false, .counts = true, .alone = false},
    [PCOLL_FIRST_OF] = {first_met, .draws = true, .counts = false, .alone = false},
    [PCOLL_LAST_OF] = {last_met, .draws = true, .counts = true, .alone = false},
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

/* Under full a linger has nothing to wait for, and nobody is ever absent. */
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

/* The next rank from `first` on that is live and not drawn yet. */
static void draw_from(struct policy_round *round, uint32_t first)
{
    for (uint32_t i = 0; i < round->ranks; i++) {
        uint32_t rank = (first + i) % round->ranks;
        if (bitset_has(round->live, rank) && !bitset_has(round->drawn, rank)) {
            bitset_add(round->drawn, rank);
            return;
        }
    }
}

/* m of P, uniform among all sets (Floyd's algorithm); one that is not live is replaced
 * by the next live one. */
static void draw(struct policy_round *round, const struct policy_draw *d, uint32_t m)
{
    uint64_t picked[bitset_words(round->ranks)];
    uint64_t stream = d->stream, n = d->round;
    bitset_clear(picked, bitset_words(round->ranks));
    for (uint32_t top = round->ranks - m; top < round->ranks; top++) {
        uint32_t rank = splitmix_below(stream, n, top + 1);
        rank = bitset_has(picked, rank) ? top : rank;
        bitset_add(picked, rank);
        stream = splitmix_mix(stream + 1); /* the next draw of this round */
    }
    for (uint32_t rank = 0; rank < round->ranks; rank++)
        if (bitset_has(picked, rank))
            draw_from(round, rank);
}

static void find_overdue(struct policy_round *round, const uint32_t *absences,
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
    static uint64_t const coordinators = 0x636f6f7264696e61u; /* another stream */
    size_t words = bitset_words(round->ranks);
    bitset_clear(round->drawn, words);
    bitset_clear(round->overdue, words);
    if (rules[policy->kind].draws)
        draw(round, d, policy->kind == PCOLL_MAJORITY ? 1 : policy->count);
    if (policy->max_staleness && absences)
        find_overdue(round, absences, policy->max_staleness);
    round->live_count = bitset_count(round->live, words);
    round->drawn_count = bitset_count(round->drawn, words);
    round->overdue_count = bitset_count(round->overdue, words);
    round->coordinator =
        splitmix_below(d->stream ^ coordinators, d->round, d->endpoints);
    CHECK(round->coordinator < d->endpoints);
    CHECK(round->drawn_count <= round->live_count);
    CHECK(round->overdue_count <= round->live_count);
}

struct policy_report policy_count(const struct policy_round *round,
                                  const uint64_t *arrived, const uint64_t *deposited)
{
    struct policy_report report = {0};
    for (size_t i = 0; i < bitset_words(round->ranks); i++) {
        uint64_t came = arrived[i] & round->live[i];
        uint64_t present = came | (deposited[i] & round->live[i]);
        report.arrived += (uint32_t)__builtin_popcountll(came);
        report.drawn += (uint32_t)__builtin_popcountll(came & round->drawn[i]);
        report.overdue += (uint32_t)__builtin_popcountll(present & round->overdue[i]);
    }
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

/* Members that are not live do not hold a full round up; but nobody starts one when
 * nobody is live. */
static bool members_arrived(const struct policy_round *round,
                            const struct policy_report *report, const uint64_t *members)
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
        return members_arrived(round, report, members);
    return rules[policy->kind].met(policy, round, report) &&
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
    size_t words = bitset_words(round->ranks);
    uint64_t arrived[words];
    const uint64_t *mask[ROUND_MASKS];
    for (int m = 0; m < ROUND_MASKS; m++)
        mask[m] = round_mask_const(header, round->ranks, (enum round_mask)m);
    for (size_t i = 0; i < words; i++)
        arrived[i] = (mask[ROUND_ACTIVE][i] & ~mask[ROUND_STORED][i]) |
                     mask[ROUND_JOINED][i] | mask[ROUND_LEFT][i];
    struct policy_report all = policy_count(round, arrived, mask[ROUND_ACTIVE]);
    return rules[policy->kind].met(policy, round, &all) &&
           all.overdue == round->overdue_count;
}

const uint64_t *policy_awaited(const struct pcoll_policy *policy,
                               const struct policy_round *round)
{
    CHECK(round->drawn_count <= round->live_count);
    return policy_draws(policy) ? round->drawn : NULL;
}

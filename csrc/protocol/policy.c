/* SPDX-License-Identifier: Apache-2.0 */
/* See policy.h. */
#include "protocol/policy.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
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

/* Return whether the ranks that are counted are enough, apart from overdue ones. */
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

enum argument { NO_ARGUMENT, A_COUNT, A_COUNT_OR_FRACTION };

static const struct policy_kind {
    const char *name;
    enum argument argument;
    bool draws;  /* Draws policy.count ranks, or one. */
    bool counts; /* Ranks of several endpoints have to arrive. */
    bool alone;  /* Each endpoint waits for its own members, and the data for all. */
} kinds[] = {
    [PCOLL_SOLO] = {"solo"},
    [PCOLL_MAJORITY] = {"majority", .draws = true},
    [PCOLL_FULL] = {"full", .alone = true},
    [PCOLL_QUORUM] = {"quorum", A_COUNT_OR_FRACTION, .counts = true},
    [PCOLL_FIRST_OF] = {"first_of", A_COUNT, .draws = true},
    [PCOLL_LAST_OF] = {"last_of", A_COUNT, .draws = true, .counts = true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const struct policy_kind *policy_kind_of(const struct pcoll_policy *policy)
{
    CHECK(policy->kind >= 0 && policy->kind < KINDS);
    return &kinds[policy->kind];
}

int policy_check(const struct pcoll_policy *p, uint32_t ranks)
{
    if (p->kind < 0 || p->kind >= KINDS)
        return fail(PCOLL_EINVAL, "quorum: unknown policy kind %d", p->kind);
    bool fraction = kinds[p->kind].argument == A_COUNT_OR_FRACTION && !p->count;
    bool count = kinds[p->kind].argument != NO_ARGUMENT && !fraction;
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
    return policy_kind_of(policy)->alone;
}

/* With full, a linger has nothing to wait for, and no rank is ever absent. */
bool policy_coordinated(const struct pcoll_policy *policy)
{
    const struct policy_kind *kind = policy_kind_of(policy);
    return !kind->alone &&
           (kind->counts || policy->linger > 0 || policy->max_staleness);
}

bool policy_activates(const struct pcoll_policy *policy)
{
    return !policy_kind_of(policy)->alone || policy->deadline > 0;
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
    bitset_clear_sparse(picked, bitset_words(round->ranks));
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

void policy_open(const struct pcoll_policy *policy, const struct policy_draw *d,
                 const uint32_t *absences, struct policy_round *round)
{
    CHECK(d->endpoints > 0 && d->endpoints <= round->ranks);
    static uint64_t const coordinators = 0x636f6f7264696e61u; /* another stream */
    uint64_t stream = splitmix_mix(d->seed) ^ d->slot;
    bitset_clear_sparse(round->drawn, round->words);
    if (policy_kind_of(policy)->draws)
        policy_draw_ranks(round, stream, d->round,
                          policy->kind == PCOLL_MAJORITY ? 1 : policy->count,
                          round->overdue); /* Free until it is filled below. */
    bitset_clear_sparse(round->overdue, round->words);
    for (uint32_t rank = 0; absences && rank < round->ranks; rank++)
        if (policy->max_staleness && absences[rank] >= policy->max_staleness &&
            bitset_has(round->live, rank))
            bitset_add(round->overdue, rank);
    round->drawn_count = bitset_count(round->drawn, round->words);
    round->overdue_count = bitset_count(round->overdue, round->words);
    round->coordinator = splitmix_below(stream ^ coordinators, d->round, d->endpoints);
    CHECK(round->drawn_count <= round->live_count);
    CHECK(round->overdue_count <= round->live_count);
}

struct policy_report policy_count(const struct policy_round *round,
                                  const uint64_t *arrived, const uint64_t *deposited)
{
    struct policy_report report = {0};
    for (size_t i = 0; i < round->words; i++) {
        uint64_t came = arrived[i] & round->live[i];
        uint64_t present = came | (deposited[i] & round->live[i]);
        report.arrived += (uint32_t)__builtin_popcountll(came);
        report.drawn += (uint32_t)__builtin_popcountll(came & round->drawn[i]);
        report.overdue += (uint32_t)__builtin_popcountll(present & round->overdue[i]);
    }
    CHECK(report.drawn <= report.arrived);
    return report;
}

bool policy_takes_all(const struct pcoll_policy *policy)
{
    return policy_kind_of(policy)->draws || policy->max_staleness ||
           policy->deadline > 0;
}

struct policy_report policy_relevant(const struct pcoll_policy *policy,
                                     struct policy_report report)
{
    CHECK(report.drawn <= report.arrived);
    if (policy_kind_of(policy)->draws && !(policy->linger > 0))
        report.arrived = 0;
    return report;
}

bool policy_met(const struct pcoll_policy *policy, const struct policy_round *round,
                const struct policy_report *report)
{
    CHECK(report->drawn <= round->drawn_count);
    CHECK(report->overdue <= round->overdue_count);
    CHECK(report->arrived <= round->live_count);
    if (policy_kind_of(policy)->alone) /* If no rank is live, no round starts. */
        return round->live_count && report->arrived == round->own_count;
    return policy_rule_met(policy, round, report) &&
           report->overdue == round->overdue_count;
}

bool policy_kept(const struct pcoll_policy *policy, const struct policy_round *round,
                 const struct round_header *header, uint64_t *arrived, uint64_t *active)
{
    CHECK(round->live_count <= round->ranks && policy_takes_all(policy));
    round_arrivals(header, round->ranks, arrived, active);
    struct policy_report all = policy_count(round, arrived, active);
    return policy_rule_met(policy, round, &all) && all.overdue == round->overdue_count;
}

const uint64_t *policy_awaited(const struct pcoll_policy *policy,
                               const struct policy_round *round)
{
    return policy_kind_of(policy)->draws ? round->drawn : NULL;
}

/* The counts of a coordinator. */

void vote_count_init(struct vote_count *count, struct policy_report *of_endpoint,
                     uint32_t endpoints)
{
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
    CHECK(count->of_endpoint && endpoint < count->endpoints);
    struct policy_report *of = &count->of_endpoint[endpoint];
    if (vote_count_grown(report, of) && rank != ROUND_NOBODY)
        count->last = rank;
    count->total.arrived += vote_count_raise(&of->arrived, report->arrived);
    count->total.drawn += vote_count_raise(&of->drawn, report->drawn);
    count->total.overdue += vote_count_raise(&of->overdue, report->overdue);
}

void vote_count_clear(struct vote_count *count)
{
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
    const uint64_t *among = policy_kind_of(policy)->draws ? round->drawn : round->live;
    uint32_t first = bitset_first_common(arrived, among, round->words);
    return first == ROUND_NOBODY ? first : first + 64 * round->first_word;
}

/* Return the decision to start `seconds` after the time `since`, with this initiator. */
static struct round_trigger round_trigger_after(int64_t since, double seconds,
                                                int64_t now, uint32_t initiator)
{
    int64_t due = since + (int64_t)(seconds * 1e9);
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
    if (!policy_met(policy, round, state->report))
        return (struct round_trigger){.met_since = state->met_since,
                                      .alarm = ROUND_NEVER};
    bool lingers = policy->linger > 0 && !policy_kind_of(policy)->alone;
    if (!lingers || state->report->arrived == round->live_count)
        return (struct round_trigger){.start = true,
                                      .initiator = state->starter,
                                      .met_since = ROUND_NEVER,
                                      .alarm = ROUND_NEVER};
    int64_t since = state->met_since == ROUND_NEVER ? state->now : state->met_since;
    struct round_trigger t =
        round_trigger_after(since, policy->linger, state->now, state->starter);
    t.met_since = since;
    return t;
}

struct round_trigger round_trigger_deadline(const struct pcoll_policy *policy,
                                            const struct round_state *state)
{
    if (!(policy->deadline > 0) || state->first_arrival == ROUND_NEVER)
        return (struct round_trigger){.alarm = ROUND_NEVER};
    return round_trigger_after(state->first_arrival, policy->deadline, state->now,
                               state->first);
}

uint32_t round_absences(uint32_t before, bool active, bool live)
{
    CHECK(before < UINT32_MAX);
    return active || !live ? 0 : before + 1;
}

/*
 * The text form of a policy:
 *
 *   policy    = name [":" number] {"," modifier}
 *   name      = "solo" | "majority" | "full" | "quorum" | "first_of" | "last_of"
 *   modifier  = "linger=" time | "deadline=" time | "max_staleness=" rounds
 *   time      = number ("ns" | "us" | "ms" | "s"), seconds without a unit
 *
 * quorum takes a number of ranks (6) or a fraction (0.75, 1.0); first_of and last_of a number.
 */

static const struct {
    const char *unit;
    double
        per_second; /* The quotient is exact; a product would not be: 50us is 5e-5 s. */
} units[] = {{"ns", 1e9}, {"us", 1e6}, {"ms", 1e3}, {"s", 1}, {"", 1}};
enum { UNITS = sizeof units / sizeof *units };

/* The whole text, and the place where it is read. */
struct parser {
    const char *text, *at;
};

static int policy_text_fail(const struct parser *p, const char *expected)
{
    return fail(PCOLL_EINVAL, "quorum: expected %s%s, got \"%.100s\"", expected,
                p->at == p->text ? "" : " in the text of a policy", p->at);
}

/* Skip this word, if it is next and one of `ends` or the end of the text follows; "": anything. */
static bool policy_text_take(struct parser *p, const char *word, const char *ends)
{
    size_t length = strlen(word);
    if (strncmp(p->at, word, length) || (*ends && !strchr(ends, p->at[length])))
        return false;
    p->at += length;
    return true;
}

/* Read a decimal number. Return its length; 0: there is none. */
static size_t policy_text_number(const struct parser *p, double *value)
{
    char *end;
    if (!isdigit((unsigned char)*p->at) && *p->at != '.')
        return 0; /* strtod accepts signs, blanks, "nan" and more. */
    if (p->at[0] == '0' && (p->at[1] | 0x20) == 'x')
        return 0;
    *value = decimal_parse(p->at, &end);
    return isfinite(*value) ? (size_t)(end - p->at) : 0;
}

static int policy_text_parse_count(struct parser *p, const char *expected,
                                   uint32_t *count)
{
    double value;
    size_t length = policy_text_number(p, &value);
    if (!length || length != strspn(p->at, "0123456789") || value < 1 ||
        value > UINT32_MAX)
        return policy_text_fail(p, expected);
    *count = (uint32_t)value;
    p->at += length;
    return PCOLL_OK;
}

static int policy_text_parse_quorum(struct parser *p, pcoll_policy *policy)
{
    double value;
    size_t length = policy_text_number(p, &value);
    if (length <= strspn(p->at, "0123456789"))
        return policy_text_parse_count(
            p, "a number of ranks (from 1) or a fraction (0.75)", &policy->count);
    if (!(value > 0 && value <= 1))
        return policy_text_fail(p, "a fraction above 0, at most 1");
    policy->fraction = value;
    p->at += length;
    return PCOLL_OK;
}

static int policy_text_parse_time(struct parser *p, double *seconds)
{
    char expected[100];
    struct parser unit = *p;
    size_t length = policy_text_number(p, seconds);
    unit.at += length;
    for (int i = 0; length && i < UNITS; i++) {
        if (!policy_text_take(&unit, units[i].unit, ","))
            continue;
        *seconds /= units[i].per_second;
        if (!(*seconds > 0 && *seconds <= PCOLL_LONGEST_TIME))
            break;
        *p = unit;
        return PCOLL_OK;
    }
    snprintf(expected, sizeof expected,
             "a time above 0 and up to %g s, in ns, us, ms or s", PCOLL_LONGEST_TIME);
    return policy_text_fail(p, expected);
}

static int policy_text_parse_modifier(struct parser *p, pcoll_policy *policy)
{
    if (!policy->linger && policy_text_take(p, "linger=", ""))
        return policy_text_parse_time(p, &policy->linger);
    if (!policy->deadline && policy_text_take(p, "deadline=", ""))
        return policy_text_parse_time(p, &policy->deadline);
    if (!policy->max_staleness && policy_text_take(p, "max_staleness=", ""))
        return policy_text_parse_count(p, "a number of rounds (from 1)",
                                       &policy->max_staleness);
    return policy_text_fail(p,
                            "linger=, deadline= or max_staleness=, each at most once");
}

static int policy_text_parse_kind(struct parser *p, pcoll_policy *policy)
{
    int kind = 0;
    while (kind < KINDS && !policy_text_take(p, kinds[kind].name, ":,"))
        kind++;
    if (kind == KINDS)
        return policy_text_fail(p, "\"solo\", \"majority\", \"quorum:Q\", "
                                   "\"first_of:m\", \"last_of:m\" or \"full\"");
    bool given = policy_text_take(p, ":", "");
    policy->kind = kind;
    if (given != (kinds[kind].argument != NO_ARGUMENT))
        return policy_text_fail(p, given ? "no number after this name"
                                         : "\":\" and a number after this name");
    if (kinds[kind].argument == A_COUNT)
        return policy_text_parse_count(p, "a number of ranks (from 1)", &policy->count);
    return given ? policy_text_parse_quorum(p, policy) : PCOLL_OK;
}

int pcoll_policy_parse(const char *text, pcoll_policy *policy)
{
    pcoll_policy parsed = {0};
    struct parser p = {text, text};
    int rc = fail_if_null(text, policy) ?: policy_text_parse_kind(&p, &parsed);
    while (rc == PCOLL_OK && policy_text_take(&p, ",", ""))
        rc = policy_text_parse_modifier(&p, &parsed);
    if (rc == PCOLL_OK && *p.at)
        rc = policy_text_fail(&p, "\",\" or the end");
    if (rc == PCOLL_OK)
        *policy = parsed;
    return rc;
}

enum { NUMBER_LENGTH = 32 };

/* Write the shortest text that means exactly this number. */
static void policy_text_shortest(double value, char text[NUMBER_LENGTH])
{
    if (value == floor(value) && value < 1e9) {
        snprintf(text, NUMBER_LENGTH, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        decimal_print(text, NUMBER_LENGTH, digits, value);
        if (decimal_parse(text, NULL) == value)
            return;
    }
}

/* Write a time in the unit in which it is shortest and exact. */
static void policy_text_print_time(struct text *out, const char *name, double seconds)
{
    char best[NUMBER_LENGTH] = "", text[NUMBER_LENGTH], whole[NUMBER_LENGTH + 2];
    for (int i = UNITS - 2; i >= 0; i--) {
        policy_text_shortest(seconds * units[i].per_second, text);
        if (decimal_parse(text, NULL) / units[i].per_second != seconds)
            continue;
        snprintf(whole, sizeof whole, "%s%s", text, units[i].unit);
        if (!*best || strlen(whole) < strlen(best))
            memcpy(best, whole, sizeof best);
    }
    if (seconds > 0)
        text_add(out, ",%s=%s", name, best);
}

int pcoll_policy_format(const pcoll_policy *policy, char *text, uint64_t capacity)
{
    char number[NUMBER_LENGTH], all[256]; /* The longest text has 130 characters. */
    struct text out = {.at = all, .left = sizeof all};
    int rc = fail_if_null(policy, text);
    if (rc != PCOLL_OK)
        return rc;
    if (policy->kind < 0 || policy->kind >= KINDS)
        return fail(PCOLL_EINVAL, "quorum: unknown policy kind %d", policy->kind);
    text_add(&out, "%s", kinds[policy->kind].name);
    if (kinds[policy->kind].argument != NO_ARGUMENT && policy->count)
        text_add(&out, ":%u", policy->count);
    else if (kinds[policy->kind].argument != NO_ARGUMENT) {
        policy_text_shortest(policy->fraction, number);
        text_add(&out, ":%s%s", number, strpbrk(number, ".e") ? "" : ".0");
    }
    policy_text_print_time(&out, "linger", policy->linger);
    policy_text_print_time(&out, "deadline", policy->deadline);
    if (policy->max_staleness)
        text_add(&out, ",max_staleness=%u", policy->max_staleness);
    if ((uint64_t)(out.at - all) >= capacity)
        return fail(PCOLL_EINVAL, "no room for the text of a policy");
    memcpy(text, all, (size_t)(out.at - all) + 1);
    return PCOLL_OK;
}

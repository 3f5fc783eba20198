/* SPDX-License-Identifier: Apache-2.0 */
/* See endpoint_trigger.h. */
#include "allreduce/endpoint_trigger.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "allreduce/control.h"

/* What the current round asks for; found out when it is first needed. */
static const struct policy_round *demand(struct endpoint *v)
{
    struct endpoint_trigger *s = &v->trigger;
    if (!s->open) {
        struct round_draw draw = {.seed = v->seed,
                                  .slot = v->base.slot,
                                  .round = v->engine.current,
                                  .endpoints = v->placement.domains};
        round_trigger_open(&v->policy, &draw, s->absences, &s->round);
        s->open = true;
    }
    return &s->round;
}

static struct vote_count *votes_of(struct endpoint *v, uint64_t round)
{
    return &v->trigger.votes[round % 2];
}

static int tell_coordinator(struct endpoint *v, const struct policy_report *report,
                            uint32_t rank)
{
    CHECK(v->trigger.open && v->trigger.reports_sent);
    struct endpoint_trigger *s = &v->trigger;
    uint32_t coordinator = s->round.coordinator;
    if (coordinator == v->placement.index) {
        vote_count_add(votes_of(v, v->engine.current), coordinator, report, rank);
        return PCOLL_OK;
    }
    if (!vote_count_grown(report, &s->sent))
        return PCOLL_OK;
    MOMENT("reporting");
    struct transport *t = v->communicator->transport;
    struct control message = {.handle = v->base.slot,
                              .kind = CONTROL_REPORT,
                              .round = v->engine.current,
                              .value = {(uint64_t)report->arrived << 32 | report->drawn,
                                        (uint64_t)report->overdue << 32 | rank}};
    s->sent = *report;
    s->reports_sent[coordinator]++;
    return t->ops->control(t, v->placement.leader[coordinator], &message);
}

void endpoint_trigger_take(struct endpoint *v, const struct control_message *m)
{
    struct endpoint_trigger *s = &v->trigger;
    uint64_t current = v->engine.current;
    CHECK(s->votes[0].endpoints == v->placement.domains && m->round <= current + 1);
    s->reports_received++;
    if (m->round >= current)
        vote_count_add(votes_of(v, m->round), m->endpoint, &m->report, m->starter);
}

bool endpoint_trigger_reports_missing(const struct endpoint *v)
{
    const struct endpoint_trigger *s = &v->trigger;
    return s->reports_sent && s->reports_received < s->reports_sent[v->placement.index];
}

/* The decision is to start, or to look again. */
static bool follow(struct endpoint *v, const struct round_trigger *t)
{
    if (t->start)
        v->initiator = t->initiator;
    else if (t->alarm != ROUND_NEVER)
        communicator_alarm(v->communicator, &v->base, t->alarm);
    return t->start;
}

/* Who has come; the first of all, and when. */
static void note_arrivals(struct endpoint *v)
{
    struct endpoint_trigger *s = &v->trigger;
    size_t words = bitset_words(v->shape.ranks);
    bitset_clear(s->arrived, words);
    bitset_clear(s->deposited, words);
    v->domain->ops->arrivals(v->domain, s->arrived, s->deposited);
    if (!(v->policy.deadline > 0) || s->first_arrival != ROUND_NEVER)
        return;
    uint32_t rank = bitset_first_common(s->arrived, v->live, words);
    if (rank == ROUND_NOBODY)
        return;
    s->first_arrival = communicator_now(v->communicator);
    s->first = rank;
}

/* What is decided of this endpoint's own report, or of all. */
static struct round_state state_of(const struct endpoint *v,
                                   const struct policy_report *report, uint32_t starter)
{
    const struct endpoint_trigger *s = &v->trigger;
    bool timers = policy_has_timers(&v->policy);
    return (struct round_state){.report = report,
                                .starter = starter,
                                .first = s->first,
                                .first_arrival = s->first_arrival,
                                .met_since = s->met,
                                .now = timers ? communicator_now(v->communicator) : 0};
}

/* No more have come than the round has, which is known only when it is open. */
static int check_votes(const struct endpoint *v, const struct policy_report *total)
{
    const struct policy_round *r = &v->trigger.round;
    return total->arrived <= r->live_count && total->drawn <= r->drawn_count &&
                   total->overdue <= r->overdue_count
               ? PCOLL_OK
               : fail(PCOLL_EPROTOCOL,
                      "%u ranks are reported to have come to round %llu, of %u",
                      total->arrived, (unsigned long long)v->engine.current,
                      r->live_count);
}

static int coordinator_starts(struct endpoint *v, bool *start)
{
    CHECK(v->trigger.open);
    struct endpoint_trigger *s = &v->trigger;
    const struct vote_count *votes = votes_of(v, v->engine.current);
    int rc = check_votes(v, &votes->total);
    if (rc != PCOLL_OK)
        return rc;
    struct round_state state = state_of(v, &votes->total, votes->last);
    struct round_trigger t = round_trigger_evaluate(&v->policy, &s->round, &state);
    s->met = t.met_since;
    *start = follow(v, &t);
    return PCOLL_OK;
}

static bool starts_alone(struct endpoint *v, const struct policy_report *report,
                         uint32_t starter)
{
    struct round_state state = state_of(v, report, starter);
    state.members = v->domain->member_set;
    struct round_trigger t =
        round_trigger_evaluate(&v->policy, &v->trigger.round, &state);
    return follow(v, &t);
}

int endpoint_trigger_evaluate(struct endpoint *v, bool *start)
{
    struct endpoint_trigger *s = &v->trigger;
    const struct policy_round *round = demand(v);
    note_arrivals(v);
    struct policy_report report = policy_count(round, s->arrived, s->deposited);
    uint32_t starter = round_trigger_starter(&v->policy, round, s->arrived);
    if (!policy_coordinated(&v->policy)) {
        *start = starts_alone(v, &report, starter);
        return PCOLL_OK;
    }
    report = policy_relevant(&v->policy, report);
    int rc = tell_coordinator(v, &report, starter);
    *start = false;
    return rc == PCOLL_OK && round->coordinator == v->placement.index
               ? coordinator_starts(v, start)
               : rc;
}

/* Of a round that is active the others know already who has started it. */
bool endpoint_trigger_deadline(struct endpoint *v)
{
    if (!(v->policy.deadline > 0))
        return false;
    uint32_t initiator = v->initiator;
    struct round_state state = state_of(v, NULL, ROUND_NOBODY);
    struct round_trigger t = round_trigger_deadline(&v->policy, &state);
    bool over = follow(v, &t);
    if (v->frozen)
        v->initiator = initiator;
    return over;
}

static void count_absences(struct endpoint *v, const struct round_header *result)
{
    const uint64_t *active = round_mask_const(result, v->shape.ranks, ROUND_ACTIVE);
    uint32_t *absences = v->trigger.absences;
    for (uint32_t i = 0; i < v->shape.ranks; i++)
        absences[i] =
            round_absences(absences[i], bitset_has(active, i), bitset_has(v->live, i));
}

void endpoint_trigger_finish(struct endpoint *v, struct round_header *result)
{
    CHECK(v->frozen || !v->drives);
    struct endpoint_trigger *s = &v->trigger;
    if (v->policy.deadline > 0 && !policy_kept(&v->policy, demand(v), result))
        result->flags |= ROUND_BELOW_QUORUM;
    if (s->absences)
        count_absences(v, result);
    vote_count_clear(votes_of(v, v->engine.current));
    s->sent = (struct policy_report){0};
    s->first_arrival = s->met = ROUND_NEVER;
    s->open = false;
}

const uint64_t *endpoint_trigger_awaited(struct endpoint *v)
{
    return policy_awaited(&v->policy, demand(v));
}

static size_t votes_bytes(uint32_t endpoints)
{
    return endpoints * sizeof(struct policy_report);
}

size_t endpoint_trigger_bytes(const pcoll_policy *policy, uint32_t ranks,
                              uint32_t endpoints)
{
    size_t bytes = 4 * bitset_words(ranks) * sizeof(uint64_t);
    if (policy_coordinated(policy))
        bytes += 2 * votes_bytes(endpoints) + endpoints * sizeof(uint64_t);
    return bytes + (policy->max_staleness ? ranks * sizeof(uint32_t) : 0);
}

static bool allocate_votes(struct endpoint *v, uint32_t endpoints)
{
    struct endpoint_trigger *s = &v->trigger;
    s->reports_sent = calloc(endpoints, sizeof *s->reports_sent);
    bool enough = s->reports_sent;
    for (int i = 0; i < 2; i++) {
        vote_count_init(&s->votes[i], calloc(1, votes_bytes(endpoints)), endpoints);
        enough = enough && s->votes[i].of_endpoint;
    }
    return enough;
}

static int allocate(struct endpoint *v, uint32_t ranks, uint32_t endpoints)
{
    struct endpoint_trigger *s = &v->trigger;
    size_t words = bitset_words(ranks);
    s->arrived = calloc(words, sizeof *s->arrived);
    s->deposited = calloc(words, sizeof *s->deposited);
    s->round.drawn = calloc(words, sizeof *s->round.drawn);
    s->round.overdue = calloc(words, sizeof *s->round.overdue);
    bool enough = s->arrived && s->deposited && s->round.drawn && s->round.overdue;
    if (v->policy.max_staleness)
        enough = enough && (s->absences = calloc(ranks, sizeof *s->absences));
    if (policy_coordinated(&v->policy))
        enough = allocate_votes(v, endpoints) && enough;
    return enough ? PCOLL_OK
                  : fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a handle",
                         endpoint_trigger_bytes(&v->policy, ranks, endpoints));
}

int endpoint_trigger_init(struct endpoint *v)
{
    struct endpoint_trigger *s = &v->trigger;
    *s = (struct endpoint_trigger){.first_arrival = ROUND_NEVER, .met = ROUND_NEVER};
    s->round.ranks = v->shape.ranks;
    s->round.live = v->live;
    for (int i = 0; i < 2; i++)
        vote_count_init(&s->votes[i], NULL, 0);
    int rc = policy_check(&v->policy, v->shape.ranks);
    if (rc != PCOLL_OK)
        return rc;
    return allocate(v, v->shape.ranks, v->placement.domains);
}

void endpoint_trigger_destroy(struct endpoint *v)
{
    struct endpoint_trigger *s = &v->trigger;
    for (int i = 0; i < 2; i++)
        free(s->votes[i].of_endpoint);
    free(s->reports_sent);
    free(s->absences);
    free(s->round.overdue);
    free(s->round.drawn);
    free(s->deposited);
    free(s->arrived);
}

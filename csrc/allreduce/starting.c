/* SPDX-License-Identifier: Apache-2.0 */
/* See starting.h. */
#include "starting.h"

#include <stdlib.h>

#include "../base/clock.h"
#include "../base/error.h"
#include "../base/splitmix.h"
#include "vertex.h"

static int64_t const NEVER = -1;

/* What the current round asks for; found out when it is first needed. */
static const struct policy_round *demand(struct vertex *v)
{
    struct starting *s = &v->starting;
    if (!s->open) {
        struct policy_draw draw = {.stream = splitmix_mix(v->seed) ^ v->base.slot,
                                   .round = v->engine.current,
                                   .vertices = v->plane.domains};
        policy_open(&v->policy, &draw, s->absences, &s->round);
        s->open = true;
    }
    return &s->round;
}

static bool grown(const struct policy_report *now, const struct policy_report *before)
{
    return now->arrived > before->arrived || now->drawn > before->drawn ||
           now->overdue > before->overdue;
}

static uint32_t grow(uint32_t *mine, uint32_t value)
{
    uint32_t more = value > *mine ? value - *mine : 0;
    *mine += more;
    return more;
}

/* `rank` is one that may have started the round, or ROUND_NOBODY. */
static void add(struct tally *t, uint32_t vertex, const struct policy_report *report,
                uint32_t rank)
{
    struct policy_report *of = &t->of_vertex[vertex];
    if (grown(report, of) && rank != ROUND_NOBODY)
        t->last = rank;
    t->total.arrived += grow(&of->arrived, report->arrived);
    t->total.drawn += grow(&of->drawn, report->drawn);
    t->total.overdue += grow(&of->overdue, report->overdue);
}

static int tell_coordinator(struct vertex *v, const struct policy_report *report,
                            uint32_t rank)
{
    struct starting *s = &v->starting;
    struct transport *t = v->context->transport;
    if (s->round.coordinator == v->plane.index) {
        add(&s->tally[v->engine.current % 2], v->plane.index, report, rank);
        return PCOLL_OK;
    }
    if (!grown(report, &s->sent))
        return PCOLL_OK;
    struct control message = {.handle = v->base.slot,
                              .kind = CONTROL_TOKEN,
                              .round = v->engine.current,
                              .value = {(uint64_t)report->arrived << 32 | report->drawn,
                                        (uint64_t)report->overdue << 32 | rank}};
    s->sent = *report;
    s->tokens_sent[s->round.coordinator]++;
    return t->ops->control(t, v->plane.leader[s->round.coordinator], &message);
}

int starting_take(struct vertex *v, uint32_t vertex, const struct control *message)
{
    struct starting *s = &v->starting;
    uint64_t current = v->engine.current;
    struct policy_report report = {.arrived = (uint32_t)(message->value[0] >> 32),
                                   .drawn = (uint32_t)message->value[0],
                                   .overdue = (uint32_t)(message->value[1] >> 32)};
    if (!s->tokens_sent || message->round > current + 1)
        return fail(PCOLL_EPROTOCOL, "rank %u reports for round %llu in round %llu",
                    v->plane.leader[vertex], (unsigned long long)message->round,
                    (unsigned long long)current);
    s->tokens_received++;
    if (message->round >= current)
        add(&s->tally[message->round % 2], vertex, &report,
            (uint32_t)message->value[1]);
    return vertex_run(v);
}

/* Is it so long since *since? Begins to count when first asked. */
static bool passed(struct vertex *v, int64_t *since, double seconds)
{
    int64_t now = context_now(v->context);
    if (*since == NEVER)
        *since = now;
    int64_t due = *since + seconds_to_ns(seconds);
    if (now < due)
        context_alarm(v->context, &v->base, due);
    return now >= due;
}

/* The coordinator: is the policy met, and has everybody had the time to come? */
static bool coordinator_starts(struct vertex *v)
{
    struct starting *s = &v->starting;
    const struct tally *t = &s->tally[v->engine.current % 2];
    if (!policy_met(&v->policy, &s->round, &t->total, NULL))
        return false;
    v->initiator = t->last;
    return !(v->policy.linger > 0) || policy_all_arrived(&s->round, &t->total) ||
           passed(v, &s->met, v->policy.linger);
}

int starting_look(struct vertex *v, bool *start)
{
    struct starting *s = &v->starting;
    const struct policy_round *round = demand(v);
    size_t words = bitset_words(v->shape.ranks);
    bitset_clear(s->arrived, words);
    bitset_clear(s->deposited, words);
    v->domain->ops->arrivals(v->domain, s->arrived, s->deposited);
    struct policy_report report = policy_count(round, s->arrived, s->deposited);
    uint32_t rank = bitset_first_common(s->arrived, v->live, words);
    uint32_t starter = policy_draws(&v->policy)
                           ? bitset_first_common(s->arrived, round->drawn, words)
                           : rank;
    *start = false;
    if (rank != ROUND_NOBODY && s->first_arrival == NEVER) {
        s->first_arrival = context_now(v->context);
        s->first_rank = rank;
    }
    if (policy_coordinated(&v->policy)) {
        report = policy_relevant(&v->policy, report);
        int rc = tell_coordinator(v, &report, starter);
        if (rc != PCOLL_OK)
            return rc;
        *start = round->coordinator == v->plane.index && coordinator_starts(v);
    } else if (policy_met(&v->policy, round, &report, v->domain->member_set)) {
        *start = true;
        v->initiator = starter;
    }
    return PCOLL_OK;
}

bool starting_deadline_over(struct vertex *v)
{
    struct starting *s = &v->starting;
    if (!(v->policy.deadline > 0) || s->first_arrival == NEVER ||
        !passed(v, &s->first_arrival, v->policy.deadline))
        return false;
    if (!v->frozen)
        v->initiator = s->first_rank;
    return true;
}

static void count_absences(struct vertex *v, const struct round_header *result)
{
    const uint64_t *active = round_mask_const(result, v->shape.ranks, ROUND_ACTIVE);
    for (uint32_t i = 0; i < v->shape.ranks; i++)
        v->starting.absences[i] = bitset_has(active, i) || !bitset_has(v->live, i)
                                      ? 0
                                      : v->starting.absences[i] + 1;
}

void starting_finish(struct vertex *v, struct round_header *result)
{
    struct starting *s = &v->starting;
    struct tally *t = &s->tally[v->engine.current % 2];
    if (v->policy.deadline > 0 && !policy_kept(&v->policy, demand(v), result))
        result->flags |= ROUND_BELOW_QUORUM;
    if (s->absences)
        count_absences(v, result);
    if (t->of_vertex)
        memset(t->of_vertex, 0, v->plane.domains * sizeof *t->of_vertex);
    t->total = s->sent = (struct policy_report){0};
    t->last = ROUND_NOBODY;
    s->first_arrival = s->met = NEVER;
    s->open = false;
}

const uint64_t *starting_awaited(struct vertex *v)
{
    return policy_awaited(&v->policy, demand(v));
}

static size_t tally_bytes(uint32_t vertices)
{
    return vertices * sizeof(struct policy_report);
}

size_t starting_bytes(const pcoll_policy *policy, uint32_t ranks, uint32_t vertices)
{
    size_t bytes = 4 * bitset_words(ranks) * sizeof(uint64_t);
    if (policy_coordinated(policy))
        bytes += 2 * tally_bytes(vertices) + vertices * sizeof(uint64_t);
    return bytes + (policy->max_staleness ? ranks * sizeof(uint32_t) : 0);
}

static int allocate(struct vertex *v, uint32_t ranks, uint32_t vertices)
{
    struct starting *s = &v->starting;
    size_t words = bitset_words(ranks);
    bool coordinated = policy_coordinated(&v->policy);
    s->arrived = calloc(words, sizeof *s->arrived);
    s->deposited = calloc(words, sizeof *s->deposited);
    s->round.drawn = calloc(words, sizeof *s->round.drawn);
    s->round.overdue = calloc(words, sizeof *s->round.overdue);
    bool enough = s->arrived && s->deposited && s->round.drawn && s->round.overdue;
    if (v->policy.max_staleness)
        enough = enough && (s->absences = calloc(ranks, sizeof *s->absences));
    if (coordinated)
        enough = enough && (s->tokens_sent = calloc(vertices, sizeof *s->tokens_sent));
    for (int i = 0; i < 2 && coordinated && enough; i++)
        enough = (s->tally[i].of_vertex = calloc(1, tally_bytes(vertices)));
    return enough ? PCOLL_OK
                  : fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a handle",
                         starting_bytes(&v->policy, ranks, vertices));
}

int starting_init(struct vertex *v)
{
    struct starting *s = &v->starting;
    *s = (struct starting){.first_arrival = NEVER, .met = NEVER};
    s->round.ranks = v->shape.ranks;
    s->round.live = v->live;
    for (int i = 0; i < 2; i++)
        s->tally[i].last = ROUND_NOBODY;
    int rc = policy_check(&v->policy, v->shape.ranks);
    if (rc != PCOLL_OK)
        return rc;
    return allocate(v, v->shape.ranks, v->plane.domains);
}

void starting_destroy(struct vertex *v)
{
    struct starting *s = &v->starting;
    for (int i = 0; i < 2; i++)
        free(s->tally[i].of_vertex);
    free(s->tokens_sent);
    free(s->absences);
    free(s->round.overdue);
    free(s->round.drawn);
    free(s->deposited);
    free(s->arrived);
}

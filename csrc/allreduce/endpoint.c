/* SPDX-License-Identifier: Apache-2.0 */
/* One handle on one domain; see endpoint.h. */
#include "allreduce/endpoint.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/communicator.h"
#include "allreduce/control.h"
#include "allreduce/staging.h"

/* What the current round asks for; found out when it is first needed. */
static const struct policy_round *endpoint_trigger_open(struct endpoint *v)
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

static struct vote_count *endpoint_trigger_votes(struct endpoint *v, uint64_t round)
{
    return &v->trigger.votes[round % 2];
}

static int endpoint_trigger_report(struct endpoint *v,
                                   const struct policy_report *report, uint32_t rank)
{
    CHECK(v->trigger.open && v->trigger.reports_sent);
    struct endpoint_trigger *s = &v->trigger;
    uint32_t coordinator = s->round.coordinator;
    if (coordinator == v->placement.index) {
        vote_count_add(endpoint_trigger_votes(v, v->engine.current), coordinator,
                       report, rank);
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
        vote_count_add(endpoint_trigger_votes(v, m->round), m->endpoint, &m->report,
                       m->starter);
}

bool endpoint_trigger_reports_missing(const struct endpoint *v)
{
    const struct endpoint_trigger *s = &v->trigger;
    return s->reports_sent && s->reports_received < s->reports_sent[v->placement.index];
}

/* The decision is to start, or to look again. */
static bool endpoint_trigger_follow(struct endpoint *v, const struct round_trigger *t)
{
    if (t->start)
        v->initiator = t->initiator;
    else if (t->alarm != ROUND_NEVER)
        communicator_alarm(v->communicator, &v->base, t->alarm);
    return t->start;
}

/* Who has come; the first of all, and when. */
static void endpoint_trigger_note_arrivals(struct endpoint *v)
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
static struct round_state endpoint_trigger_state(const struct endpoint *v,
                                                 const struct policy_report *report,
                                                 uint32_t starter)
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
static int endpoint_trigger_check_votes(const struct endpoint *v,
                                        const struct policy_report *total)
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

static int endpoint_trigger_coordinate(struct endpoint *v, bool *start)
{
    CHECK(v->trigger.open);
    struct endpoint_trigger *s = &v->trigger;
    const struct vote_count *votes = endpoint_trigger_votes(v, v->engine.current);
    int rc = endpoint_trigger_check_votes(v, &votes->total);
    if (rc != PCOLL_OK)
        return rc;
    struct round_state state = endpoint_trigger_state(v, &votes->total, votes->last);
    struct round_trigger t = round_trigger_evaluate(&v->policy, &s->round, &state);
    s->met = t.met_since;
    *start = endpoint_trigger_follow(v, &t);
    return PCOLL_OK;
}

static bool endpoint_trigger_alone(struct endpoint *v,
                                   const struct policy_report *report, uint32_t starter)
{
    struct round_state state = endpoint_trigger_state(v, report, starter);
    state.members = v->domain->member_set;
    struct round_trigger t =
        round_trigger_evaluate(&v->policy, &v->trigger.round, &state);
    return endpoint_trigger_follow(v, &t);
}

int endpoint_trigger_evaluate(struct endpoint *v, bool *start)
{
    struct endpoint_trigger *s = &v->trigger;
    const struct policy_round *round = endpoint_trigger_open(v);
    endpoint_trigger_note_arrivals(v);
    struct policy_report report = policy_count(round, s->arrived, s->deposited);
    uint32_t starter = round_trigger_starter(&v->policy, round, s->arrived);
    if (!policy_coordinated(&v->policy)) {
        *start = endpoint_trigger_alone(v, &report, starter);
        return PCOLL_OK;
    }
    report = policy_relevant(&v->policy, report);
    int rc = endpoint_trigger_report(v, &report, starter);
    *start = false;
    return rc == PCOLL_OK && round->coordinator == v->placement.index
               ? endpoint_trigger_coordinate(v, start)
               : rc;
}

/* Of a round that is active the others know already who has started it. */
bool endpoint_trigger_deadline(struct endpoint *v)
{
    if (!(v->policy.deadline > 0))
        return false;
    uint32_t initiator = v->initiator;
    struct round_state state = endpoint_trigger_state(v, NULL, ROUND_NOBODY);
    struct round_trigger t = round_trigger_deadline(&v->policy, &state);
    bool over = endpoint_trigger_follow(v, &t);
    if (v->frozen)
        v->initiator = initiator;
    return over;
}

static void endpoint_trigger_count_absences(struct endpoint *v,
                                            const struct round_header *result)
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
    if (v->policy.deadline > 0 &&
        !policy_kept(&v->policy, endpoint_trigger_open(v), result))
        result->flags |= ROUND_BELOW_QUORUM;
    if (s->absences)
        endpoint_trigger_count_absences(v, result);
    vote_count_clear(endpoint_trigger_votes(v, v->engine.current));
    s->sent = (struct policy_report){0};
    s->first_arrival = s->met = ROUND_NEVER;
    s->open = false;
}

const uint64_t *endpoint_trigger_awaited(struct endpoint *v)
{
    return policy_awaited(&v->policy, endpoint_trigger_open(v));
}

static size_t endpoint_trigger_votes_bytes(uint32_t endpoints)
{
    return endpoints * sizeof(struct policy_report);
}

size_t endpoint_trigger_bytes(const pcoll_policy *policy, uint32_t ranks,
                              uint32_t endpoints)
{
    size_t bytes = 4 * bitset_words(ranks) * sizeof(uint64_t);
    if (policy_coordinated(policy))
        bytes +=
            2 * endpoint_trigger_votes_bytes(endpoints) + endpoints * sizeof(uint64_t);
    return bytes + (policy->max_staleness ? ranks * sizeof(uint32_t) : 0);
}

static bool endpoint_trigger_allocate_votes(struct endpoint *v, uint32_t endpoints)
{
    struct endpoint_trigger *s = &v->trigger;
    s->reports_sent = calloc(endpoints, sizeof *s->reports_sent);
    bool enough = s->reports_sent;
    for (int i = 0; i < 2; i++) {
        vote_count_init(&s->votes[i],
                        calloc(1, endpoint_trigger_votes_bytes(endpoints)), endpoints);
        enough = enough && s->votes[i].of_endpoint;
    }
    return enough;
}

static int endpoint_trigger_allocate(struct endpoint *v, uint32_t ranks,
                                     uint32_t endpoints)
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
        enough = endpoint_trigger_allocate_votes(v, endpoints) && enough;
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
    return endpoint_trigger_allocate(v, v->shape.ranks, v->placement.domains);
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

/* The end of an endpoint, step by step; see endpoint.h. */

static int endpoint_agree_to_close(struct endpoint *v, uint64_t *values, int count,
                                   enum agree_op op)
{
    v->closing_agreement = (struct agreement){
        .values = values, .count = count, .op = op, .object = &v->base};
    return communicator_agree(v->communicator, &v->closing_agreement);
}

/* The current round, for which others may have been activated: its deposits are frozen, or not
 * added up yet. */
static bool endpoint_has_begun(const struct endpoint *v)
{
    return v->frozen;
}

static int endpoint_closed(struct endpoint *v)
{
    atomic_store(&v->closing, CLOSED);
    return communicator_closed(v->communicator, &v->base);
}

/* All rounds are over here, and nothing can come any more. */
static int endpoint_drained(struct endpoint *v)
{
    CHECK(atomic_load(&v->closing) == DRAINING);
    CHECK(!endpoint_has_begun(v));
    if (!v->confirms)
        return endpoint_closed(v);
    MOMENT("drained");
    atomic_store(&v->closing, CONFIRMING);
    return endpoint_agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
}

/* The last message on every edge goes out when all rounds are over. Who does not drive
 * has no edges. */
int endpoint_drain(struct endpoint *v)
{
    CHECK(atomic_load(&v->closing) >= DRAINING);
    const struct placement *p = &v->placement;
    if (atomic_load(&v->closing) > DRAINING)
        return PCOLL_OK;
    if (!v->drives)
        return endpoint_drained(v);
    if (!v->last_sent) {
        v->last_sent = true;
        for (int k = 0; k < v->activation.edges; k++) {
            uint32_t peer = (p->index + ((uint32_t)1 << k)) % p->domains;
            int rc = control_send(v, p->leader[peer], CONTROL_LAST, k);
            if (rc != PCOLL_OK)
                return rc;
        }
    }
    uint32_t all = ((uint32_t)1 << v->activation.edges) - 1;
    CHECK(!(v->last_received & ~all));
    if (v->last_received != all || endpoint_trigger_reports_missing(v))
        return PCOLL_OK;
    return endpoint_drained(v);
}

/* The rounds that all have agreed on. No round is complete anywhere without this rank, so
 * that nobody has begun two more than it. */
static int endpoint_check_rounds(const struct endpoint *v)
{
    uint64_t begun = v->engine.current + endpoint_has_begun(v);
    if (!v->drives || v->closing_rounds - begun <= 1)
        return PCOLL_OK;
    return fail(PCOLL_EPROTOCOL,
                "the ranks close after %llu rounds, and this one is in %llu",
                (unsigned long long)v->closing_rounds, (unsigned long long)begun);
}

/* Next step of closing, if the agreement of the last one is over. */
int endpoint_continue_closing(struct endpoint *v)
{
    int closing = atomic_load(&v->closing);
    bool agreeing =
        (closing >= ENTERING && closing <= REPORTS) || closing == CONFIRMING;
    if (!agreeing || !atomic_load(&v->closing_agreement.done))
        return PCOLL_OK;
    if (closing == CONFIRMING)
        MOMENT("confirmed");
    if (closing == CONFIRMING)
        return endpoint_closed(v);
    MOMENT(closing == ENTERING ? "closing entered" : "closing counted");
    atomic_store(&v->closing, closing + 1);
    if (closing == ENTERING) {
        v->closing_rounds = v->drives ? v->engine.current + endpoint_has_begun(v) : 0;
        return endpoint_agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
    }
    int rc = closing == COUNTING ? endpoint_check_rounds(v) : PCOLL_OK;
    if (closing == REPORTS || rc != PCOLL_OK)
        return rc;
    if (v->trigger.reports_sent)
        return endpoint_agree_to_close(v, v->trigger.reports_sent,
                                       (int)v->placement.domains, AGREE_SUM);
    atomic_store(&v->closing, DRAINING);
    return PCOLL_OK;
}

int endpoint_enter_closing(struct endpoint *v)
{
    CHECK(atomic_load(&v->closing) == QUEUED);
    MOMENT("closing begun");
    atomic_store(&v->closing, ENTERING);
    v->closing_rounds = 0; /* nothing to agree on yet: a barrier */
    return endpoint_agree_to_close(v, &v->closing_rounds, 1, AGREE_MAX);
}

static struct endpoint *endpoint_of(struct object *p)
{
    return (struct endpoint *)p;
}

static uint32_t endpoint_tag(const struct endpoint *v, int edge)
{
    return v->base.slot * DATA_EDGES + (uint32_t)edge;
}

static uint64_t endpoint_cookie(const struct endpoint *v, int op)
{
    return object_cookie(&v->base, op);
}

/* Events come before or after an activation; this one saw those that it counted. */
static void endpoint_note_round(struct endpoint *v)
{
    struct member m;
    v->domain->ops->snapshot(v->domain, &m);
    event_log_note(v->event_log, LOGGED_ROUND, m.frozen_events);
}

static bool endpoint_replay_admits(struct endpoint *v)
{
    struct member m;
    if (!v->event_log)
        return true;
    v->domain->ops->snapshot(v->domain, &m);
    return event_log_admit_round(v->event_log, v->engine.current, m.events);
}

static void endpoint_freeze(struct endpoint *v)
{
    struct domain *d = v->domain;
    uint64_t round = v->engine.current;
    struct round_header *contribution = d->ops->freeze(d, round);
    CHECK(!v->frozen && contribution->round == round);
    contribution->initiator = v->initiator;
    data_begin(&v->data, contribution, d->ops->result(d, round));
    if (v->event_log)
        endpoint_note_round(v);
    v->frozen = true;
    MOMENT("frozen");
    if (v->communicator->progress)
        progress_round(v->communicator->progress, 1);
}

/* False while other members are adding this part up: the domain calls us when they have.
 */
static bool endpoint_is_gathered(struct endpoint *v, const struct op *op)
{
    struct domain *d = v->domain;
    const struct payload *p = &v->shape.payload;
    const struct slice *s = &op->slice;
    return !d->ops->gather ||
           d->ops->gather(d, v->engine.current,
                          s->of ? payload_cut(p, s->begin, s->of) : 0,
                          s->of ? payload_cut(p, s->end, s->of) : p->bytes);
}

/* The first one of a round freezes the deposits. */
static int endpoint_gather(struct endpoint *v, const struct op *op, bool *finished)
{
    if (!v->frozen)
        endpoint_freeze(v);
    *finished = endpoint_is_gathered(v, op);
    v->gathering += !*finished;
    return PCOLL_OK;
}

/* Carry an operation out, or begin to. *finished: it needs no event to be complete. */
static int endpoint_issue(struct endpoint *v, int id, bool *finished)
{
    const struct op *op = &v->sched->ops[id];
    struct transport *t = v->communicator->transport;
    struct message m;
    struct native_call call;
    *finished = true;
    switch (op->kind) {
    case OP_SEND:
        if (op->class == OP_CONTROL)
            MOMENT("activating");
        if (op->class == OP_CONTROL)
            return control_send(v, (uint32_t)op->peer, CONTROL_ACTIVATE, op->edge);
        *finished = false;
        MOMENT("sending");
        m = data_outgoing(&v->data, op);
        return t->ops->send(t, (uint32_t)op->peer, endpoint_tag(v, op->edge), m.at,
                            m.bytes, endpoint_cookie(v, id));
    case OP_RECV:
        *finished = false;
        m = data_incoming(&v->data, op);
        return t->ops->recv(t, (uint32_t)op->peer, endpoint_tag(v, op->edge), m.at,
                            m.bytes, endpoint_cookie(v, id));
    case OP_REDUCE:
        MOMENT("reducing");
        return data_reduce(&v->data, op);
    case OP_COPY:
        if (op->a == BUFFER_DEPOSIT)
            return endpoint_gather(v, op, finished);
        data_copy(&v->data, op);
        return PCOLL_OK;
    case OP_NATIVE:
        *finished = false;
        call = data_native(&v->data, op);
        return t->ops->native(t, v->channel, &call, endpoint_cookie(v, id));
    case OP_NOP:
    case OP_TIMER:
        break;
    }
    return fail(PCOLL_EPROTOCOL, "operation %d (%s) cannot be executed here", id,
                op->label);
}

const uint64_t *endpoint_awaited(struct endpoint *v)
{
    return v->frozen ? NULL : endpoint_trigger_awaited(v);
}

/* Start the current round, if it is time to. */
static int endpoint_start_round(struct endpoint *v)
{
    struct engine *e = &v->engine;
    struct activation *a = &v->activation;
    int closing = atomic_load(&v->closing);
    bool start = closing == DRAINING && e->current < v->closing_rounds;
    int rc = PCOLL_OK;
    bool idle = engine_state(e, e->current, a->active) == OP_WAITING &&
                engine_state(e, e->current, a->start) == OP_WAITING;
    if (idle && closing <= ENTERING)
        rc = endpoint_trigger_evaluate(v, &start);
    if (idle && start)
        engine_complete(e, e->current, a->start);
    bool forced = engine_state(e, e->current, a->force) != OP_WAITING;
    if (rc == PCOLL_OK && !forced && (idle || a->force != a->start) &&
        closing <= ENTERING && endpoint_trigger_deadline(v))
        engine_complete(e, e->current, a->force);
    return rc;
}

static void endpoint_finish_round(struct endpoint *v)
{
    CHECK(v->drives && engine_over(&v->engine) && !v->gathering);
    struct round_header *result = v->domain->ops->result(v->domain, v->engine.current);
    MOMENT("round over");
    endpoint_trigger_finish(v, result);
    round_live(result, v->shape.ranks, v->live);
    CHECK(v->frozen && result->round == v->engine.current);
    v->domain->ops->publish(v->domain, v->engine.current);
    MOMENT("round published");
    v->frozen = false;
    v->initiator = ROUND_NOBODY;
    engine_advance(&v->engine);
    if (v->communicator->progress) {
        progress_round(v->communicator->progress, -1);
        progress_wake_waiters(v->communicator->progress);
    }
}

static int endpoint_run_operations(struct endpoint *v)
{
    for (int op; (op = engine_next(&v->engine)) >= 0;) {
        bool finished;
        int rc = endpoint_issue(v, op, &finished);
        if (rc != PCOLL_OK)
            return rc;
        if (finished)
            engine_complete(&v->engine, v->engine.current, op);
    }
    return PCOLL_OK;
}

static void endpoint_release(struct endpoint *v)
{
    bool closing = atomic_load(&v->closing) != OPEN; /* a replay is over */
    if (!v->engine.released && v->domain->ops->admits(v->domain) &&
        (closing || endpoint_replay_admits(v)))
        engine_release(&v->engine);
}

/* Complete the operations whose part of the sum the members have reduced by now. */
static void endpoint_poll_gathering(struct endpoint *v)
{
    uint64_t round = v->engine.current;
    for (uint32_t i = 0; v->gathering && i < v->sched->count; i++) {
        const struct op *op = &v->sched->ops[i];
        if (op->kind != OP_COPY || op->a != BUFFER_DEPOSIT ||
            engine_state(&v->engine, round, (int)i) != OP_RUNNING ||
            !endpoint_is_gathered(v, op))
            continue;
        v->gathering--;
        engine_complete(&v->engine, round, (int)i);
    }
}

/* Rounds are driven in shared memory, by whoever is there, or by another rank: help
 * when a timer asks for it. */
static int endpoint_run_member(struct endpoint *v)
{
    int closing = atomic_load(&v->closing);
    int64_t alarm = INT64_MAX;
    if (closing <= ENTERING)
        v->domain->ops->help(v->domain, true, &alarm);
    if (alarm != INT64_MAX)
        communicator_alarm(v->communicator, &v->base, alarm);
    return closing == DRAINING ? endpoint_drain(v) : PCOLL_OK;
}

/* A deposit of this rank waits for its copy from a device: make it, or look again. */
static void endpoint_drive_staging(struct endpoint *v)
{
    bool made;
    enum deposit_outcome outcome;
    if (!staging_try(v->staging, v->domain, &made, &outcome)) {
        communicator_alarm(v->communicator, &v->base, staging_next_look(v->staging));
        v->base.in_vain = true;
    } else if (made)
        endpoint_poll(v, true);
    else
        progress_wake_waiters(v->communicator->progress); /* it has failed */
}

/* No round follows that this rank takes part in, whatever has come for one. */
static bool endpoint_has_ended(const struct endpoint *v)
{
    return atomic_load(&v->closing) >= REPORTS &&
           v->engine.current >= v->closing_rounds;
}

int endpoint_run(struct endpoint *v)
{
    struct engine *e = &v->engine;
    if (!staging_arrived(v->staging) && atomic_load(&v->closing) == OPEN)
        endpoint_drive_staging(v);
    int closed = endpoint_continue_closing(v);
    if (closed != PCOLL_OK)
        return closed;
    if (!v->drives)
        return endpoint_run_member(v);
    endpoint_poll_gathering(v);
    while (!endpoint_has_ended(v)) {
        endpoint_release(v);
        if (!e->released)
            return PCOLL_OK;
        int rc = endpoint_start_round(v);
        if (rc == PCOLL_OK)
            rc = endpoint_run_operations(v);
        if (rc != PCOLL_OK)
            return rc;
        if (!engine_over(e))
            break;
        endpoint_finish_round(v);
    }
    return endpoint_has_ended(v) && atomic_load(&v->closing) == DRAINING
               ? endpoint_drain(v)
               : PCOLL_OK;
}

static int endpoint_object_run(struct object *p)
{
    return endpoint_run(endpoint_of(p));
}

static int endpoint_object_done(struct object *p, int op, size_t bytes)
{
    struct endpoint *v = endpoint_of(p);
    const struct op *o = &v->sched->ops[op];
    int rc = PCOLL_OK;
    if (o->kind == OP_RECV)
        rc = data_received(&v->data, o, bytes, v->engine.current);
    else if (o->kind == OP_NATIVE)
        rc = data_native_over(&v->data, o);
    if (rc != PCOLL_OK)
        return rc;
    engine_complete(&v->engine, v->engine.current, op);
    return endpoint_run(v);
}

/* Who has taken part in counting the rounds begins none beyond them. */
static int endpoint_take_activation(struct endpoint *v, const struct control_message *m)
{
    bool beyond = atomic_load(&v->closing) >= REPORTS && m->round >= v->closing_rounds;
    if (beyond || engine_complete(&v->engine, m->round, v->activation.from[m->edge]) ==
                      ENGINE_IMPOSSIBLE)
        return fail(PCOLL_EPROTOCOL, "rank %u activates round %llu in round %llu",
                    m->source, (unsigned long long)m->round,
                    (unsigned long long)v->engine.current);
    return endpoint_run(v);
}

static int endpoint_take_last(struct endpoint *v, const struct control_message *m)
{
    uint32_t edge = (uint32_t)1 << m->edge;
    if (v->last_received & edge)
        return fail(PCOLL_EPROTOCOL, "rank %u ended twice", m->source);
    v->last_received |= edge;
    return endpoint_run(v);
}

static int endpoint_object_control(struct object *p, uint32_t source,
                                   const struct control *message)
{
    struct endpoint *v = endpoint_of(p);
    struct control_message m;
    int rc = control_decode(v, source, message, &m);
    if (rc != PCOLL_OK)
        return rc;
    switch (m.kind) {
    case CONTROL_ACTIVATE:
        return endpoint_take_activation(v, &m);
    case CONTROL_LAST:
        return endpoint_take_last(v, &m);
    case CONTROL_REPORT:
        endpoint_trigger_take(v, &m);
        return endpoint_run(v);
    case CONTROL_ASK:
        return stall_answer_send(v, source);
    case CONTROL_ANSWER:
        stall_answer_take(v, m.rank, &m.answer);
        break;
    }
    return PCOLL_OK;
}

static int endpoint_object_begin_close(struct object *p)
{
    struct endpoint *v = endpoint_of(p);
    int rc = endpoint_run(v);
    return rc == PCOLL_OK ? endpoint_enter_closing(v) : rc;
}

static bool endpoint_object_attention(struct object *p)
{
    struct domain *d = endpoint_of(p)->domain;
    return d->ops->attention(d);
}

const struct object_ops endpoint_ops = {
    .run = endpoint_object_run,
    .done = endpoint_object_done,
    .control = endpoint_object_control,
    .begin_close = endpoint_object_begin_close,
    .attention = endpoint_object_attention,
};

void endpoint_help(struct endpoint *v)
{
    CHECK(v->domain->ops->help);
    int64_t alarm;
    v->domain->ops->help(v->domain, false, &alarm);
    if (alarm == INT64_MAX || alarm == v->told)
        return;
    v->told = alarm;
    communicator_notify(v->communicator, &v->base);
}

int endpoint_poll(struct endpoint *v, bool driver)
{
    struct domain *d = v->domain;
    int64_t alarm = INT64_MAX;
    if (d->ops->help && v->placement.domains == 1)
        d->ops->help(d, driver, &alarm);
    else if (d->ops->alert)
        d->ops->alert(d);
    if (!driver)
        v->told = alarm;
    if (!d->ops->help || alarm != INT64_MAX)
        communicator_notify(v->communicator, &v->base);
    return PCOLL_OK;
}

/* A stored deposit starts nothing, but a round may wait for one of an overdue rank. */
void endpoint_deposited(struct endpoint *v, enum deposit_outcome outcome)
{
    CHECK(outcome <= DEPOSIT_DROPPED);
    if (outcome == DEPOSIT_ARRIVED || v->event_log ||
        (outcome == DEPOSIT_STORED && v->policy.max_staleness))
        endpoint_poll(v, false);
}

int endpoint_close(struct endpoint *v)
{
    if (atomic_load(&v->closing) != OPEN)
        return PCOLL_OK;
    atomic_store(&v->closing, QUEUED);
    v->domain->ops->retire(v->domain);
    int rc = endpoint_poll(v, true);
    return rc == PCOLL_OK ? communicator_close(v->communicator, &v->base) : rc;
}

/* What the operations of an allreduce cost, for GOAL: a round to which all contribute.
 */

struct pricing {
    const struct endpoint *v;
    double ns_per_byte;
};

/* Data and control messages between two ranks have edges of their own: in GOAL they
 * share the tags, data on even ones. */
static struct goal_cost endpoint_goal_cost(const void *arg, int id)
{
    const struct pricing *pricing = arg;
    const struct op *op = &pricing->v->sched->ops[id];
    bool control = op->class == OP_CONTROL;
    size_t bytes = data_message_bytes(&pricing->v->data, op);
    bool moves = op->kind == OP_REDUCE || op->kind == OP_COPY;
    return (struct goal_cost){
        .bytes = control ? sizeof(struct control) : bytes,
        .tag = op->edge < 0 ? 0 : 2 * (uint32_t)op->edge + control,
        .time = moves ? (uint64_t)((double)bytes * pricing->ns_per_byte) : 0};
}

char *endpoint_goal(const struct endpoint *v, double ns_per_byte)
{
    struct pricing pricing = {.v = v, .ns_per_byte = ns_per_byte};
    return sched_goal(v->sched, v->communicator->transport->rank, endpoint_goal_cost,
                      &pricing);
}

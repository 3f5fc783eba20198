/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a round, the closing, and the rounds of an endpoint; see endpoint.h. */
#include "allreduce/endpoint.h"

#include <stdlib.h>

#include "allreduce/control.h"
#include "allreduce/staging.h"

/* The start of a round. */

/* Return the requirements of the current round, computed at the first call. */
static const struct policy_round *endpoint_trigger_open(struct endpoint *endpoint)
{
    struct endpoint_trigger *s = &endpoint->trigger;
    if (!s->open) {
        struct policy_draw draw = {.seed = endpoint->options.seed,
                                   .slot = endpoint->base.slot,
                                   .round = endpoint->engine.current,
                                   .endpoints = endpoint->placement.domains};
        policy_open(&endpoint->options.policy, &draw, s->absences, &s->round);
        s->open = true;
    }
    return &s->round;
}

static struct vote_count *endpoint_trigger_votes(struct endpoint *endpoint,
                                                 uint64_t round)
{
    return &endpoint->trigger.votes[round % 2];
}

static int endpoint_trigger_report(struct endpoint *endpoint,
                                   const struct policy_report *report, uint32_t rank)
{
    CHECK(endpoint->trigger.open && endpoint->trigger.reports_sent);
    struct endpoint_trigger *s = &endpoint->trigger;
    uint32_t coordinator = s->round.coordinator;
    if (coordinator == endpoint->placement.index) {
        vote_count_add(endpoint_trigger_votes(endpoint, endpoint->engine.current),
                       coordinator, report, rank);
        return PCOLL_OK;
    }
    if (!vote_count_grown(report, &s->sent))
        return PCOLL_OK;
    MOMENT("reporting");
    struct transport *t = endpoint->communicator->transport;
    struct control message = {.handle = endpoint->base.slot,
                              .kind = CONTROL_REPORT,
                              .round = endpoint->engine.current,
                              .value = {(uint64_t)report->arrived << 32 | report->drawn,
                                        (uint64_t)report->overdue << 32 | rank}};
    s->sent = *report;
    s->reports_sent[coordinator]++;
    return t->ops->control(t, placement_leader(&endpoint->placement, coordinator),
                           &message);
}

/* Count a report for the current round or the next one. Drop a report for an earlier round. */
static void endpoint_trigger_take(struct endpoint *endpoint,
                                  const struct control_message *m)
{
    struct endpoint_trigger *s = &endpoint->trigger;
    uint64_t current = endpoint->engine.current;
    CHECK(s->votes[0].endpoints == endpoint->placement.domains &&
          m->round <= current + 1);
    s->reports_received++;
    if (m->round >= current)
        vote_count_add(endpoint_trigger_votes(endpoint, m->round), m->endpoint,
                       &m->report, m->starter);
}

/* Return whether to start. If not, set an alarm for the next evaluation. */
static bool endpoint_trigger_follow(struct endpoint *endpoint,
                                    const struct round_trigger *t)
{
    if (t->start)
        endpoint->initiator = t->initiator;
    else if (t->alarm != ROUND_NEVER)
        communicator_alarm(endpoint->communicator, &endpoint->base, t->alarm);
    return t->start;
}

/* Note which members have arrived, and the first arrival of all. */
static void endpoint_trigger_note_arrivals(struct endpoint *endpoint)
{
    struct endpoint_trigger *s = &endpoint->trigger;
    bitset_clear(s->arrived, s->round.words);
    bitset_clear(s->deposited, s->round.words);
    node_fabric_arrivals(endpoint->domain, s->round.first_word, s->arrived,
                         s->deposited);
    if (!(endpoint->options.policy.deadline > 0) || s->first_arrival != ROUND_NEVER)
        return;
    CHECK(!s->round.first_word); /* A deadline needs the sets of all ranks. */
    uint32_t rank = bitset_first_common(s->arrived, s->live, s->round.words);
    if (rank == ROUND_NOBODY)
        return;
    s->first_arrival = communicator_now(endpoint->communicator);
    s->first = rank;
}

/* Return the state that the policy is evaluated on: for the report of this endpoint, or for the
 * sum of all reports. */
static struct round_state endpoint_trigger_state(const struct endpoint *endpoint,
                                                 const struct policy_report *report,
                                                 uint32_t starter)
{
    const struct endpoint_trigger *s = &endpoint->trigger;
    bool timers = policy_has_timers(&endpoint->options.policy);
    return (struct round_state){.report = report,
                                .starter = starter,
                                .first = s->first,
                                .first_arrival = s->first_arrival,
                                .met_since = s->met,
                                .now = timers ? communicator_now(endpoint->communicator)
                                              : 0};
}

/* Decide whether to start the current round, which is released and not active. Set the initiator,
 * report to the coordinator, set an alarm, as needed. The coordinator refuses a sum of reports above
 * the limits, which are known only once the round is open. */
static int endpoint_trigger_evaluate(struct endpoint *endpoint, bool *start)
{
    struct endpoint_trigger *s = &endpoint->trigger;
    const struct policy_round *r = endpoint_trigger_open(endpoint);
    endpoint_trigger_note_arrivals(endpoint);
    struct policy_report report = policy_count(r, s->arrived, s->deposited);
    uint32_t starter = round_trigger_starter(&endpoint->options.policy, r, s->arrived);
    *start = false;
    if (policy_coordinated(&endpoint->options.policy)) {
        report = policy_relevant(&endpoint->options.policy, report);
        int rc = endpoint_trigger_report(endpoint, &report, starter);
        if (rc != PCOLL_OK || r->coordinator != endpoint->placement.index)
            return rc;
        const struct vote_count *votes =
            endpoint_trigger_votes(endpoint, endpoint->engine.current);
        report = votes->total;
        starter = votes->last;
    }
    if (report.arrived > r->live_count || report.drawn > r->drawn_count ||
        report.overdue > r->overdue_count)
        return fail(
            PCOLL_EPROTOCOL,
            "the reports for round %llu count %u arrived, %u drawn and %u overdue "
            "ranks, expected at most %u, %u and %u",
            (unsigned long long)endpoint->engine.current, report.arrived, report.drawn,
            report.overdue, r->live_count, r->drawn_count, r->overdue_count);
    struct round_state state = endpoint_trigger_state(endpoint, &report, starter);
    struct round_trigger t =
        round_trigger_evaluate(&endpoint->options.policy, r, &state);
    s->met = t.met_since;
    *start = endpoint_trigger_follow(endpoint, &t);
    return PCOLL_OK;
}

/* Return whether the deadline of the current round has passed for the ranks that have arrived
 * here. If not, set an alarm. The initiator of an active round is known to other ranks: keep it. */
static bool endpoint_trigger_deadline(struct endpoint *endpoint)
{
    if (!(endpoint->options.policy.deadline > 0))
        return false;
    uint32_t initiator = endpoint->initiator;
    struct round_state state = endpoint_trigger_state(endpoint, NULL, ROUND_NOBODY);
    struct round_trigger t = round_trigger_deadline(&endpoint->options.policy, &state);
    bool over = endpoint_trigger_follow(endpoint, &t);
    if (endpoint->frozen)
        endpoint->initiator = initiator;
    return over;
}

/* The current round is over, with this header: mark it if the policy was not kept, count absences,
 * and find out who is live in the next round. */
static void endpoint_trigger_finish(struct endpoint *endpoint,
                                    struct round_header *result)
{
    CHECK(endpoint->frozen || !endpoint->drives);
    struct endpoint_trigger *s = &endpoint->trigger;
    if (endpoint->options.policy.deadline > 0 &&
        !policy_kept(&endpoint->options.policy, endpoint_trigger_open(endpoint), result,
                     s->arrived, s->deposited))
        result->flags |= ROUND_BELOW_QUORUM;
    uint32_t ranks = endpoint->shape.ranks;
    for (uint32_t i = 0; s->absences && i < ranks; i++)
        s->absences[i] =
            round_absences(s->absences[i], round_has(result, ranks, ROUND_ACTIVE, i),
                           bitset_has(s->live, i));
    vote_count_clear(endpoint_trigger_votes(endpoint, endpoint->engine.current));
    s->sent = (struct policy_report){0};
    s->first_arrival = s->met = ROUND_NEVER;
    s->open = false;
    endpoint_trigger_find_live(endpoint, result);
}

const uint64_t *endpoint_awaited(struct endpoint *endpoint)
{
    return endpoint->frozen ? NULL
                            : policy_awaited(&endpoint->options.policy,
                                             endpoint_trigger_open(endpoint));
}

void endpoint_trigger_find_live(struct endpoint *endpoint,
                                const struct round_header *last)
{
    struct policy_round *r = &endpoint->trigger.round;
    const struct placement *p = &endpoint->placement;
    r->live_count = round_live(last, r->ranks, endpoint->shape.failed, r->first_word,
                               r->words, endpoint->trigger.live);
    r->own_count = 0;
    for (uint32_t i = 0; i < p->members; i++)
        r->own_count += bitset_has(r->live, p->member[i] - 64 * r->first_word);
}

size_t endpoint_trigger_bytes(const pcoll_policy *policy, uint32_t ranks,
                              uint32_t endpoints, size_t words)
{
    size_t of_endpoint = sizeof(uint64_t) + 2 * sizeof(struct policy_report);
    return 5 * words * sizeof(uint64_t) +
           (policy_coordinated(policy) ? endpoints * of_endpoint : 0) +
           (policy->max_staleness ? ranks * sizeof(uint32_t) : 0);
}

int endpoint_trigger_init(struct endpoint *endpoint)
{
    struct endpoint_trigger *s = &endpoint->trigger;
    const pcoll_policy *policy = &endpoint->options.policy;
    const struct placement *p = &endpoint->placement;
    uint32_t ranks = endpoint->shape.ranks, endpoints = p->domains;
    uint32_t first = p->member[0] / 64, last = p->member[p->members - 1] / 64;
    int rc = policy_check(policy, ranks);
    if (rc != PCOLL_OK)
        return rc;
    if (policy_takes_all(policy))
        first = 0, last = (ranks - 1) / 64;
    uint32_t words = last - first + 1;
    uint64_t *sets = calloc(1, endpoint_trigger_bytes(policy, ranks, endpoints, words));
    if (!sets)
        return fail(PCOLL_ENOMEM, "no memory for %u ranks", ranks);
    *s = (struct endpoint_trigger){.first_arrival = ROUND_NEVER,
                                   .met = ROUND_NEVER,
                                   .live = sets,
                                   .arrived = sets + words,
                                   .deposited = sets + 2 * words,
                                   .round = {.ranks = ranks,
                                             .live = sets,
                                             .drawn = sets + 3 * words,
                                             .overdue = sets + 4 * words,
                                             .first_word = first,
                                             .words = words}};
    void *rest = sets + 5 * words;
    if (policy_coordinated(policy)) {
        s->reports_sent = rest;
        struct policy_report *votes = (void *)(s->reports_sent + endpoints);
        for (int i = 0; i < 2; i++, votes += endpoints)
            vote_count_init(&s->votes[i], votes, endpoints);
        rest = votes;
    }
    if (policy->max_staleness)
        s->absences = rest;
    endpoint_trigger_find_live(endpoint, NULL);
    return PCOLL_OK;
}

/* The closing. */

static int endpoint_agree_to_close(struct endpoint *endpoint, uint64_t *values,
                                   int count, enum agree_op op)
{
    endpoint->closing_agreement = (struct agreement){
        .values = values, .count = count, .op = op, .object = &endpoint->base};
    return communicator_agree(endpoint->communicator, &endpoint->closing_agreement);
}

static int endpoint_closed(struct endpoint *endpoint)
{
    atomic_store(&endpoint->closing, CLOSED);
    return communicator_closed(endpoint->communicator, &endpoint->base);
}

/* All rounds are complete. Send the final messages, and finish when those of all edges have
 * arrived. An endpoint that does not drive has no edges. */
static int endpoint_drain(struct endpoint *endpoint)
{
    const struct placement *p = &endpoint->placement;
    uint32_t all = ((uint32_t)1 << endpoint->activation.edges) - 1;
    if (atomic_load(&endpoint->closing) > DRAINING)
        return PCOLL_OK;
    if (endpoint->drives && !endpoint->last_sent) {
        endpoint->last_sent = true;
        for (int k = 0; k < endpoint->activation.edges; k++) {
            uint32_t peer = (p->index + ((uint32_t)1 << k)) % p->domains;
            int rc = control_send(endpoint, placement_leader(p, peer), CONTROL_LAST, k);
            if (rc != PCOLL_OK)
                return rc;
        }
    }
    CHECK(!endpoint->drives || !(endpoint->last_received & ~all));
    const struct endpoint_trigger *s = &endpoint->trigger;
    bool missing = s->reports_sent && s->reports_received < s->reports_sent[p->index];
    if (endpoint->drives && (endpoint->last_received != all || missing))
        return PCOLL_OK;
    CHECK(!endpoint->frozen);
    if (endpoint->options.on_failure != PCOLL_FAILURE_CONTINUE)
        return endpoint_closed(endpoint);
    MOMENT("drained");
    atomic_store(&endpoint->closing, CONFIRMING);
    return endpoint_agree_to_close(endpoint, &endpoint->closing_rounds, 1, AGREE_MAX);
}

/* Take the next step of the closing, if the agreement of the last one is over. A frozen current
 * round counts, because other ranks may have been activated for it. */
static int endpoint_continue_closing(struct endpoint *endpoint)
{
    int closing = atomic_load(&endpoint->closing);
    uint64_t begun = endpoint->engine.current + endpoint->frozen;
    if (!(closing >= ENTERING && closing <= REPORTS) && closing != CONFIRMING)
        return PCOLL_OK;
    if (closing == ENTERING ? endpoint->unanswered > 0
                            : !atomic_load(&endpoint->closing_agreement.done))
        return PCOLL_OK;
    if (closing == CONFIRMING) {
        MOMENT("confirmed");
        return endpoint_closed(endpoint);
    }
    MOMENT(closing == ENTERING ? "closing entered" : "closing counted");
    if (closing == ENTERING) {
        bool one = endpoint->placement.domains == 1;
        endpoint->closing_rounds = endpoint->drives ? begun : 0;
        atomic_store(&endpoint->closing, one ? DRAINING : COUNTING);
        return one ? PCOLL_OK
                   : endpoint_agree_to_close(endpoint, &endpoint->closing_rounds, 1,
                                             AGREE_MAX);
    }
    atomic_store(&endpoint->closing, closing + 1);
    if (closing == REPORTS)
        return PCOLL_OK;
    /* No round completes without this rank, so no rank has begun more than one round beyond it. */
    if (endpoint->drives && endpoint->closing_rounds - begun > 1)
        return fail(PCOLL_EPROTOCOL,
                    "the ranks close after %llu rounds, and this one is in %llu",
                    (unsigned long long)endpoint->closing_rounds,
                    (unsigned long long)begun);
    if (endpoint->trigger.reports_sent)
        return endpoint_agree_to_close(endpoint, endpoint->trigger.reports_sent,
                                       (int)endpoint->placement.domains, AGREE_SUM);
    atomic_store(&endpoint->closing, DRAINING);
    return PCOLL_OK;
}

/* Rounds. */

static struct endpoint *endpoint_of(struct object *p)
{
    return (struct endpoint *)p;
}

static uint32_t endpoint_tag(const struct endpoint *endpoint, int edge)
{
    return endpoint->base.slot * DATA_EDGES + (uint32_t)edge;
}

static void endpoint_freeze(struct endpoint *endpoint)
{
    struct domain *d = endpoint->domain;
    uint64_t round = endpoint->engine.current;
    if (endpoint->event_log)
        event_log_enter(endpoint->event_log);
    struct round_header *contribution = d->ops->freeze(d, round);
    if (endpoint->event_log)
        event_log_leave_round(endpoint->event_log);
    CHECK(!endpoint->frozen && contribution->round == round);
    contribution->initiator = endpoint->initiator;
    data_begin(&endpoint->data, contribution, node_result(d, round));
    endpoint->frozen = true;
    MOMENT("frozen");
    if (endpoint->communicator->progress)
        progress_round(endpoint->communicator->progress, 1);
}

/* Return false until the other members have reduced this part. The domain then alerts the
 * driver. */
static bool endpoint_is_gathered(struct endpoint *endpoint, const struct op *op)
{
    struct domain *d = endpoint->domain;
    const struct payload *p = &endpoint->shape.payload;
    const struct slice *s = &op->slice;
    return d->members == 1 ||
           node_fabric_gather(d, endpoint->engine.current,
                              s->of ? payload_cut(p, s->begin, s->of) : 0,
                              s->of ? payload_cut(p, s->end, s->of) : p->bytes);
}

/* Execute an operation, or begin to. Set *finished if it completes without an event. */
static int endpoint_issue(struct endpoint *endpoint, int id, bool *finished)
{
    const struct op *op = &endpoint->sched->ops[id];
    struct transport *t = endpoint->communicator->transport;
    uint64_t cookie = object_cookie(&endpoint->base, id);
    struct message m;
    struct native_call call;
    *finished = true;
    switch (op->kind) {
    case OP_SEND:
        if (op->class == OP_CONTROL) {
            MOMENT("activating");
            return control_send(endpoint, (uint32_t)op->peer, CONTROL_ACTIVATE,
                                op->edge);
        }
        *finished = false;
        MOMENT("sending");
        m = data_outgoing(&endpoint->data, op);
        return t->ops->send(t, (uint32_t)op->peer, endpoint_tag(endpoint, op->edge),
                            m.at, m.bytes, cookie);
    case OP_RECV:
        *finished = false;
        m = data_incoming(&endpoint->data, op);
        return t->ops->recv(t, (uint32_t)op->peer, endpoint_tag(endpoint, op->edge),
                            m.at, m.bytes, cookie);
    case OP_REDUCE:
        MOMENT("reducing");
        return data_reduce(&endpoint->data, op);
    case OP_COPY:
        if (op->a != BUFFER_DEPOSIT) {
            data_copy(&endpoint->data, op);
            return PCOLL_OK;
        }
        if (!endpoint->frozen) /* The first gathering of a round. */
            endpoint_freeze(endpoint);
        *finished = endpoint_is_gathered(endpoint, op);
        endpoint->gathering += !*finished;
        return PCOLL_OK;
    case OP_NATIVE:
        *finished = false;
        call = data_native(&endpoint->data, op);
        return t->ops->native(t, endpoint->channel, &call, cookie);
    case OP_NOP:
    case OP_TIMER:
        break;
    }
    return fail(PCOLL_EPROTOCOL, "operation %d (%s) cannot be executed here", id,
                op->label);
}

/* Start the current round if its policy is met; force it if its deadline has passed. */
static int endpoint_start_round(struct endpoint *endpoint)
{
    struct engine *e = &endpoint->engine;
    struct activation *a = &endpoint->activation;
    int closing = atomic_load(&endpoint->closing);
    bool start = closing == DRAINING && e->current < endpoint->closing_rounds;
    int rc = PCOLL_OK;
    bool idle = engine_state(e, e->current, a->active) == OP_WAITING &&
                engine_state(e, e->current, a->start) == OP_WAITING;
    if (idle && closing <= ENTERING)
        rc = endpoint_trigger_evaluate(endpoint, &start);
    if (rc != PCOLL_OK)
        return rc;
    if (idle && start)
        engine_complete(e, e->current, a->start);
    bool forced = engine_state(e, e->current, a->force) != OP_WAITING;
    if (!forced && (idle || a->force != a->start) && closing <= ENTERING &&
        endpoint_trigger_deadline(endpoint))
        engine_complete(e, e->current, a->force);
    return PCOLL_OK;
}

static void endpoint_finish_round(struct endpoint *endpoint)
{
    CHECK(endpoint->drives && engine_over(&endpoint->engine) && !endpoint->gathering);
    struct round_header *result =
        node_result(endpoint->domain, endpoint->engine.current);
    MOMENT("round over");
    endpoint_trigger_finish(endpoint, result);
    CHECK(endpoint->frozen && result->round == endpoint->engine.current);
    endpoint->domain->ops->publish(endpoint->domain, endpoint->engine.current);
    MOMENT("round published");
    endpoint->frozen = false;
    endpoint->initiator = ROUND_NOBODY;
    engine_advance(&endpoint->engine);
    if (endpoint->communicator->progress) {
        progress_round(endpoint->communicator->progress, -1);
        progress_wake_waiters(endpoint->communicator->progress);
    }
}

static int endpoint_run_operations(struct endpoint *endpoint)
{
    for (int op; (op = engine_next(&endpoint->engine)) >= 0;) {
        bool finished;
        int rc = endpoint_issue(endpoint, op, &finished);
        if (rc != PCOLL_OK)
            return rc;
        if (finished)
            engine_complete(&endpoint->engine, endpoint->engine.current, op);
    }
    return PCOLL_OK;
}

/* Complete the operations whose part of the sum the members have reduced by now. */
static void endpoint_poll_gathering(struct endpoint *endpoint)
{
    uint64_t round = endpoint->engine.current;
    for (uint32_t i = 0; endpoint->gathering && i < endpoint->sched->count; i++) {
        const struct op *op = &endpoint->sched->ops[i];
        if (op->kind != OP_COPY || op->a != BUFFER_DEPOSIT ||
            engine_state(&endpoint->engine, round, (int)i) != OP_RUNNING ||
            !endpoint_is_gathered(endpoint, op))
            continue;
        endpoint->gathering--;
        engine_complete(&endpoint->engine, round, (int)i);
    }
}

/* Run an endpoint that does not drive: other members, or the leader, drive the rounds. Help when
 * a timer asks for it. */
static int endpoint_run_member(struct endpoint *endpoint)
{
    int closing = atomic_load(&endpoint->closing);
    int64_t alarm = INT64_MAX;
    if (closing <= ENTERING)
        node_help(endpoint->domain, true, &alarm);
    if (alarm != INT64_MAX)
        communicator_alarm(endpoint->communicator, &endpoint->base, alarm);
    return closing == DRAINING ? endpoint_drain(endpoint) : PCOLL_OK;
}

/* A deposit of this rank waits for its copy from a device. Make the deposit, or poll again
 * later. */
static void endpoint_drive_staging(struct endpoint *endpoint)
{
    bool made;
    enum deposit_outcome outcome;
    if (!staging_try(endpoint->staging, endpoint->domain, &made, &outcome)) {
        communicator_alarm(endpoint->communicator, &endpoint->base,
                           staging_next_poll(endpoint->staging));
        endpoint->base.in_vain = true;
    } else if (made)
        endpoint_poll(endpoint, true);
    else
        progress_wake_waiters(
            endpoint->communicator->progress); /* The copy has failed. */
}

int endpoint_run(struct endpoint *endpoint)
{
    struct engine *engine = &endpoint->engine;
    if (endpoint->staging && !staging_arrived(endpoint->staging) &&
        atomic_load(&endpoint->closing) == OPEN)
        endpoint_drive_staging(endpoint);
    int rc = endpoint_continue_closing(endpoint);
    if (rc != PCOLL_OK)
        return rc;
    if (!endpoint->drives)
        return endpoint_run_member(endpoint);
    endpoint_poll_gathering(endpoint);
    int closing = atomic_load(&endpoint->closing); /* Only the driver changes it. */
    while (closing < REPORTS || engine->current < endpoint->closing_rounds) {
        if (!engine->released && endpoint->domain->ops->admits(endpoint->domain) &&
            (closing != OPEN ||
             event_log_admits_round(endpoint->event_log, engine->current)))
            engine_release(engine);
        if (!engine->released)
            return PCOLL_OK;
        rc = endpoint_start_round(endpoint) ?: endpoint_run_operations(endpoint);
        if (rc != PCOLL_OK)
            return rc;
        if (!engine_over(engine))
            return PCOLL_OK;
        endpoint_finish_round(endpoint);
    }
    return closing < DRAINING ? PCOLL_OK : endpoint_drain(endpoint);
}

/* Calls of the driver for an object. */

static int endpoint_object_run(struct object *p)
{
    return endpoint_run(endpoint_of(p));
}

static int endpoint_object_done(struct object *p, int op, size_t bytes)
{
    struct endpoint *endpoint = endpoint_of(p);
    const struct op *o = &endpoint->sched->ops[op];
    int rc = PCOLL_OK;
    if (o->kind == OP_RECV)
        rc = data_received(&endpoint->data, o, bytes, endpoint->engine.current);
    else if (o->kind == OP_NATIVE)
        rc = data_native_over(&endpoint->data, o);
    if (rc != PCOLL_OK)
        return rc;
    engine_complete(&endpoint->engine, endpoint->engine.current, op);
    return endpoint_run(endpoint);
}

/* After the agreement on the number of rounds no further round starts. */
static int endpoint_take_activation(struct endpoint *endpoint,
                                    const struct control_message *m)
{
    bool beyond = atomic_load(&endpoint->closing) >= REPORTS &&
                  m->round >= endpoint->closing_rounds;
    if (beyond ||
        engine_complete(&endpoint->engine, m->round,
                        endpoint->activation.from + (int)m->edge) == ENGINE_IMPOSSIBLE)
        return fail(PCOLL_EPROTOCOL, "rank %u activates round %llu in round %llu",
                    m->source, (unsigned long long)m->round,
                    (unsigned long long)endpoint->engine.current);
    return PCOLL_OK;
}

static int endpoint_object_control(struct object *p, uint32_t source,
                                   const struct control *message)
{
    struct endpoint *endpoint = endpoint_of(p);
    struct control_message m;
    int rc = control_decode(endpoint, source, message, &m);
    if (rc != PCOLL_OK)
        return rc;
    switch (m.kind) {
    case CONTROL_ACTIVATE:
        rc = endpoint_take_activation(endpoint, &m);
        break;
    case CONTROL_LAST:
        if (endpoint->last_received & (uint32_t)1 << m.edge)
            return fail(PCOLL_EPROTOCOL, "rank %u ended twice", source);
        endpoint->last_received |= (uint32_t)1 << m.edge;
        break;
    case CONTROL_REPORT:
        endpoint_trigger_take(endpoint, &m);
        break;
    case CONTROL_ASK:
        return stall_answer_send(endpoint, source);
    case CONTROL_ANSWER:
        stall_answer_take(endpoint, m.rank, &m.answer);
        break;
    }
    return rc ?: endpoint_run(endpoint);
}

/* The turn of this endpoint to close: all ranks have freed the handle. */
static int endpoint_object_begin_close(struct object *p)
{
    struct endpoint *endpoint = endpoint_of(p);
    int rc = endpoint_run(endpoint);
    if (rc != PCOLL_OK)
        return rc;
    CHECK(atomic_load(&endpoint->closing) == QUEUED);
    MOMENT("closing begun");
    atomic_store(&endpoint->closing, ENTERING);
    return endpoint_run(endpoint);
}

static bool endpoint_object_attention(struct object *p)
{
    struct domain *d = endpoint_of(p)->domain;
    return node_attention(d);
}

const struct object_ops endpoint_ops = {
    .run = endpoint_object_run,
    .done = endpoint_object_done,
    .control = endpoint_object_control,
    .begin_close = endpoint_object_begin_close,
    .attention = endpoint_object_attention,
};

/* Calls of the application. */

void endpoint_help(struct endpoint *endpoint)
{
    int64_t alarm;
    node_help(endpoint->domain, false, &alarm);
    if (alarm == INT64_MAX || alarm == endpoint->alarm_given)
        return;
    endpoint->alarm_given = alarm;
    communicator_notify(endpoint->communicator, &endpoint->base);
}

void endpoint_poll(struct endpoint *endpoint, bool driver)
{
    struct domain *d = endpoint->domain;
    int64_t alarm = INT64_MAX;
    if (d->members > 1 && endpoint->placement.domains == 1)
        node_help(d, driver, &alarm);
    else if (d->members > 1)
        node_alert(d);
    if (!driver)
        endpoint->alarm_given = alarm;
    if (d->members == 1 || alarm != INT64_MAX)
        communicator_notify(endpoint->communicator, &endpoint->base);
}

/* A stored deposit starts nothing, but a round may wait for the deposit of an overdue rank. */
void endpoint_deposited(struct endpoint *endpoint, enum deposit_outcome outcome)
{
    if (outcome == DEPOSIT_ARRIVED || endpoint->event_log ||
        (outcome == DEPOSIT_STORED && endpoint->options.policy.max_staleness))
        endpoint_poll(endpoint, false);
}

int endpoint_close(struct endpoint *endpoint)
{
    if (atomic_load(&endpoint->closing) != OPEN)
        return PCOLL_OK;
    atomic_store(&endpoint->closing, QUEUED);
    node_retire(endpoint->domain);
    endpoint_poll(endpoint, true);
    return communicator_close(endpoint->communicator, &endpoint->base);
}

/* Data and control messages have edges of their own. In GOAL they share the tags: data has the
 * even ones. */
static struct goal_cost endpoint_goal_cost(const void *arg, int id)
{
    const struct endpoint *endpoint = arg;
    const struct op *op = &endpoint->sched->ops[id];
    bool control = op->class == OP_CONTROL;
    bool has_bytes = op->kind <= OP_COPY;
    return (struct goal_cost){
        .bytes = control     ? sizeof(struct control)
                 : has_bytes ? data_message_bytes(&endpoint->data, op)
                             : 0,
        .tag = op->edge < 0 ? 0 : 2 * (uint32_t)op->edge + control};
}

int endpoint_goal(const struct endpoint *endpoint, double ns_per_byte, char **text)
{
    return sched_goal(endpoint->sched, endpoint->communicator->transport->rank,
                      ns_per_byte, endpoint_goal_cost, endpoint, text);
}

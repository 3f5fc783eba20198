/* SPDX-License-Identifier: Apache-2.0 */
/* The promises of docs/semantics.md, checked against what each freeze took and what
 * each rank was given. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "steps.h"

double steps_element(double value, uint32_t i)
{
    return ldexp(value, -(int)(i % 16));
}

static void spoil(struct steps *s, double *payload)
{
    memset(payload, 0xff, s->shape.payload.bytes);
}

/* A round is complete: the deposits that it read may be used only by their owners, for
 * new deposits. */
void steps_over(void *arg, uint64_t round)
{
    struct steps *s = arg;
    (void)round;
    for (uint32_t i = 0; i < s->o.ranks; i++) {
        if (s->member[i].frozen_in)
            spoil(s, s->member[i].frozen_in);
        s->member[i].frozen_in = NULL;
    }
}

/* A round begins to close. Its result overwrites an older one, which must not be used
 * from here on. */
static void begin_round(struct steps *s, uint64_t round)
{
    struct domain *n = steps_node(s, 0);
    spoil(s, message_payload(node_result(n, round)));
    s->rounds = round + 1;
}

/* With deliver="one" no rank lags by more than the history. No round starts before all
 * have read the one with which all have joined. */
static void check_lags(struct steps *s, uint64_t round)
{
    for (uint32_t i = 0; i < s->o.ranks; i++) {
        const struct steps_member *m = &s->member[i];
        uint64_t delivered = atomic_load_explicit(&steps_node(s, i)->lines[i].delivered,
                                                  memory_order_relaxed);
        bool waited_for = !m->left && !m->in_change && !m->retired;
        INVARIANT("staleness",
                  !waited_for || s->o.handle.deliver != PCOLL_DELIVER_ONE ||
                      round < delivered + s->o.handle.history,
                  "round %llu starts, and rank %u has read only %llu",
                  (unsigned long long)round, i, (unsigned long long)delivered);
        INVARIANT("agreement", !m->all_joined || m->in_deliver || !m->joining,
                  "round %llu starts, and rank %u does not know that all have joined",
                  (unsigned long long)round, i);
    }
}

/* The descriptor announces joins and leaves exactly as the rank made them. */
static void check_announced(struct steps *s, uint32_t rank,
                            const struct ledger_entry *e)
{
    const struct steps_member *m = &s->member[rank];
    bool joining = m->joining && !m->all_joined;
    INVARIANT("agreement", e->joined == joining || (m->in_change && !m->left),
              "rank %u is announced as joining: %d", rank, e->joined);
    INVARIANT("agreement", e->left == m->left || m->in_change,
              "rank %u is announced as leaving: %d", rank, e->left);
}

/* Return whether the value is the deposit being made, with what it carries. */
static bool is_new(const struct steps *s, const struct steps_member *m,
                   const struct ledger_account *a, double value)
{
    bool carries = s->o.handle.late == PCOLL_LATE_CARRY && a->has_pending;
    double sum = carries ? a->pending + m->depositing : m->depositing;
    return m->in_deposit && !m->deposit_taken && value == sum;
}

/* A freeze takes the pending deposit, the one being made, or nothing if none is. */
static void check_taken(struct steps *s, uint32_t rank, struct ledger_entry *e)
{
    struct steps_member *m = &s->member[rank];
    struct ledger_account *a = &s->ledger->account[rank];
    uint64_t round = s->ledger->frozen[rank];
    bool one = s->o.handle.deliver == PCOLL_DELIVER_ONE;
    if (!e->active) {
        INVARIANT("staleness", !a->has_pending,
                  "round %llu does not take %g of rank %u", (unsigned long long)round,
                  a->pending, rank);
        return;
    }
    bool fresh = is_new(s, m, a, e->value);
    INVARIANT(
        "conservation", fresh || (a->has_pending && e->value == a->pending),
        "round %llu takes %g of rank %u, pending %g (%d), being handed in %g (%d)",
        (unsigned long long)round, e->value, rank, a->pending, a->has_pending,
        m->depositing, m->in_deposit && !m->deposit_taken);
    INVARIANT("agreement",
              e->arrived == (fresh && one ? round == m->next
                             : fresh      ? e->arrived
                                          : a->pending_arrived),
              "rank %u in round %llu: arrived %d", rank, (unsigned long long)round,
              e->arrived);
    if (fresh && s->o.handle.late != PCOLL_LATE_CARRY)
        a->dropped += a->pending; /* replaced */
    if (fresh) {
        m->deposit_taken = true;
        m->deposit_arrived = e->arrived;
    }
    if (fresh || !m->in_deposit)
        m->taken_in = (int64_t)round;
    a->has_pending = a->pending_arrived = false;
    a->pending = 0;
}

static bool all_gone(const struct steps *s, uint64_t round)
{
    bool gone = true;
    for (uint32_t i = 0; i < s->o.ranks; i++) {
        const struct ledger_entry *e = &s->ledger->round[round][i];
        gone = gone && (e->joined || e->left);
    }
    return gone;
}

/* Note the times of the first arrival and the first freeze of a round. */
static void note_times(struct steps *s, uint32_t rank, uint64_t round,
                       const struct ledger_entry *e)
{
    struct ledger *l = s->ledger;
    bool live[LEDGER_MAX_RANKS];
    reference_live(l, round, live);
    if (!l->first_absent[round])
        l->first_absent[round] = stepper_now() + 1;
    int64_t came = s->member[rank].came_at + 1;
    if (live[rank] && (e->arrived || e->joined || e->left) &&
        (!l->first_arrival[round] || came < l->first_arrival[round]))
        l->first_arrival[round] = came;
}

static void check_payload(const struct steps *s, uint32_t rank, const double *payload)
{
    for (uint32_t i = 0; i < s->o.count; i++)
        INVARIANT("conservation", payload[i] == steps_element(payload[0], i),
                  "element %u of a deposit of rank %u is %g, the first one %g", i, rank,
                  payload[i], payload[0]);
}

void steps_frozen(void *arg, uint32_t rank, uint64_t round,
                  const struct round_header *header, const void *payload)
{
    struct steps *s = arg;
    struct ledger *l = s->ledger;
    uint32_t ranks = s->o.ranks;
    bool stored = round_has(header, ranks, ROUND_STORED, rank);
    INVARIANT("liveness", round < LEDGER_MAX_ROUNDS - 1, "rounds run free");
    INVARIANT("at most once", round == l->frozen[rank],
              "rank %u enters round %llu, expected %llu", rank,
              (unsigned long long)round, (unsigned long long)l->frozen[rank]);
    if (rank == 0) {
        steps_closing((uint32_t)stepper_self() / 2);
        begin_round(s, round);
        check_lags(s, round);
    }
    INVARIANT("at most once", s->rounds == round + 1, "round %llu is overtaken",
              (unsigned long long)round);
    struct ledger_entry e = {.value = payload ? *(const double *)payload : 0,
                             .active = payload,
                             .arrived = payload && !stored,
                             .joined = round_has(header, ranks, ROUND_JOINED, rank),
                             .left = round_has(header, ranks, ROUND_LEFT, rank)};
    if (payload)
        check_payload(s, rank, payload);
    check_announced(s, rank, &e);
    check_taken(s, rank, &e);
    l->round[round][rank] = e;
    note_times(s, rank, round, &e);
    s->member[rank].frozen_in = (double *)(uintptr_t)payload;
    l->frozen[rank]++;
    if (rank + 1 == ranks && all_gone(s, round))
        for (uint32_t i = 0; i < ranks; i++)
            s->member[i].all_joined = l->round[round][i].joined;
}

void steps_deposited(struct steps *s, uint32_t rank, enum deposit_outcome outcome)
{
    struct steps_member *m = &s->member[rank];
    struct ledger_account *a = &s->ledger->account[rank];
    bool carry = s->o.handle.late == PCOLL_LATE_CARRY;
    m->in_deposit = false;
    a->deposited += m->depositing;
    a->magnitude += fabs(m->depositing);
    if (m->deposit_taken) {
        INVARIANT("agreement", m->deposit_arrived == (outcome == DEPOSIT_ARRIVED),
                  "rank %u: its deposit was taken as arrived %d, and it is told %d",
                  rank, m->deposit_arrived, outcome);
        return;
    }
    m->taken_in = -1;
    if (outcome == DEPOSIT_DROPPED) {
        a->dropped += m->depositing;
        return;
    }
    if (a->has_pending && !carry)
        a->dropped += a->pending;
    a->pending = m->depositing + (carry && a->has_pending ? a->pending : 0);
    a->has_pending = true;
    a->pending_arrived = outcome == DEPOSIT_ARRIVED;
}

/* Rounds are delivered in order, or the gap is reported. Rounds not older than the
 * history are available. */
static void check_order(struct steps *s, uint32_t rank, const pcoll_round *r)
{
    struct steps_member *m = &s->member[rank];
    uint64_t complete = node_control_round(
        atomic_load_explicit(&steps_node(s, 0)->shared->control, memory_order_relaxed));
    INVARIANT("order", r->index == m->next + r->lost && r->index < complete,
              "rank %u got round %llu after %llu, lost %llu, %llu are complete", rank,
              (unsigned long long)r->index, (unsigned long long)m->next,
              (unsigned long long)r->lost, (unsigned long long)complete);
    INVARIANT("order",
              !r->lost || (s->o.handle.deliver == PCOLL_DELIVER_ALL &&
                           r->index + s->o.handle.history <= complete),
              "rank %u lost round %llu, which is not older than the history", rank,
              (unsigned long long)r->index - 1);
    m->next = r->index + 1;
    s->lost += r->lost;
}

/* The result is reduced in the order of the ranks, on whichever rank. */
static void check_result(struct steps *s, uint32_t rank, const pcoll_round *r,
                         const double *recv)
{
    int op = s->o.handle.op;
    const struct ledger *l = s->ledger;
    double sum = r->active ? reference_in_order(l->round[r->index], l->ranks,
                                                reference_op(op), 0, 1)
                           : reference_identity(op);
    for (uint32_t i = 0; i < s->o.count; i++) {
        double e = r->active ? steps_element(sum, i) : sum;
        INVARIANT("conservation", recv[i] == e || fabs(recv[i] - e) <= 1e-9 * fabs(e),
                  "rank %u: element %u of round %llu is %.17g, expected %.17g", rank, i,
                  (unsigned long long)r->index, recv[i], e);
        INVARIANT("reproducible", recv[i] == e,
                  "element %u of round %llu is %.17g, by rank %.17g", i,
                  (unsigned long long)r->index, recv[i], e);
    }
}

static void check_times(const struct steps *s, const pcoll_round *r, bool all)
{
    const struct ledger *l = s->ledger;
    const pcoll_policy *p = &s->policy;
    int64_t waited = l->first_absent[r->index] - l->first_arrival[r->index];
    unsigned long long t = r->index;
    INVARIANT("quorum", !r->below_quorum || waited >= (int64_t)(p->deadline * 1e9),
              "round %llu was cut short %lld ns after the first arrival", t,
              (long long)waited);
    bool early = p->linger > 0 && !all && !(p->deadline > 0);
    INVARIANT("quorum", !early || waited >= (int64_t)(p->linger * 1e9) - 1000,
              "round %llu lingered for %lld ns", t, (long long)waited);
}

static void check_quorum(const struct steps *s, const pcoll_round *r)
{
    bool live[LEDGER_MAX_RANKS];
    reference_live(s->ledger, r->index, live);
    struct quorum_case c = {.ledger = s->ledger,
                            .round = r->index,
                            .live = live,
                            .stream = splitmix_mix(s->options.seed) ^ s->slot,
                            .policy = s->policy};
    bool met = space_policies[s->o.handle.policy].kept(&c), fresh = reference_fresh(&c);
    bool timed = s->policy.deadline > 0;
    const char *text = space_policy_text(&s->o.handle);
    unsigned long long t = r->index;
    INVARIANT("quorum", r->below_quorum == (timed && !(met && fresh)),
              "round %llu says below_quorum %d: %s, with %u ranks", t, r->below_quorum,
              text, r->active);
    INVARIANT("quorum", met || timed, "round %llu: %s, with %u ranks", t, text,
              r->active);
    INVARIANT("staleness", fresh || timed, "round %llu: %s, and a rank is absent again",
              t, text);
    INVARIANT("quorum",
              r->initiator >= 0 && reference_came(&c, (uint32_t)r->initiator) &&
                  (timed || reference_may_start(&c, (uint32_t)r->initiator)),
              "round %llu: %s, started by rank %d", t, text, r->initiator);
    check_times(s, r, reference_full(&c));
}

static void check_agreement(struct steps *s, const pcoll_round *r, const double *recv)
{
    uint64_t hash = r->below_quorum;
    for (uint32_t i = 0; i < s->o.count; i++) {
        uint64_t word;
        memcpy(&word, &recv[i], sizeof word);
        hash = splitmix_mix(hash ^ word);
    }
    reference_check_same(s->ledger, r, hash);
}

void steps_delivered(struct steps *s, uint32_t rank, const pcoll_round *r,
                     const uint64_t *masks, const double *recv)
{
    struct steps_member *m = &s->member[rank];
    check_order(s, rank, r);
    reference_check_masks(s->ledger, r, masks);
    check_result(s, rank, r, recv);
    check_agreement(s, r, recv);
    check_quorum(s, r);
    bool included = m->taken_in >= 0 && (uint64_t)m->taken_in <= r->index;
    INVARIANT("agreement", r->included == included,
              "rank %u is told that round %llu has its deposit: %d; it was %d", rank,
              (unsigned long long)r->index, r->included, included);
    INVARIANT("agreement", r->joined == (m->joining && all_gone(s, r->index)),
              "rank %u is told that all have joined with round %llu: %d", rank,
              (unsigned long long)r->index, r->joined);
    if (r->joined)
        m->joining = m->all_joined = false;
}

void steps_joined(struct steps *s, uint32_t rank, const pcoll_round *r)
{
    reference_check_joined(&s->joined_at[s->member[rank].joins++], rank, r);
}

/* Each deposit appears in a result, or is known to be pending or dropped. */
void steps_end(struct steps *s)
{
    const struct ledger *l = s->ledger;
    double in = 0, out = 0, magnitude = 0;
    for (uint32_t i = 0; i < s->o.ranks; i++) {
        const struct ledger_account *a = &l->account[i];
        in += a->deposited - a->dropped - (a->has_pending ? a->pending : 0);
        magnitude += a->magnitude;
        for (uint64_t t = 0; t < l->frozen[i]; t++)
            out += l->round[t][i].value;
        INVARIANT("agreement", l->frozen[i] == s->rounds,
                  "rank %u ended in round %llu of %llu", i,
                  (unsigned long long)l->frozen[i], (unsigned long long)s->rounds);
        INVARIANT("conservation", s->o.ending != END_JOIN || !a->has_pending,
                  "all have joined, and rank %u still owes %g", i, a->pending);
    }
    INVARIANT("conservation", fabs(in - out) <= 1e-12 * magnitude,
              "%.17g handed in, %.17g came out", in, out);
}

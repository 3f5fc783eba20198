/* SPDX-License-Identifier: Apache-2.0 */
/* The watched domain; everything it does not look at is passed on. */
#include "spy.h"

#include <math.h>

#include "check.h"
#include "reference.h"

static struct spy *of(struct domain *d)
{
    return (struct spy *)d;
}

/* Does a call that deposits now arrive at the round that it stands for? */
static bool in_time(const struct spy *s)
{
    uint64_t frozen = s->ledger->frozen[s->rank];
    if (s->deliver == PCOLL_DELIVER_ONE)
        return frozen <= s->delivered;
    return s->published == s->delivered && frozen == s->published;
}

/* Time 0 stands for none. */
static void note_time(const struct spy *s, int64_t *times, uint64_t round)
{
    if (!times[round])
        times[round] = sim_now(s->sim) + 1;
}

static void model_deposit(struct spy *s, double value, enum deposit_outcome outcome)
{
    bool drops = s->late == PCOLL_LATE_DROP;
    INVARIANT("staleness",
              outcome == (in_time(s) ? DEPOSIT_ARRIVED
                          : drops    ? DEPOSIT_DROPPED
                                     : DEPOSIT_STORED),
              "rank %u deposits %s: %d", s->rank, in_time(s) ? "in time" : "late",
              outcome);
    s->expected.calls++;
    s->expected.arrived += outcome == DEPOSIT_ARRIVED;
    s->expected.stored += outcome == DEPOSIT_STORED;
    s->expected.dropped += outcome == DEPOSIT_DROPPED;
    s->account->deposited += value;
    s->account->magnitude += fabs(value);
    s->taken_in = -1;
    if (outcome == DEPOSIT_DROPPED) {
        s->account->dropped += value;
        return;
    }
    bool add = s->late == PCOLL_LATE_CARRY && s->account->has_pending;
    if (s->account->has_pending && !add)
        s->account->dropped += s->account->pending;
    s->account->pending = add ? s->account->pending + value : value;
    s->account->has_pending = true;
    s->account->pending_arrived = outcome == DEPOSIT_ARRIVED;
    if (outcome == DEPOSIT_ARRIVED)
        note_time(s, s->ledger->first_arrival, s->ledger->frozen[s->rank]);
}

static int spy_deposit(struct domain *d, int who, const void *const *buffers,
                       enum deposit_outcome *outcome)
{
    struct spy *s = of(d);
    const double *first = buffers ? buffers[0] : s->real->ops->send_slot(s->real, who);
    double value = *first;
    int rc = s->real->ops->deposit(s->real, who, buffers, outcome);
    if (rc == PCOLL_OK)
        model_deposit(s, value, *outcome);
    return rc;
}

/* At the source: a round takes exactly what is owed, once, and at the first chance. */
static void check_contribution(struct spy *s, uint64_t round,
                               const struct round_header *h, double value)
{
    unsigned long long t = round;
    bool active = !round_is_null(h, s->base.shape->ranks);
    INVARIANT("staleness", active || !s->account->has_pending,
              "rank %u misses round %llu although it owes %g", s->rank, t,
              s->account->pending);
    INVARIANT("conservation", s->account->has_pending || !active,
              "rank %u contributes %g to round %llu, but owes nothing", s->rank, value,
              t);
    INVARIANT("conservation", !active || value == s->account->pending,
              "rank %u contributes %g to round %llu, owes %g", s->rank, value, t,
              s->account->pending);
    bool stored =
        bitset_has(round_mask_const(h, s->base.shape->ranks, ROUND_STORED), s->rank);
    INVARIANT("agreement", !active || stored == !s->account->pending_arrived,
              "rank %u calls its deposit in round %llu %s", s->rank, t,
              stored ? "stored, but it arrived" : "arrived, but it was stored");
}

static void poison(const struct round_shape *shape, struct round_header *h)
{
    memset(message_payload(shape, h), 0xff, shape->payload.bytes);
}

/* Live, not arrived, and not here to say that it goes away. */
static bool is_absent(const struct ledger *l, uint64_t round, uint32_t rank)
{
    const struct ledger_entry *e = &l->round[round][rank];
    bool live[LEDGER_MOST_RANKS];
    reference_live(l, round, live);
    return live[rank] && !e->arrived && !e->joined && !e->left;
}

static struct round_header *spy_freeze(struct domain *d, uint64_t round)
{
    struct spy *s = of(d);
    struct ledger *l = s->ledger;
    uint32_t ranks = d->shape->ranks;
    INVARIANT("at most once", round == l->frozen[s->rank],
              "rank %u enters round %llu, expected %llu", s->rank,
              (unsigned long long)round, (unsigned long long)l->frozen[s->rank]);
    INVARIANT("liveness", round < LEDGER_MOST_ROUNDS, "rounds run free");
    struct round_header *h = s->real->ops->freeze(s->real, round);
    bool active = !round_is_null(h, ranks);
    double value = active ? *(double *)message_payload(d->shape, h) : 0;
    check_contribution(s, round, h, value);
    l->round[round][s->rank] = (struct ledger_entry){
        .value = value,
        .active = active,
        .arrived = active && s->account->pending_arrived,
        .joined = bitset_has(round_mask(h, ranks, ROUND_JOINED), s->rank),
        .left = bitset_has(round_mask(h, ranks, ROUND_LEFT), s->rank)};
    l->frozen[s->rank]++;
    if (active)
        s->taken_in = (int64_t)round;
    s->expected.included += active;
    if (is_absent(l, round, s->rank))
        note_time(s, l->first_absent, round);
    s->account->has_pending = s->account->pending_arrived = false;
    s->account->pending = 0;
    s->frozen = active ? h : NULL;
    memset(s->real->ops->result(s->real, round), 0xff, d->shape->slot_bytes);
    return h;
}

static void *spy_send_slot(struct domain *d, int who)
{
    return of(d)->real->ops->send_slot(of(d)->real, who);
}

static bool spy_ready(struct domain *d, int who)
{
    struct spy *s = of(d);
    bool ready = s->real->ops->ready(s->real, who);
    INVARIANT("liveness", ready == (s->published > s->delivered),
              "rank %u: ready %d, %llu of %llu rounds delivered", s->rank, ready,
              (unsigned long long)s->delivered, (unsigned long long)s->published);
    return ready;
}

static int spy_deliver(struct domain *d, int who, uint64_t last, uint64_t horizon,
                       void *const *buffers, pcoll_round *round, uint64_t *masks,
                       bool *moved)
{
    struct spy *s = of(d);
    int rc = s->real->ops->deliver(s->real, who, last, horizon, buffers, round, masks,
                                   moved);
    if (rc != PCOLL_OK)
        return rc;
    INVARIANT("order", !round->lost || round->index + s->history <= s->published,
              "rank %u lost round %llu, which is not older than the history", s->rank,
              (unsigned long long)round->index - 1);
    s->delivered = round->index + 1;
    s->expected.delivered++;
    s->expected.lost += round->lost;
    bool included = s->taken_in >= 0 && (uint64_t)s->taken_in <= round->index;
    INVARIANT("agreement", round->included == included,
              "rank %u is told that round %llu has its deposit: %d; it was %d", s->rank,
              (unsigned long long)round->index, round->included, included);
    INVARIANT("agreement", round->lag == s->published - s->delivered,
              "rank %u is told that it lags %llu rounds, it is %llu", s->rank,
              (unsigned long long)round->lag,
              (unsigned long long)(s->published - s->delivered));
    return rc;
}

static void spy_snapshot(struct domain *d, int who, struct member *copy)
{
    of(d)->real->ops->snapshot(of(d)->real, who, copy);
}

/* A rank that frees its handle holds nobody up any more. */
static bool closing(const struct spy *s)
{
    return *s->vertex && atomic_load(&(*s->vertex)->closing) != OPEN;
}

/* Who joins or leaves arrives, too, to say so: now, or when the next round opens. */
static void note_leaver(struct spy *s)
{
    struct member m;
    s->real->ops->snapshot(s->real, 0, &m);
    if (m.joining || m.left)
        note_time(s, s->ledger->first_arrival, s->ledger->frozen[s->rank]);
}

static int spy_change(struct domain *d, int who, int (*step)(struct member *))
{
    int rc = of(d)->real->ops->change(of(d)->real, who, step);
    note_leaver(of(d));
    return rc;
}

static void spy_retire(struct domain *d)
{
    of(d)->real->ops->retire(of(d)->real);
}

static void spy_arrivals(struct domain *d, uint64_t *arrived, uint64_t *deposited)
{
    of(d)->real->ops->arrivals(of(d)->real, arrived, deposited);
}

/* Nobody is held up but by what the contract says: a lag of the whole history, a result
 * that is being copied out of the slot, the round after which all have joined. */
static bool spy_admits(struct domain *d)
{
    struct spy *s = of(d);
    struct member m;
    bool admits = s->real->ops->admits(s->real);
    s->real->ops->snapshot(s->real, 0, &m);
    uint64_t round = s->published;
    bool lags = s->deliver == PCOLL_DELIVER_ONE && round - s->delivered >= s->history;
    bool copies = m.reading >= 0 && (uint64_t)m.reading + s->history + 1 == round;
    bool joins = m.joined_in >= 0;
    INVARIANT("liveness", admits || lags || copies || joins,
              "rank %u holds round %llu back for nothing", s->rank,
              (unsigned long long)round);
    return admits;
}

static struct round_header *spy_result(struct domain *d, uint64_t round)
{
    return of(d)->real->ops->result(of(d)->real, round);
}

static void spy_publish(struct domain *d, uint64_t round)
{
    struct spy *s = of(d);
    s->real->ops->publish(s->real, round);
    s->published++;
    s->expected.rounds++;
    note_leaver(s);
    struct member m;
    s->real->ops->snapshot(s->real, 0, &m);
    INVARIANT("staleness",
              m.deliver != PCOLL_DELIVER_ONE || m.left || closing(s) ||
                  m.complete - m.delivered <= m.history,
              "rank %u lags %llu rounds, history is %u", s->rank,
              (unsigned long long)(m.complete - m.delivered), m.history);
    if (s->frozen)
        poison(d->shape, s->frozen);
    s->frozen = NULL;
}

/* The statistics that users see. */
static void check_stats(struct spy *s)
{
    struct member m;
    s->real->ops->snapshot(s->real, 0, &m);
    const pcoll_stats *is = &m.stats, *be = &s->expected;
    CHECK(is->calls == be->calls && is->rounds == be->rounds &&
              is->delivered == be->delivered && is->lost == be->lost,
          "rank %u: statistics of calls and rounds", s->rank);
    CHECK(is->arrived == be->arrived && is->stored == be->stored &&
              is->dropped == be->dropped && is->included == be->included,
          "rank %u: statistics of deposits", s->rank);
}

static void spy_destroy(struct domain *d)
{
    struct spy *s = of(d);
    check_stats(s);
    s->real->ops->destroy(s->real);
    free(s);
}

static const struct domain_ops spy_ops = {
    .deposit = spy_deposit,
    .send_slot = spy_send_slot,
    .ready = spy_ready,
    .deliver = spy_deliver,
    .snapshot = spy_snapshot,
    .look = spy_snapshot,
    .change = spy_change,
    .retire = spy_retire,
    .arrivals = spy_arrivals,
    .admits = spy_admits,
    .freeze = spy_freeze,
    .result = spy_result,
    .publish = spy_publish,
    .destroy = spy_destroy,
};

int spy_create(const struct round_shape *shape, const pcoll_options *options, void *arg,
               struct domain **out)
{
    const struct spy_arg *a = arg;
    struct spy *s = calloc(1, sizeof *s);
    uint32_t rank = a->rank;
    int rc = domain_single_create(shape, options, &rank, &s->real);
    if (rc != PCOLL_OK) {
        free(s);
        return rc;
    }
    s->base = *s->real;
    s->base.ops = &spy_ops;
    s->ledger = a->ledger;
    s->sim = a->sim;
    s->account = &a->ledger->account[a->rank];
    s->rank = a->rank;
    s->late = options->late;
    s->deliver = options->deliver;
    s->history = options->history;
    s->vertex = a->vertex;
    s->taken_in = -1;
    *out = &s->base;
    return PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The deposits of one rank according to the contract; see model.h. */
#include "model.h"

#include <math.h>

#include "base/bitset.h"
#include "check.h"
#include "reference.h"

/* Return whether a call that deposits now arrives at its round. */
static bool in_time(const struct ledger *l, const struct model_deposit *d)
{
    uint64_t frozen = l->frozen[d->rank], delivered = l->account[d->rank].delivered;
    if (d->deliver == PCOLL_DELIVER_ONE)
        return frozen <= delivered;
    return d->complete == delivered && frozen == d->complete;
}

/* Keep the earliest time. Times are stored + 1, so 0 means none. */
static void note_time(int64_t *times, uint64_t round, int64_t time)
{
    if (!times[round] || time + 1 < times[round])
        times[round] = time + 1;
}

void model_arrival(struct ledger *l, uint32_t rank, int64_t time)
{
    note_time(l->first_arrival, l->frozen[rank], time);
}

void model_deposit(struct ledger *l, const struct model_deposit *d,
                   enum deposit_outcome outcome)
{
    struct ledger_account *a = &l->account[d->rank];
    bool right = in_time(l, d), drops = d->late == PCOLL_LATE_DROP;
    INVARIANT("staleness",
              outcome == (right   ? DEPOSIT_ARRIVED
                          : drops ? DEPOSIT_DROPPED
                                  : DEPOSIT_STORED),
              "rank %u deposits %s: %d", d->rank, right ? "in time" : "late", outcome);
    a->deposited += d->value;
    a->magnitude += fabs(d->value);
    a->taken_in = -1;
    a->wanted = a->delivered + 1;
    if (outcome == DEPOSIT_DROPPED) {
        a->dropped += d->value;
        return;
    }
    bool add = d->late == PCOLL_LATE_CARRY && a->has_pending;
    if (a->has_pending && !add)
        a->dropped += a->pending;
    a->pending = add ? a->pending + d->value : d->value;
    a->has_pending = true;
    a->pending_arrived = outcome == DEPOSIT_ARRIVED;
    if (outcome == DEPOSIT_ARRIVED)
        model_arrival(l, d->rank, d->began);
}

/* No live rank may have received the round. Forget it and the next one, which a dead
 * rank may have entered. */
static void forget_round(struct ledger *l, uint64_t round)
{
    for (uint32_t r = 0; r < l->ranks; r++)
        INVARIANT("one history",
                  ledger_dead(l, r, round) || l->account[r].delivered <= round,
                  "round %llu is done again, and rank %u has seen it",
                  (unsigned long long)round, r);
    l->seen[round].known = false;
    for (uint64_t r = round; r < round + 2 && r < LEDGER_MAX_ROUNDS; r++)
        l->first_arrival[r] = l->first_absent[r] = 0;
}

void model_begin(struct ledger *l, uint32_t epoch, uint64_t round,
                 const uint64_t *failed)
{
    if (l->epoch == epoch)
        return;
    EXPECT(epoch < LEDGER_MAX_EPOCHS, "%u epochs", epoch);
    for (uint32_t i = l->epoch + 1; i < epoch; i++) /* these epochs never began */
        l->begins[i] = 0;
    for (uint32_t i = 0; i < epoch; i++) /* later rounds do not count either */
        l->begins[i] = l->begins[i] > round ? 0 : l->begins[i];
    l->epoch = epoch;
    l->begins[epoch] = round;
    for (uint32_t r = 0; r < l->ranks; r++) {
        if (!failed || !bitset_has(failed, r) || ledger_dead(l, r, round))
            continue;
        INVARIANT("one history", l->frozen[r] >= round,
                  "round %llu is over, and rank %u has never entered it",
                  (unsigned long long)round - 1, r);
        l->died_in[r] = l->frozen[r] = round;
        l->entered_in[r] = 0;
        for (uint64_t t = round; t < round + 2 && t < LEDGER_MAX_ROUNDS; t++)
            l->round[t][r] = (struct ledger_entry){0};
    }
    forget_round(l, round);
}

static void take_back(struct ledger_account *a, const struct ledger_entry *e,
                      uint64_t round, enum pcoll_late late)
{
    if (!e->active)
        return;
    a->taken--;
    a->taken_in = a->taken_in == (int64_t)round ? -1 : a->taken_in;
    if (!a->has_pending)
        a->pending = e->value;
    else if (late == PCOLL_LATE_CARRY)
        a->pending = e->value + a->pending;
    else
        a->dropped += e->value;
    a->has_pending = true;
}

void model_recover(struct ledger *l, uint32_t rank, enum pcoll_late late, int64_t time)
{
    struct ledger_account *a = &l->account[rank];
    uint64_t round = l->begins[l->epoch];
    struct ledger_entry *e = &l->round[round][rank];
    INVARIANT("one history", l->frozen[rank] == round || l->frozen[rank] == round + 1,
              "rank %u continues with round %llu, and has entered %llu", rank,
              (unsigned long long)round, (unsigned long long)l->frozen[rank]);
    if (l->frozen[rank] > round) {
        take_back(a, e, round, late);
        a->redone++;
    }
    *e = (struct ledger_entry){0};
    l->frozen[rank] = round;
    a->slot = NULL;
    a->pending_arrived = a->wanted > round;
    if (a->pending_arrived)
        model_arrival(l, rank, time);
}

void model_enter(struct ledger *l, uint32_t rank)
{
    uint64_t round = l->begins[l->epoch];
    INVARIANT("one history", l->died_in[rank] <= round,
              "a newcomer is rank %u in round %llu, which lives", rank,
              (unsigned long long)round);
    l->entered_in[rank] = round + 1;
    l->frozen[rank] = round;
    l->round[round][rank] = (struct ledger_entry){0};
    l->account[rank] =
        (struct ledger_account){.taken_in = -1, .delivered = round ? round - 1 : 0};
}

void model_lose(struct ledger *l, uint32_t rank)
{
    struct ledger_account *a = &l->account[rank];
    uint64_t round = l->begins[l->epoch];
    l->frozen[rank] = round;
    l->round[round][rank] = (struct ledger_entry){0};
    a->has_pending = a->pending_arrived = false;
    a->pending = 0;
}

/* A round takes exactly the pending deposit, once, in the first round entered. */
static void check_contribution(const struct ledger *l, uint32_t rank, uint64_t round,
                               const struct round_header *h, const double *value)
{
    const struct ledger_account *a = &l->account[rank];
    unsigned long long t = round;
    INVARIANT("staleness", value || !a->has_pending,
              "rank %u misses round %llu although it owes %g", rank, t, a->pending);
    INVARIANT("conservation", a->has_pending || !value,
              "rank %u contributes to round %llu, but owes nothing", rank, t);
    INVARIANT("conservation", !value || *value == a->pending,
              "rank %u contributes %g to round %llu, owes %g", rank, *value, t,
              a->pending);
    bool active = round_has(h, l->ranks, ROUND_ACTIVE, rank);
    bool stored = round_has(h, l->ranks, ROUND_STORED, rank);
    INVARIANT("agreement",
              active == !!value && stored == (value && !a->pending_arrived),
              "rank %u in round %llu: said to be active %d, stored %d; it is %d, %d",
              rank, t, active, stored, !!value, value && !a->pending_arrived);
}

/* Live, not arrived, and not announcing a join or leave. */
static bool is_absent(const struct ledger *l, uint64_t round, uint32_t rank)
{
    const struct ledger_entry *e = &l->round[round][rank];
    bool live[LEDGER_MAX_RANKS];
    reference_live(l, round, live);
    return live[rank] && !e->arrived && !e->joined && !e->left;
}

void model_freeze(struct ledger *l, uint32_t rank, uint64_t round,
                  const struct round_header *h, const void *payload, int64_t time)
{
    struct ledger_account *a = &l->account[rank];
    const double *value = payload;
    INVARIANT("at most once", round == l->frozen[rank],
              "rank %u enters round %llu, expected %llu", rank,
              (unsigned long long)round, (unsigned long long)l->frozen[rank]);
    INVARIANT("liveness", round + 1 < LEDGER_MAX_ROUNDS, "rounds run free");
    check_contribution(l, rank, round, h, value);
    struct ledger_entry *e = &l->round[round][rank];
    e->value = value ? *value : 0;
    e->active = value;
    e->arrived = a->pending_arrived;
    e->joined = round_has(h, l->ranks, ROUND_JOINED, rank);
    e->left = round_has(h, l->ranks, ROUND_LEFT, rank);
    l->frozen[rank]++;
    a->taken_in = value ? (int64_t)round : a->taken_in;
    a->taken += e->active;
    if (is_absent(l, round, rank))
        note_time(l->first_absent, round, time);
    a->has_pending = a->pending_arrived = false;
    a->pending = 0;
}

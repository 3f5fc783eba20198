/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>
#include <string.h>

#include "base/bitset.h"
#include "base/random.h"
#include "check.h"
#include "include/partialcoll.h"

static uint64_t rounds_of(const struct ledger *l)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < l->ranks; r++)
        most = l->frozen[r] > most ? l->frozen[r] : most;
    return most;
}

void ledger_clear(struct ledger *l, uint32_t ranks)
{
    if (!l->round) {
        l->round = calloc(LEDGER_MAX_ROUNDS, sizeof *l->round);
        l->seen = calloc(LEDGER_MAX_ROUNDS, sizeof *l->seen);
        l->first_arrival = calloc(LEDGER_MAX_ROUNDS, sizeof *l->first_arrival);
        l->first_absent = calloc(LEDGER_MAX_ROUNDS, sizeof *l->first_absent);
        EXPECT(l->round && l->seen && l->first_arrival && l->first_absent,
               "no memory for a ledger");
    }
    memset(l->round, 0, (rounds_of(l) + 1) * sizeof *l->round);
    memset(l->seen, 0, rounds_of(l) * sizeof *l->seen);
    memset(l->first_arrival, 0, (rounds_of(l) + 1) * sizeof *l->first_arrival);
    memset(l->first_absent, 0, (rounds_of(l) + 1) * sizeof *l->first_absent);
    memset(l->frozen, 0, sizeof l->frozen);
    memset(l->account, 0, sizeof l->account);
    memset(l->sent, 0, sizeof l->sent);
    memset(l->received, 0, sizeof l->received);
    for (uint32_t r = 0; r < ranks; r++)
        l->account[r].taken_in = -1;
    memset(l->died_in, 0xff, sizeof l->died_in);
    memset(l->entered_in, 0, sizeof l->entered_in);
    memset(l->begins, 0, sizeof l->begins);
    l->epoch = 0;
    l->ranks = ranks;
}

static bool has_died(const struct ledger *l, uint64_t round, uint32_t rank)
{
    return ledger_dead(l, rank, round);
}

bool reference_gone(const struct ledger *l, uint64_t round, uint32_t rank)
{
    const struct ledger_entry *e = &l->round[round][rank];
    return e->joined || e->left || has_died(l, round, rank);
}

void reference_live(const struct ledger *l, uint64_t round, bool *live)
{
    bool anybody = false;
    for (uint32_t r = 0; r < l->ranks; r++) {
        bool back = round == 0 || !reference_gone(l, round - 1, r) ||
                    l->entered_in[r] == round + 1;
        live[r] = back && !has_died(l, round, r);
        anybody = anybody || live[r];
    }
    for (uint32_t r = 0; r < l->ranks && !anybody && round; r++)
        live[r] = !l->round[round - 1][r].left && !has_died(l, round, r);
}

uint64_t reference_epoch(const struct ledger *l, uint64_t round)
{
    uint64_t begin = 0;
    for (uint32_t i = 0; i <= l->epoch; i++)
        begin = l->begins[i] <= round && l->begins[i] > begin ? l->begins[i] : begin;
    return begin;
}

bool reference_came(const struct quorum_case *c, uint32_t rank)
{
    const struct ledger_entry *e = &c->ledger->round[c->round][rank];
    return c->live[rank] && (e->arrived || e->joined || e->left);
}

static uint32_t count_live(const struct quorum_case *c)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < c->ledger->ranks; r++)
        count += c->live[r];
    return count;
}

static uint32_t count_came(const struct quorum_case *c)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < c->ledger->ranks; r++)
        count += reference_came(c, r);
    return count;
}

bool reference_any(const struct quorum_case *c)
{
    return count_came(c) > 0;
}

bool reference_quorum(const struct quorum_case *c)
{
    uint32_t live = count_live(c), ranks = c->ledger->ranks;
    double wanted =
        c->policy.count ? c->policy.count : ceil(c->policy.fraction * ranks - 1e-9);
    return count_came(c) >= (wanted < live ? wanted : live);
}

static uint32_t drawn_ranks(const struct quorum_case *c)
{
    return c->policy.kind == PCOLL_MAJORITY ? 1 : c->policy.count;
}

/* Draw a uniform set of ranks. A drawn rank that is gone is replaced by the next live
 * rank that is not drawn. */
static void draw(const struct quorum_case *c, bool *drawn)
{
    uint32_t ranks = c->ledger->ranks;
    bool picked[LEDGER_MAX_RANKS] = {false};
    uint64_t stream = c->stream;
    for (uint32_t top = ranks - drawn_ranks(c); top < ranks; top++) {
        uint32_t r = splitmix_below(stream, c->round, top + 1);
        picked[picked[r] ? top : r] = true;
        stream = splitmix_mix(stream + 1);
    }
    memset(drawn, 0, LEDGER_MAX_RANKS * sizeof *drawn);
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t i = r;
        while (picked[r] && i < r + ranks && (!c->live[i % ranks] || drawn[i % ranks]))
            i++;
        if (picked[r] && i < r + ranks)
            drawn[i % ranks] = true;
    }
}

/* Return how many of the drawn ranks came. *all is the number of drawn ranks. */
static uint32_t drawn_came(const struct quorum_case *c, uint32_t *all)
{
    bool drawn[LEDGER_MAX_RANKS];
    uint32_t came = 0;
    draw(c, drawn);
    *all = 0;
    for (uint32_t r = 0; r < c->ledger->ranks; r++) {
        *all += drawn[r];
        came += drawn[r] && reference_came(c, r);
    }
    return came;
}

bool reference_may_start(const struct quorum_case *c, uint32_t rank)
{
    bool drawn[LEDGER_MAX_RANKS];
    int kind = c->policy.kind;
    if (kind == PCOLL_SOLO || kind == PCOLL_QUORUM || kind == PCOLL_FULL)
        return true;
    draw(c, drawn);
    return drawn[rank];
}

bool reference_first_of(const struct quorum_case *c)
{
    uint32_t all;
    return drawn_came(c, &all) > 0;
}

bool reference_last_of(const struct quorum_case *c)
{
    uint32_t all;
    return drawn_came(c, &all) == all && all > 0;
}

/* A live rank is absent if it contributed no data. */
static bool absent(const struct ledger *l, uint64_t round, uint32_t rank)
{
    bool live[LEDGER_MAX_RANKS];
    reference_live(l, round, live);
    return live[rank] && !l->round[round][rank].active;
}

bool reference_fresh(const struct quorum_case *c)
{
    uint32_t most = c->policy.max_staleness;
    uint64_t begin = reference_epoch(c->ledger, c->round);
    for (uint32_t r = 0; r < c->ledger->ranks && most; r++) {
        uint64_t t = c->round;
        if (c->round < begin + most || !c->live[r] || reference_gone(c->ledger, t, r))
            continue;
        while (t + most >= c->round && absent(c->ledger, t, r)) {
            if (c->round - t == most)
                return false;
            t--;
        }
    }
    return true;
}

bool reference_full(const struct quorum_case *c)
{
    for (uint32_t r = 0; r < c->ledger->ranks; r++)
        if (c->live[r] && !reference_came(c, r))
            return false;
    return true;
}

static double sum(double a, double b)
{
    return a + b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double greatest(double a, double b)
{
    return a > b ? a : b;
}

combine_fn *reference_op(int op)
{
    static combine_fn *const ops[] = {
        [PCOLL_SUM] = sum, [PCOLL_MIN] = least, [PCOLL_MAX] = greatest};
    return ops[op];
}

/* Reduce b into a. Either may be missing. */
static void absorb(struct ledger_entry *a, const struct ledger_entry *b,
                   combine_fn *combine)
{
    if (a->active && b->active)
        a->value = combine(a->value, b->value);
    else if (b->active)
        *a = *b;
}

void reference_gather(const struct ledger *l, uint64_t round, combine_fn *combine,
                      const uint32_t *domain, struct ledger_entry *endpoints)
{
    for (uint32_t r = 0; r < l->ranks; r++)
        endpoints[r] = (struct ledger_entry){0};
    for (uint32_t r = 0; r < l->ranks; r++)
        if (domain[r] != UINT32_MAX)
            absorb(&endpoints[domain[r]], &l->round[round][r], combine);
}

/* Endpoints beyond the power of two are folded in first, then neighbors at distance 1,
 * 2, 4 …, with the lower one on the left. */
double reference_recdbl(const struct ledger_entry *endpoints, uint32_t n,
                        combine_fn *combine, uint64_t block, uint64_t blocks)
{
    (void)block;
    (void)blocks;
    struct ledger_entry v[LEDGER_MAX_RANKS];
    memcpy(v, endpoints, n * sizeof *v);
    uint32_t power = 1;
    while (2 * power <= n)
        power *= 2;
    for (uint32_t r = power; r < n; r++)
        absorb(&v[r - power], &v[r], combine);
    for (uint32_t hop = 1; hop < power; hop *= 2)
        for (uint32_t r = 0; r < power; r += 2 * hop)
            absorb(&v[r], &v[r + hop], combine);
    return v[0].value;
}

/* The blocks are divided into n segments. Segment s is reduced from endpoint s+1 around
 * the ring to endpoint s. */
double reference_ring(const struct ledger_entry *endpoints, uint32_t n,
                      combine_fn *combine, uint64_t block, uint64_t blocks)
{
    uint32_t segment = 0;
    while ((segment + 1) * blocks / n <= block)
        segment++;
    struct ledger_entry sum = endpoints[(segment + 1) % n];
    for (uint32_t i = 2; i <= n; i++)
        absorb(&sum, &endpoints[(segment + i) % n], combine);
    return sum.value;
}

double reference_in_order(const struct ledger_entry *endpoints, uint32_t n,
                          combine_fn *combine, uint64_t block, uint64_t blocks)
{
    (void)block;
    (void)blocks;
    struct ledger_entry sum = endpoints[0];
    for (uint32_t r = 1; r < n; r++)
        absorb(&sum, &endpoints[r], combine);
    return sum.value;
}

double reference_identity(int op)
{
    return op == PCOLL_SUM ? 0 : op == PCOLL_MIN ? INFINITY : -INFINITY;
}

void reference_check_masks(const struct ledger *l, const pcoll_round *r,
                           const uint64_t *masks)
{
    const uint64_t *stored = masks + bitset_words(l->ranks);
    const uint64_t *failed = stored + bitset_words(l->ranks);
    uint32_t active = 0, late = 0, dead = 0;
    for (uint32_t i = 0; i < l->ranks; i++) {
        const struct ledger_entry *e = &l->round[r->index][i];
        bool died = ledger_dead(l, i, r->index);
        INVARIANT("one history", bitset_has(failed, i) == died && !(died && e->active),
                  "round %llu says of rank %u that it is dead: %d; it is %d",
                  (unsigned long long)r->index, i, bitset_has(failed, i), died);
        dead += died;
        INVARIANT("agreement", died || l->frozen[i] > r->index,
                  "round %llu is over, and rank %u has not entered it",
                  (unsigned long long)r->index, i);
        INVARIANT("agreement",
                  bitset_has(masks, i) == e->active &&
                      bitset_has(stored, i) == (e->active && !e->arrived),
                  "rank %u in the masks of round %llu: %d, stored %d; it was %d, %d", i,
                  (unsigned long long)r->index, bitset_has(masks, i),
                  bitset_has(stored, i), e->active, e->active && !e->arrived);
        active += e->active;
        late += e->active && !e->arrived;
    }
    INVARIANT("one history", r->failed == dead,
              "round %llu says %u have died, it was %u", (unsigned long long)r->index,
              r->failed, dead);
    INVARIANT("agreement", r->active == active && r->stored == late,
              "round %llu says %u active, %u stored; it was %u, %u",
              (unsigned long long)r->index, r->active, r->stored, active, late);
}

void reference_check_same(struct ledger *l, const pcoll_round *r, uint64_t hash)
{
    struct ledger_seen *s = &l->seen[r->index];
    struct ledger_seen now = {true, hash, r->active, r->stored, r->initiator};
    if (!s->known)
        *s = now;
    INVARIANT("agreement",
              s->hash == now.hash && s->active == now.active &&
                  s->stored == now.stored && s->initiator == now.initiator,
              "two ranks saw different rounds %llu", (unsigned long long)r->index);
}

void reference_check_joined(uint64_t *at, uint32_t rank, const pcoll_round *r)
{
    if (!*at)
        *at = r->index + 1;
    INVARIANT("agreement", *at == r->index + 1,
              "rank %u came out of join with round %llu, another one with %llu", rank,
              (unsigned long long)r->index, (unsigned long long)*at - 1);
}

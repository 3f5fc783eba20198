/* SPDX-License-Identifier: Apache-2.0 */
/* The promises of docs/semantics.md, checked from outside. */
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "reference.h"
#include "space.h"
#include "world_state.h"

/* Only whole words are hashed. */
static uint64_t hash_words(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += sizeof hash) {
        uint64_t word;
        memcpy(&word, (const char *)data + i, sizeof word);
        hash = splitmix_mix(hash ^ word) + i;
    }
    return hash;
}

/* Rounds are delivered in order, or the gap is reported. */
static void check_order(struct world *w, int k, uint32_t rank, const pcoll_round *r)
{
    uint64_t *next = &w->expected_next[k][rank];
    INVARIANT("order", r->index == *next + r->lost,
              "rank %u got round %llu after %llu, lost %llu", rank,
              (unsigned long long)r->index, (unsigned long long)*next,
              (unsigned long long)r->lost);
    INVARIANT("order", !r->lost || handle_of(w, k)->deliver == PCOLL_DELIVER_ALL,
              "rank %u lost rounds with deliver=one", rank);
    *next = r->index + 1;
}

/* The result equals the reduction of the mask's contributions, bit for bit. Element i
 * of a deposit is element 0 times a power of two, so it is rounded alike. The order of
 * additions is the same within each block of 64 bytes. */
static void check_result(struct world *w, int k, uint32_t rank, const pcoll_round *r)
{
    const struct world_handle *h = handle_of(w, k);
    const struct space_algorithm *a = &space_algorithms[h->algorithm];
    const double *recv = w->app[rank].recv;
    uint32_t blocks = (w->o.count + 7) / 8;
    double expected = reference_identity(h->op);
    const struct world_layout *layout = layout_of(w, k, r->index);
    struct ledger_entry endpoints[LEDGER_MAX_RANKS];
    reference_gather(&w->ledger[k], r->index, reference_op(h->op), layout->domain,
                     endpoints);
    for (uint32_t i = 0; i < w->o.count; i++) {
        int exponent = r->active ? -(int)(i % 16) : 0;
        if (r->active && i % 8 == 0)
            expected = a->result(endpoints, layout->domains, reference_op(h->op), i / 8,
                                 blocks);
        double e = ldexp(expected, exponent);
        INVARIANT("conservation", recv[i] == e || fabs(recv[i] - e) <= 1e-9 * fabs(e),
                  "element %u of round %llu of handle %d is %.17g, expected %.17g", i,
                  (unsigned long long)r->index, k, recv[i], e);
        INVARIANT("reproducible", recv[i] == e,
                  "element %u of round %llu of handle %d is %.17g, in its order %.17g",
                  i, (unsigned long long)r->index, k, recv[i], e);
    }
}

/* Every rank sees the same bits, masks and counts of a round. */
static void check_agreement(struct world *w, int k, uint32_t rank, const pcoll_round *r,
                            const uint64_t *masks)
{
    size_t words = bitset_words(w->o.ranks);
    uint64_t hash =
        hash_words(1, w->app[rank].recv, w->o.count * sizeof *w->app[rank].recv);
    hash = hash_words(hash, masks, 3 * words * sizeof *masks);
    reference_check_same(&w->ledger[k], r, hash);
}

static uint32_t living_in(const struct ledger *l, uint64_t round)
{
    uint32_t living = 0;
    for (uint32_t i = 0; i < l->ranks; i++)
        living += !ledger_dead(l, i, round);
    return living;
}

/* The initiator is the lowest rank that started the round. If each endpoint decides for
 * itself, it is a rank of an endpoint that was seen to start the round on the wire.
 * Under full it is the lowest rank that had to arrive. */
static void check_initiator(struct world *w, int k, const pcoll_round *r,
                            const struct quorum_case *c)
{
    const pcoll_policy *p = &c->policy;
    bool full = p->kind == PCOLL_FULL, timed = p->deadline > 0;
    bool counted = p->linger > 0 || p->max_staleness || p->kind == PCOLL_QUORUM ||
                   p->kind == PCOLL_LAST_OF;
    const struct world_layout *layout = layout_of(w, k, r->index);
    const uint32_t *domain = layout->domain;
    const struct ledger_entry *of = w->ledger[k].round[r->index];
    uint32_t lowest = 0;
    if (timed || (counted && !full) || (layout->domains == 1 && !full))
        return;
    while (lowest < w->o.ranks &&
           !(full ? reference_came(c, lowest) : of[lowest].started))
        lowest++;
    bool right = r->initiator == (int32_t)lowest;
    for (uint32_t i = lowest; !full && i < w->o.ranks; i++) /* leaders */
        right = right || (of[i].started && domain[i] == domain[r->initiator]);
    bool alone = layout->domains == living_in(&w->ledger[k], r->index);
    INVARIANT("agreement", alone || full ? r->initiator == (int32_t)lowest : right,
              "round %llu of handle %d says that rank %d started it, it was rank %d",
              (unsigned long long)r->index, k, r->initiator, (int)lowest);
}

/* Return whether a rank arrived without data: its deposit was dropped during the round
 * that is repeated. Headers do not show this arrival, so the round may look as if it
 * were below its quorum. */
static bool has_bare_arrival(const struct ledger *l, uint64_t round)
{
    for (uint32_t i = 0; i < l->ranks; i++)
        if (l->round[round][i].arrived && !l->round[round][i].active)
            return true;
    return false;
}

/* The policy was met, or the round reports that its deadline, now past, cut it
 * short. */
static void check_quorum(struct world *w, int k, const pcoll_round *r)
{
    const struct world_handle *h = handle_of(w, k);
    const struct ledger *l = &w->ledger[k];
    bool live[LEDGER_MAX_RANKS];
    reference_live(l, r->index, live);
    struct quorum_case c = {.ledger = l,
                            .round = r->index,
                            .live = live,
                            .stream =
                                splitmix_mix(WORLD_SEED) ^ (uint64_t)(k % w->o.handles),
                            .policy = space_policy_of(h)};
    bool kept = space_policies[h->policy].kept(&c), fresh = reference_fresh(&c);
    bool bare = has_bare_arrival(l, r->index);
    unsigned long long t = r->index;
    INVARIANT("quorum",
              r->below_quorum == !(kept && fresh) || !c.policy.deadline || bare,
              "round %llu of handle %d says below_quorum %d: %s, with %u ranks", t, k,
              r->below_quorum, space_policy_text(h), r->active);
    INVARIANT("quorum", kept || r->below_quorum,
              "round %llu of handle %d: %s, started by rank %d, with %u ranks", t, k,
              space_policy_text(h), r->initiator, r->active);
    INVARIANT("staleness", fresh || r->below_quorum,
              "round %llu of handle %d: %s, and a rank is absent again", t, k,
              space_policy_text(h));
    INVARIANT("quorum", r->initiator >= 0 && reference_came(&c, (uint32_t)r->initiator),
              "round %llu of handle %d started by rank %d, which has not arrived", t, k,
              r->initiator);
    check_initiator(w, k, r, &c);
    INVARIANT("quorum",
              c.policy.deadline > 0 || reference_may_start(&c, (uint32_t)r->initiator),
              "round %llu of handle %d started by rank %d, which was not drawn", t, k,
              r->initiator);
    INVARIANT("quorum",
              !r->below_quorum || bare ||
                  l->first_absent[t] - l->first_arrival[t] >=
                      (int64_t)(c.policy.deadline * 1e9),
              "round %llu of handle %d was cut short %lld ns after the first arrival",
              t, k, (long long)(l->first_absent[t] - l->first_arrival[t]));
}

void check_delivery(struct world *w, int k, uint32_t rank, const pcoll_round *r,
                    const uint64_t *masks)
{
    check_order(w, k, rank, r);
    reference_check_masks(&w->ledger[k], r, masks);
    check_result(w, k, rank, r);
    check_agreement(w, k, rank, r, masks);
    check_quorum(w, k, r);
}

void check_joined(struct world *w, int k, int n, uint32_t rank, const pcoll_round *r)
{
    reference_check_joined(&w->joined_at[k][n], rank, r);
}

void check_closed(struct world *w, int k, uint32_t rank)
{
    const struct ledger *l = &w->ledger[k];
    INVARIANT("isolation", l->sent[rank] == l->received[rank] || crash_unhandled(w),
              "handle %d of rank %u is closed, with %llu of %llu messages received", k,
              rank, (unsigned long long)l->received[rank],
              (unsigned long long)l->sent[rank]);
}

void check_none_waits(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++)
        INVARIANT("liveness",
                  w->dead[r] || (w->app[r].phase == DONE && !is_recovering(w, r)),
                  "deadlock: nothing is left to happen, and rank %u is %s, recovery %d",
                  r, app_phase_name(w->app[r].phase), (int)w->recovery[r].step);
}

/* Each deposit is in the results exactly once, or known to be pending or dropped. */
static void check_account(const struct world *w, int k, uint32_t rank)
{
    const struct ledger *l = &w->ledger[k];
    const struct ledger_account *s = &l->account[rank];
    double in = s->deposited - s->dropped - (s->has_pending ? s->pending : 0), out = 0;
    uint64_t first = l->entered_in[rank] ? l->entered_in[rank] - 1 : 0;
    for (uint64_t t = first; t < l->frozen[rank]; t++)
        out += l->round[t][rank].value;
    double slack = w->o.fractions ? 1e-12 * s->magnitude : 0;
    INVARIANT("conservation", fabs(in - out) <= slack,
              "handle %d: %.17g handed in by rank %u, %.17g came out", k, in, rank,
              out);
    INVARIANT("conservation", w->o.ending != END_JOIN || !s->has_pending,
              "all have joined, and rank %u still owes %g", rank, s->pending);
}

void check_end(struct world *w)
{
    uint32_t first = world_first(w);
    for (int k = 0; k < w->o.handles * w->o.generations; k++) {
        const struct ledger *l = &w->ledger[k];
        for (uint32_t r = first; r < w->o.ranks; r++) {
            if (w->dead[r])
                continue;
            check_account(w, k, r);
            INVARIANT("agreement", l->frozen[r] == l->frozen[first],
                      "rank %u ended in round %llu, rank %u in %llu", r,
                      (unsigned long long)l->frozen[r], first,
                      (unsigned long long)l->frozen[first]);
        }
    }
}

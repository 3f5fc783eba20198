/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The expected outcome of a round, computed from the ledger alone: who was live, whether
 * the policy was met, and the result, bit for bit. Written from docs/semantics.md and
 * docs/algorithms.md, without the code under test.
 */
#pragma once

#include "include/partialcoll.h"
#include "ledger.h"

/* A rank is live in a round if it is not dead and the round before did not announce
 * that it joined or left. If no rank were live, all are that have not left or died. */
void reference_live(const struct ledger *l, uint64_t round, bool *live);

/* Return whether this rank joined with the round, or left or died before it. */
bool reference_gone(const struct ledger *l, uint64_t round, uint32_t rank);
/* Return the first round of the epoch that `round` belongs to. */
uint64_t reference_epoch(const struct ledger *l, uint64_t round);

/* The input of a policy rule. */
struct quorum_case {
    const struct ledger *ledger;
    uint64_t round;
    const bool *live;
    uint64_t stream; /* stream of the random draws */
    pcoll_policy policy;
};

/* Return whether the policy was met, without modifiers. */
typedef bool quorum_rule(const struct quorum_case *c);
quorum_rule reference_any, reference_first_of, reference_last_of, reference_quorum,
    reference_full;

/* Return whether this rank may have started the round, if the policy was met. */
bool reference_may_start(const struct quorum_case *c, uint32_t rank);
/* Return whether this live rank arrived, also to announce a join or leave. */
bool reference_came(const struct quorum_case *c, uint32_t rank);
/* Return whether no rank had been absent for policy.max_staleness rounds of one epoch
 * in a row. */
bool reference_fresh(const struct quorum_case *c);

typedef double combine_fn(double a, double b);
combine_fn *reference_op(int op);

/* Reduce the contributions of each domain in the order of its ranks. domain[rank] is an
 * index into `endpoints`, or UINT32_MAX for none. */
void reference_gather(const struct ledger *l, uint64_t round, combine_fn *combine,
                      const uint32_t *domain, struct ledger_entry *endpoints);

/* Compute block i of `blocks` (64 bytes each) of the result as an algorithm over n
 * endpoints orders its additions. At least one rank must be active. */
typedef double result_rule(const struct ledger_entry *endpoints, uint32_t n,
                           combine_fn *combine, uint64_t block, uint64_t blocks);
result_rule reference_recdbl, reference_ring, reference_in_order;

/* Return the identity element of the op. */
double reference_identity(int op);

/* Check a delivered round. Masks (three, as in pcoll_handle_deliver) and counts equal
 * what the ranks contributed. A hash of the rest is the same on all ranks. All ranks
 * return from join number `at` with the same round. */
void reference_check_masks(const struct ledger *l, const pcoll_round *r,
                           const uint64_t *masks);
void reference_check_same(struct ledger *l, const pcoll_round *r, uint64_t hash);
void reference_check_joined(uint64_t *at, uint32_t rank, const pcoll_round *r);

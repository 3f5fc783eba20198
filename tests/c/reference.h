/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a round has to be, told from the ledger alone: who was live, whether the policy
 * was kept, and the result, bit for bit. Written from docs/semantics.md and
 * docs/algorithms.md, without the code under test.
 */
#pragma once

#include "include/partialcoll.h"
#include "ledger.h"

/* Live in a round: not announced as joined or left by the round before, and not dead.
 * Unless nobody were; then all but those that have left, or are dead. */
void reference_live(const struct ledger *l, uint64_t round, bool *live);

/* Has this rank joined with the round, left, or died before it? */
bool reference_gone(const struct ledger *l, uint64_t round, uint32_t rank);
/* Rounds are counted anew since this one, up to `round`. */
uint64_t reference_epoch(const struct ledger *l, uint64_t round);

/* What a rule is asked about. */
struct quorum_case {
    const struct ledger *ledger;
    uint64_t round;
    const bool *live;
    uint64_t stream; /* of the draws */
    pcoll_policy policy;
};

/* Was the policy met, modifiers aside? */
typedef bool quorum_rule(const struct quorum_case *c);
quorum_rule reference_any, reference_first_of, reference_last_of, reference_quorum,
    reference_full;

/* May this rank have started the round, if the policy was met? */
bool reference_may_start(const struct quorum_case *c, uint32_t rank);
/* Has this rank, live in the round, arrived at it, or come to say that it goes away? */
bool reference_came(const struct quorum_case *c, uint32_t rank);
/* Was nobody absent who had been absent for policy.max_staleness rounds in a row, of one epoch? */
bool reference_fresh(const struct quorum_case *c);

typedef double combine_fn(double a, double b);
combine_fn *reference_op(int op);

/* What the domains of a round come to, each in the order of its ranks: by endpoint,
 * whose numbers are in domain[], by rank (UINT32_MAX: in none). */
void reference_gather(const struct ledger *l, uint64_t round, combine_fn *combine,
                      const uint32_t *domain, struct ledger_entry *endpoints);

/* The result of a round in which somebody was active, in the order of an algorithm over
 * n endpoints: block i of 64 bytes, of `blocks`. */
typedef double result_rule(const struct ledger_entry *endpoints, uint32_t n,
                           combine_fn *combine, uint64_t block, uint64_t blocks);
result_rule reference_recdbl, reference_ring, reference_in_order;

/* What the op gives for nothing. */
double reference_identity(int op);

/* Check what several tests are told of a delivered round: the masks (three, as those of
 * pcoll_handle_deliver) and the counts are what the ranks were seen to put in; it is the same,
 * by a hash of the rest, wherever it is seen; all come out of a join (`at`) with the same one. */
void reference_check_masks(const struct ledger *l, const pcoll_round *r,
                           const uint64_t *masks);
void reference_check_same(struct ledger *l, const pcoll_round *r, uint64_t hash);
void reference_check_joined(uint64_t *at, uint32_t rank, const pcoll_round *r);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain of one rank that is watched: every deposit and every freeze passes through a
 * model of what the contract says about them, written independently of the code under
 * test.
 */
#ifndef PCOLL_TESTS_SPY_H
#define PCOLL_TESTS_SPY_H

#include "../../csrc/domain/domain.h"

enum { SPY_MOST_ROUNDS = 4096 };

/* What a rank put into each round: what a round's result has to be made of. */
struct ledger {
    uint32_t ranks;
    double (*contributed)[64]; /* [round][rank] */
    bool (*active)[64];
    bool (*arrived)[64];
    uint64_t frozen[64];
};

struct spy {
    struct domain base;
    struct domain *real;
    struct ledger *ledger;
    uint32_t rank;
    enum pcoll_late late;
    double pending; /* the model: what the next round must take */
    bool has_pending, pending_arrived;
    double deposited, dropped; /* sums of the values handed in and forgotten */
};

struct spy_arg {
    struct ledger *ledger;
    uint32_t rank;
    struct spy *made;
};

/* A domain_create_fn; arg is a struct spy_arg. The first buffer must be float64, SUM.
 */
int spy_create(const struct round_shape *shape, const pcoll_options *options, void *arg,
               struct domain **out);

void ledger_init(struct ledger *l, uint32_t ranks);
void ledger_free(struct ledger *l);

#endif

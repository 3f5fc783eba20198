/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain of one rank that is watched: every deposit and every freeze passes through a
 * model of what the contract says about them, written independently of the code under
 * test. Memory that nobody may read any more is filled with NaNs.
 */
#ifndef PCOLL_TESTS_SPY_H
#define PCOLL_TESTS_SPY_H

#include "../../csrc/domain/domain.h"
#include "ledger.h"

struct spy {
    struct domain base;
    struct domain *real;
    struct ledger *ledger;
    uint32_t rank;
    enum pcoll_late late;
    struct ledger_account *account; /* in the ledger */
    uint64_t published, delivered;  /* rounds */
    int64_t taken_in;               /* the round that took the last deposit, or -1 */
    enum pcoll_deliver deliver;
    struct round_header *frozen; /* what the round in progress reads */
};

struct spy_arg {
    struct ledger *ledger;
    uint32_t rank;
};

/* A domain_create_fn; arg is a struct spy_arg. The first buffer must be float64; with
 * late=carry its op is SUM. */
int spy_create(const struct round_shape *shape, const pcoll_options *options, void *arg,
               struct domain **out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain of one rank that is watched: every deposit and every freeze passes through a
 * model of what the contract says about them, written independently of the code under
 * test. Memory that nobody may read any more is filled with NaNs.
 */
#ifndef PCOLL_TESTS_SPY_H
#define PCOLL_TESTS_SPY_H

#include "../../csrc/allreduce/vertex.h"
#include "../../csrc/transport/sim.h"
#include "ledger.h"

struct spy {
    struct domain base;
    struct domain *real;
    struct ledger *ledger;
    struct sim *sim;
    uint32_t rank;
    enum pcoll_late late;
    struct ledger_account *account; /* in the ledger */
    uint64_t published, delivered;  /* rounds */
    int64_t taken_in;               /* the round that took the last deposit, or -1 */
    enum pcoll_deliver deliver;
    uint32_t history;
    pcoll_stats expected;
    struct vertex **vertex;      /* this domain's; NULL while it is being made */
    struct round_header *frozen; /* what the round in progress reads */
};

struct spy_arg {
    struct ledger *ledger;
    struct sim *sim; /* for its clock */
    uint32_t rank;
    struct vertex **vertex; /* where its vertex will stand */
};

/* A domain_create_fn; arg is a struct spy_arg. The first buffer must be float64; with
 * late=carry its op is SUM. */
int spy_create(const struct round_shape *shape, const pcoll_options *options, void *arg,
               struct domain **out);

#endif

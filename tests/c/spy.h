/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watched domain, seen from one rank. Every deposit and every freeze is compared with a
 * model of the contract (model.h), which is independent of the code under test. Memory that
 * must not be read any more is filled with NaNs.
 */
#pragma once

#include "allreduce/endpoint.h"
#include "transport/sim/sim_transport.h"
#include "ledger.h"

/* The place of a domain and its connections. */
struct spy_arg {
    struct ledger *ledger;
    struct sim *sim; /* for its clock */
    uint32_t rank;
    struct endpoint *own;        /* its endpoint, without the domain */
    struct endpoint **endpoints; /* the endpoints of the handle by rank */
    uint32_t epoch;
    bool grows;   /* its use is decided later, by spy_settle */
    void *memory; /* shared by the domain; NULL: one rank, which allocates it */
    void *arg;    /* argument of both hooks, as in node.h */
    void (*wake)(void *arg, uint32_t rank);
    void (*alert)(void *arg, uint32_t rank);
};

/* A domain_create_fn whose arg is a struct spy_arg. The first buffer must be float64.
 * With late=carry its op must be SUM. */
domain_create_fn spy_create;

/* Return true once for each round whose slots already hold NaNs although the round ends
 * only at the next point of interleaving. A rank that died there would leave NaNs to
 * the ranks that restore its deposits. */
bool spy_round_ends(void);
/* Let `d` succeed `old` (NULL: the rank is a newcomer) after the decision. */
void spy_settle(struct domain *d, struct domain *old);
/* The rank died, or the domain was never used. */
void spy_abandon(struct domain *d);
/* Return the number of rounds complete in this domain. */
uint64_t spy_complete_of(struct domain *d);

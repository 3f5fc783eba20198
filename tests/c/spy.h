/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain that is watched, from one rank: every deposit and every freeze passes
 * through a model of what the contract says about them (model.h), written independently
 * of the code under test. Memory that nobody may read any more is filled with NaNs.
 */
#pragma once

#include "allreduce/endpoint.h"
#include "transport/sim/sim_transport.h"
#include "ledger.h"

/* Where a domain is, and how it reaches the others. */
struct spy_arg {
    struct ledger *ledger;
    struct sim *sim; /* for its clock */
    uint32_t rank;
    struct endpoint *own;        /* its endpoint, without the domain */
    struct endpoint **endpoints; /* of the handle by rank, as it goes on */
    uint32_t epoch;
    bool grows;   /* whether it is to be is settled later: spy_settle */
    void *memory; /* shared by the domain; NULL: of one rank, which allocates it */
    void *arg;    /* of the two: as in node.h */
    void (*wake)(void *arg, uint32_t rank);
    void (*alert)(void *arg, uint32_t rank);
};

/* A domain_create_fn; arg is a struct spy_arg. The first buffer must be float64; with
 * late=carry its op is SUM. */
domain_create_fn spy_create;

/* At the next point of interleaving a round ends whose slots hold NaNs already: who dies in
 * between would leave them to those who take them back. True once for each. */
bool spy_round_ends(void);
/* It follows the other (NULL: of a newcomer) after all. */
void spy_settle(struct domain *d, struct domain *old);
/* Its rank has died, or it never got as far as to be used. */
void spy_abandon(struct domain *d);
/* Rounds complete here. */
uint64_t spy_complete_of(struct domain *d);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain that is watched, from one rank: every deposit and every freeze passes
 * through a model of what the contract says about them (model.h), written independently
 * of the code under test. Memory that nobody may read any more is filled with NaNs.
 *
 * spy.c watches what its application calls; spy_node.c what closes and drives its rounds.
 */
#ifndef PCOLL_TESTS_SPY_H
#define PCOLL_TESTS_SPY_H

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

struct spy {
    struct domain base;
    struct domain_ops ops; /* of the base */
    struct domain *real;
    struct spy_arg hooks;
    struct ledger *ledger;
    struct ledger_account *account; /* in the ledger */
    uint32_t rank;
    enum pcoll_late late;
    enum pcoll_deliver deliver;
    uint32_t history;
    bool over;      /* its rank has died, or another domain follows */
    uint64_t began; /* first round of this domain */
    pcoll_stats expected;
    struct round_header *frozen; /* what the round in progress reads */
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

/* Between the two files. */

static inline struct spy *spy_of(struct domain *d)
{
    return (struct spy *)d;
}

/* The watched domain's operations for its application, filled in. */
struct domain_ops spy_member_ops(void);
/* A rank that frees its handle holds nobody up any more. */
bool spy_closing(const struct spy *s, uint32_t rank);
/* The round begins: nothing of its result is there. It is over: nobody reads this. */
void spy_poison(const struct round_shape *shape, const struct round_header *h);

/* spy_node.c */
int spy_node_create(struct spy *s, const struct round_shape *shape,
                    const pcoll_options *options);
struct domain_ops spy_node_ops(void);
/* Rounds complete, as the shared memory says. */
uint64_t spy_node_complete(const struct spy *s);

#endif

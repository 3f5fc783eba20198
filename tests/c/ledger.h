/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The observed events of one handle in a simulated world: the contribution of each rank to
 * each round. reference.h computes the expected results from them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { LEDGER_MAX_ROUNDS = 4096, LEDGER_MAX_RANKS = 130, LEDGER_MAX_EPOCHS = 16 };

struct ledger_entry {
    double value; /* of the first element */
    bool active, arrived, joined, left;
    bool started; /* sent the first activation: its endpoint started by itself */
};

/* The deposits of one rank that no round has taken yet, and their totals. */
struct ledger_account {
    double pending; /* what the next round must take */
    bool has_pending, pending_arrived;
    double deposited, dropped; /* sums of the values deposited and of those dropped */
    double magnitude;          /* sum of absolute values: bounds rounding */
    uint64_t delivered;        /* rounds */
    int64_t taken_in;          /* the round that took the last deposit, or -1 */
    uint64_t taken;            /* rounds that took a deposit */
    uint64_t wanted;           /* complete rounds for which its last call waits */
    uint64_t redone;           /* rounds that were repeated after a failure */
    void *slot;                /* slot in shared memory that the last round read */
};

/* The first report of a round to any rank. */
struct ledger_seen {
    bool known;
    uint64_t hash; /* of result and masks */
    uint32_t active, stored;
    int32_t initiator;
};

struct ledger {
    uint32_t ranks;
    struct ledger_entry (*round)[LEDGER_MAX_RANKS]; /* [round][rank] */
    struct ledger_seen *seen;                       /* [round] */
    uint64_t frozen[LEDGER_MAX_RANKS];              /* rounds entered, by rank */
    int64_t *first_arrival, *first_absent; /* by round: time of the first arrival,
                                            * time at which the first absent rank
                                            * entered; 0: none yet */
    struct ledger_account account[LEDGER_MAX_RANKS];
    uint64_t sent[LEDGER_MAX_RANKS];     /* control messages sent to a rank */
    uint64_t received[LEDGER_MAX_RANKS]; /* control messages received by a rank */
    /* died_in: the first round without the rank, which has died; UINT64_MAX: it lives.
     * entered_in: 1 + the first round in which a newcomer has its number; 0: none. */
    uint64_t died_in[LEDGER_MAX_RANKS], entered_in[LEDGER_MAX_RANKS];
    /* The first round after the start and after each recovery. */
    uint64_t begins[LEDGER_MAX_EPOCHS];
    uint32_t epoch; /* of the last recovery */
};

/* Return whether no process has this rank in the round. */
static inline bool ledger_dead(const struct ledger *l, uint32_t rank, uint64_t round)
{
    uint64_t entered = l->entered_in[rank];
    return l->died_in[rank] <= round && !(entered && round + 1 >= entered);
}

/* Empty a ledger. A zeroed ledger gets memory, which is kept from run to run. */
void ledger_clear(struct ledger *l, uint32_t ranks);

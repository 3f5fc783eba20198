/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was seen to happen to one handle of a simulated world: what each rank put into
 * each round. What a round's result has to be follows from it (reference.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { LEDGER_MAX_ROUNDS = 4096, LEDGER_MAX_RANKS = 130, LEDGER_MAX_EPOCHS = 16 };

struct ledger_entry {
    double value; /* of the first element */
    bool active, arrived, joined, left;
    bool started; /* it sent the first activation: its endpoint starts by itself */
};

/* What a rank has handed in and not yet seen in a round. */
struct ledger_account {
    double pending; /* what the next round must take */
    bool has_pending, pending_arrived;
    double deposited, dropped; /* sums of the values handed in and forgotten */
    double magnitude;          /* of what these sums were made of: bounds rounding */
    uint64_t delivered;        /* rounds */
    int64_t taken_in;          /* the round that took the last deposit, or -1 */
    uint64_t taken;            /* rounds that took one */
    uint64_t wanted;           /* its last call waits for so many complete rounds */
    uint64_t redone;           /* rounds that did not count after all */
    void *slot;                /* in shared memory, that the last round has read */
};

/* What the first rank that was given a round was told. */
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
    int64_t *first_arrival, *first_absent; /* arrival, entry of one that has not
                                             arrived: times, by round; 0: none yet */
    struct ledger_account account[LEDGER_MAX_RANKS];
    uint64_t sent[LEDGER_MAX_RANKS];     /* control messages to a rank */
    uint64_t received[LEDGER_MAX_RANKS]; /* by it */
    /* From this round on a rank has died; UINT64_MAX: it lives. The round, + 1, from which on
     * another one has its number; 0: nobody. */
    uint64_t died_in[LEDGER_MAX_RANKS], entered_in[LEDGER_MAX_RANKS];
    /* The rounds with which each recovery, and the start, began. */
    uint64_t begins[LEDGER_MAX_EPOCHS];
    uint32_t epoch; /* of the last one */
};

/* Is nobody that rank in this round? */
static inline bool ledger_dead(const struct ledger *l, uint32_t rank, uint64_t round)
{
    uint64_t entered = l->entered_in[rank];
    return l->died_in[rank] <= round && !(entered && round + 1 >= entered);
}

/* Empties a ledger; what is zero gets its memory, which is then kept from run to run.
 */
void ledger_clear(struct ledger *l, uint32_t ranks);

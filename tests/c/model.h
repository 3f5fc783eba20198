/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of the contract for one rank's deposits: which are in time, what the next round
 * must take, and what the round reports about them. The results are noted in the ledger.
 */
#pragma once

#include "domain/domain.h"
#include "ledger.h"

/* A deposit that was just made. */
struct model_deposit {
    uint32_t rank;
    double value; /* of the first element */
    enum pcoll_late late;
    enum pcoll_deliver deliver;
    uint64_t complete; /* number of complete rounds */
    int64_t began;     /* time at which the call began */
};

/* Check the outcome of a deposit. */
void model_deposit(struct ledger *l, const struct model_deposit *d,
                   enum deposit_outcome outcome);

/* Note that a rank arrives at the next round that it enters. */
void model_arrival(struct ledger *l, uint32_t rank, int64_t time);

/* Begin an epoch with this round after ranks (a set) have died. Results of this round
 * that were seen before no longer count. Do nothing if the epoch has begun. */
void model_begin(struct ledger *l, uint32_t epoch, uint64_t round,
                 const uint64_t *failed);
/* Let a rank continue in the new epoch. A deposit that the repeated round had taken is
 * pending again, and a rank that waits has arrived. */
void model_recover(struct ledger *l, uint32_t rank, enum pcoll_late late, int64_t time);

/* Give this number to a newcomer, which inherits no deposits. */
void model_enter(struct ledger *l, uint32_t rank);

/* A rank of the new epoch died before it could bring its deposits. */
void model_lose(struct ledger *l, uint32_t rank);

/* Check that the round takes exactly the pending deposit when a rank enters it.
 * `payload` is NULL if the rank contributes nothing. `h` is the header. */
void model_freeze(struct ledger *l, uint32_t rank, uint64_t round,
                  const struct round_header *h, const void *payload, int64_t time);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the contract says about one rank's deposits: which are in time, what the next
 * round must take, what it has to say about them. Notes it in the ledger.
 */
#pragma once

#include "domain/domain.h"
#include "ledger.h"

/* A deposit that has just been handed in. */
struct model_deposit {
    uint32_t rank;
    double value; /* of the first element */
    enum pcoll_late late;
    enum pcoll_deliver deliver;
    uint64_t complete; /* rounds */
    int64_t began;     /* time of the call */
};

/* Was this the right outcome? */
void model_deposit(struct ledger *l, const struct model_deposit *d,
                   enum deposit_outcome outcome);

/* Somebody arrives at a round, whose number is that of the rounds entered. */
void model_arrival(struct ledger *l, uint32_t rank, int64_t time);

/* Ranks have died (a set), and the others begin an epoch with this round: whatever was seen
 * of it was not to be. The number of the epoch; nothing happens when it has begun. */
void model_begin(struct ledger *l, uint32_t epoch, uint64_t round,
                 const uint64_t *failed);
/* A rank goes on in it. What the round had taken of it is owed again, and who waits for it
 * has arrived. */
void model_recover(struct ledger *l, uint32_t rank, enum pcoll_late late, int64_t time);

/* A newcomer has this number in it, and nothing of who had it before. */
void model_enter(struct ledger *l, uint32_t rank);

/* A rank is in it that has died before it could bring anything. */
void model_lose(struct ledger *l, uint32_t rank);

/* A rank has entered a round: takes the round what it owes, and no more? The payload,
 * or NULL if it contributes nothing; what the header says of it. */
void model_freeze(struct ledger *l, uint32_t rank, uint64_t round,
                  const struct round_header *h, const void *payload, int64_t time);

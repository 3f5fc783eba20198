/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one rank owes the next round: which of its slots holds the fresh deposit, which
 * is frozen under a round, which is free to be written.
 *
 *   pending  the deposit that the next activation takes, or none
 *   frozen   the one that the round in progress reads, or none (at most one: a round is
 *            activated only after the one before it is over)
 *   user     with library-owned send buffers: the slot the application is filling
 *
 * Only the application's thread writes slots, and only ones that are none of the above,
 * so a deposit can be written without a lock. A carry reads `pending` while it writes
 * the sum elsewhere; if an activation has frozen `pending` meanwhile, the plan is out
 * of date and the new deposit goes in alone: it is never counted twice. Three slots are
 * enough for that, four where the application fills one in place.
 *
 * Pure bookkeeping; its owner brings the lock under which plan, publish, freeze and
 * thaw run.
 */
#ifndef PCOLL_PROTOCOL_CONTRIBUTION_H
#define PCOLL_PROTOCOL_CONTRIBUTION_H

#include <stdbool.h>

#include "include/partialcoll.h"

enum { NO_SLOT = -1, MAX_SLOTS = 4 };

struct contribution {
    enum pcoll_late late;
    int slots;
    int pending, frozen, user;
};

/* How to write a deposit: into `target`; the sum of `carried` and the new, or the new.
 */
struct deposit_plan {
    int target;
    int carried;
};

void contribution_init(struct contribution *c, enum pcoll_late late, bool owned_send);
int contribution_slots(bool owned_send);

struct deposit_plan contribution_plan(const struct contribution *c);

/* Is the plan, made some time ago, still right? Else plan again. */
bool contribution_plan_holds(const struct contribution *c, struct deposit_plan plan);

/* The deposit written by the plan becomes the pending one. */
void contribution_publish(struct contribution *c, struct deposit_plan plan);

/* An activation takes the pending deposit: its slot, or NO_SLOT. */
int contribution_freeze(struct contribution *c);
/* The round that took it is over. */
void contribution_thaw(struct contribution *c);

#endif

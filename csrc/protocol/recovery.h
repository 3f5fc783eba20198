/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a rank's view of the rounds when others have died and those who are
 * left go on (docs/faults.md): the old epoch has stopped, so nothing changes here but by
 * the rank's own application.
 *
 * C is the most rounds that any survivor has completed. All survivors take part in the
 * data of every round, so each of them has completed C or C - 1 rounds, and has frozen
 * round C - 1 (counted from 0) if C - 1 is what it has completed: it is then given the
 * result of that round. What has been frozen for round C, whose result nobody has seen,
 * goes back to where it came from:
 *
 *   - the frozen deposit is pending again, with a newer one by the handle's rule for late
 *     deposits, so it is in exactly one round that is delivered;
 *   - whoever waits for round C counts as arrived at it, even with a deposit that came when
 *     the round was under way already, or that was dropped for that reason: the round
 *     begins anew, and nobody else may ever come;
 *   - whoever joins announces it anew: it may be that all who had not joined have died.
 *
 * Pure: decided without I/O.
 */
#ifndef PCOLL_PROTOCOL_RECOVERY_H
#define PCOLL_PROTOCOL_RECOVERY_H

#include "protocol/member.h"

/* Which slots, numbered as they were, make up the deposit that is pending now: the sum of
 * both, in this order, or the one that is there; it is in slot `into`, which is NO_SLOT
 * where nothing is pending. */
struct recovered_deposit {
    int into, older, newer;
};

/* `complete` is C; last is the header of round C - 1 (NULL: C is 0), failed who has died. */
struct recovered_deposit member_recover(struct member *m, uint64_t complete,
                                        const struct round_header *last,
                                        const uint64_t *failed, uint32_t ranks);

/* Of one that takes the number of a dead rank: it is as one that has made as many calls as there
 * are rounds, and has not read the last one. `m` is new. */
void member_enter(struct member *m, uint64_t complete, const struct round_header *last,
                  const uint64_t *failed, uint32_t ranks);

#endif

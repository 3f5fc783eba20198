/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decision on a group's round: one word, on which all members agree.
 *
 * A round may count only if every member has all its results, else some would go on
 * with the average and others without, and the sum over all would change. The word is
 * in the leader's memory, in place `seq mod DECISIONS`:
 *
 *   seq << 32 | abort << 31 | done
 *
 *   open    the leader, before it sends the list: seq, nobody done
 *   done    a member, once, when it has fetched all that it needs: done + 1, unless
 *           aborted
 *   abort   any member, when it has waited long enough: abort, unless all are done
 *
 * Invariant: all done and abort exclude each other, and neither is ever left. So
 * whoever reads one of them knows what all the others will read.
 *
 * Here is what a vote makes of a word; group/vote.h has it in the window. A word that
 * has been opened again for a later round is EXPIRED: only a member that was away for
 * DECISIONS groups of this leader finds that, and the others told it the decision
 * meanwhile.
 *
 * A member that has not marked itself done may leave the round without asking: it can
 * never count any more.
 */
#ifndef PCOLL_PROTOCOL_GROUP_DECISION_H
#define PCOLL_PROTOCOL_GROUP_DECISION_H

#include <stdint.h>

enum { DECISIONS = 64 };

enum decision { DECISION_PENDING, DECISION_COMMIT, DECISION_ABORT, DECISION_EXPIRED };

/* What is added to the word. */
enum decision_vote { VOTE_NOTHING, VOTE_DONE, VOTE_ABORT, VOTE_OPEN };

/* The word after a vote; *decision: what it says then. Pure. */
int64_t group_window_after_vote(int64_t word, uint32_t seq, uint32_t members,
                                enum decision_vote vote, enum decision *decision);

#endif

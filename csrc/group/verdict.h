/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verdict on a group's round: one word, on which all members agree.
 *
 * A round may count only if every member has all its results, else some would go on
 * with the average and others without, and the sum over all would change. The word is
 * in the leader's memory, in place `seq mod VERDICTS`:
 *
 *   seq << 32 | void << 31 | done
 *
 *   open   the leader, before it sends the list: seq, nobody done
 *   done   a member, once, when it has fetched all that it needs: done + 1, unless void
 *   void   any member, when its patience has ended: void, unless all are done
 *
 * Invariant: all done and void exclude each other, and neither is ever left. So
 * whoever reads one of them knows what all the others will read.
 *
 * Who writes: everybody, by compare-and-swap alone. Orderings: one word, and what a
 * member has fetched is its own; nothing else hangs on it. A stale read is harmless:
 * the swap that is built on it fails. A word that has been opened again for a later
 * round is GONE: only a member that was away for VERDICTS groups of this leader finds
 * that, and the others told it the verdict meanwhile.
 *
 * A member that has not marked itself done may leave the round without asking: it can
 * never count any more.
 */
#ifndef PCOLL_GROUP_VERDICT_H
#define PCOLL_GROUP_VERDICT_H

#include "../gossip/window.h"

enum { VERDICTS = 64 };

enum verdict { VERDICT_OPEN, VERDICT_COMMIT, VERDICT_VOID, VERDICT_GONE };

/* What is added to the word. */
enum verdict_vote { VOTE_NOTHING, VOTE_DONE, VOTE_VOID, VOTE_OPEN };

/* The word after a vote; *verdict: what it says then. Pure. */
int64_t verdict_after(int64_t word, uint32_t seq, uint32_t members,
                      enum verdict_vote vote, enum verdict *verdict);

/* Leader: open the word of this group. */
int verdict_open(struct window *w, size_t words_at, uint32_t seq);

/* Vote in the memory of the leader. */
int verdict_vote(struct window *w, uint32_t leader, size_t words_at, uint32_t seq,
                 uint32_t members, enum verdict_vote vote, enum verdict *verdict);

#endif

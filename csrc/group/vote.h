/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Votes on the word of a decision (protocol/group/decision.h), which lies in the window
 * of the leader.
 *
 * Who writes: everybody, by compare-and-swap alone. Orderings: one word, and what a
 * member has fetched is its own; nothing else hangs on it. A stale read is harmless:
 * the swap that is built on it fails.
 */
#ifndef PCOLL_GROUP_VOTE_H
#define PCOLL_GROUP_VOTE_H

#include "protocol/group/decision.h"
#include "transport/window.h"

/* Leader: open the word of this group. */
int group_window_open_decision(struct window *w, size_t words_at, uint32_t seq);

/* Vote in the memory of the leader. */
int group_window_vote(struct window *w, uint32_t leader, size_t words_at, uint32_t seq,
                      uint32_t members, enum decision_vote vote,
                      enum decision *decision);

#endif

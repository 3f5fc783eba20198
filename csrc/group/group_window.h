/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window of each rank: the decisions of the groups that the rank leads, its part of
 * the directory, its input, and the part of the result that it has reduced. The layout
 * is the same on all ranks.
 *
 * The application writes the input before a round, and the members read it during the
 * round. The driver writes the part, and the members read it. Both may be written again
 * as soon as the round is decided: a member that still reads then is in a void round
 * and discards what it reads.
 *
 * The decision on a round. A round may count only if every member has all its results.
 * Otherwise some members would go on with the average and others without it, and the
 * sum over all ranks would change. The members agree by one word in the leader's
 * window, at place `seq mod DECISIONS`:
 *
 *   seq << 32 | abort << 31 | done
 *
 *   open    The leader writes seq, with no member done, before it sends the list.
 *   done    A member adds 1 to done, once, when it has fetched all that it needs,
 *           unless the round is aborted.
 *   abort   Any member sets abort when it has waited long enough, unless all are done.
 *
 * Invariant: "all done" and "abort" exclude each other, and a word never leaves either
 * state. So a member that reads one of them knows what all other members will read.
 * Every rank changes the word by compare-and-swap only. No other data is ordered by the
 * word, because a member has already copied what it fetched. A stale read is harmless:
 * the swap that is based on it fails.
 *
 * A member that has not marked itself done may leave the round without asking, because
 * the round can no longer count. A word that was opened again for a later round is
 * EXPIRED. Only a member that was suspended for DECISIONS groups of its leader sees
 * that, and the others have sent it the decision in the meantime.
 *
 * The directory. With dynamic keys ranks find each other here (Ryabinin et al.,
 * appendix B.5; a table in windows takes the place of a DHT, because the ranks of an
 * MPI job are known). A hash of key and round names the rank that keeps the entries
 * under a key:
 *
 *   entry r   written by rank r, three words: tag(key, round), time, tag ^ mix(time)
 *   counts    the number of ranks that have declared themselves for a round, under any
 *             key: round mod 2^32 << 32 | number, at place `round mod COUNTS` of the
 *             rank that a hash of the round names
 *
 * A rank writes its entry, waits until it is complete, and then counts itself. So a
 * rank that has seen all ranks counted finds all entries that will ever exist, and need
 * not wait for more. Rank r alone writes entry r, once per round. All ranks change
 * counts by compare-and-swap. An entry that is read while it is written does not match
 * its third word; the reader ignores it and finds it with its next query. A stale entry
 * has another tag. A count of an older round is overwritten, a count of a newer round
 * is kept.
 *
 * Near and far. A rank accesses the window of a rank on its own node itself, and has
 * the answer at once. It asks a rank on another node by a message to do the same
 * access, and the answer comes by a message (*answered is false, or the decision is
 * pending).
 */
#ifndef PCOLL_GROUP_WINDOW_H
#define PCOLL_GROUP_WINDOW_H

#include "protocol/group/matchmaking.h"
#include "transport/window.h"

struct group;
struct group_message;

enum { DECISIONS = 64, COUNTS = 16, ENTRY_WORDS = 3 };

enum decision { DECISION_PENDING, DECISION_COMMIT, DECISION_ABORT, DECISION_EXPIRED };

/* What a vote does to the word. */
enum decision_vote { VOTE_NOTHING, VOTE_DONE, VOTE_ABORT, VOTE_OPEN };

/* The name of a group, unique in the lifetime of the object. */
struct group_name {
    uint32_t leader, seq;
};

struct group_key {
    uint64_t round, key;
};

struct group_layout {
    size_t element, count; /* Bytes of an element; elements. */
    size_t decisions_at, directory_at, input_at, part_at; /* Offsets in bytes. */
    size_t bytes;                                         /* Of the whole window. */
};

/* Memory for a query of the directory. */
struct group_remote {
    struct match_entry *served; /* Entries found for a rank on another node. */
    int64_t *words;             /* Entries as they are in the window. */
};

struct group_layout group_window_layout(uint32_t ranks, size_t element, size_t count);

/* Return the word after a vote; *decision is what it says then. Pure. */
int64_t group_window_after_vote(int64_t word, uint32_t seq, uint32_t members,
                                enum decision_vote vote, enum decision *decision);
/* Open the word of a group that this rank leads. */
int group_window_open_decision(struct window *w, size_t words_at, uint32_t seq);
/* Vote in the window of the leader. */
int group_window_vote(struct window *w, uint32_t leader, size_t words_at, uint32_t seq,
                      uint32_t members, enum decision_vote vote,
                      enum decision *decision);

/* Return the rank that keeps the entries under a key, or the count of a round. */
uint32_t group_window_directory_host(const struct group_key *key, uint32_t ranks);
uint32_t group_window_directory_counter(uint64_t round, uint32_t ranks);
/* Write the entry of `rank` at the host. */
int group_window_declare(struct window *w, size_t at, uint32_t host, uint32_t rank,
                         const struct group_key *key, int64_t time);
/* Add `more` (-1, 0 or 1) to the count of a round. *counted is the new count, or 0 if
 * the word already counts a newer round. */
int group_window_count(struct window *w, size_t at, uint32_t counter, uint64_t round,
                       int32_t more, uint32_t *counted);
/* Read the entries under a key. `words` has room for all entries of the host, `found`
 * for all ranks; *count is the number of entries found. */
int group_window_query(struct window *w, size_t at, uint32_t host,
                       const struct group_key *key, int64_t *words,
                       struct match_entry *found, uint32_t *count);

/* Do the above in the window of a near rank, or ask a far rank for it. */
int group_window_request_vote(struct group *g, struct group_name name,
                              enum decision_vote vote, uint32_t members,
                              enum decision *decision);
int group_window_request_declare(struct group *g, const struct group_key *key,
                                 int64_t time, bool *answered);
int group_window_request_count(struct group *g, uint64_t round, int32_t more,
                               uint32_t *counted, bool *answered);
int group_window_request_query(struct group *g, const struct group_key *key,
                               struct match_entry *entries, uint32_t *found,
                               bool *answered);
/* Serve a WIRE_DECLARE, WIRE_COUNT or WIRE_QUERY of a rank on another node. */
int group_window_serve(struct group *g, const struct group_message *m);

#endif

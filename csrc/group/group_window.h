/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank does in another's window, near or far: to a near one itself, and it is
 * done at once; a far one is asked by a message to do it to its own window, and answers
 * by a message. The steps that use it are the same (*answered, or a decision that is
 * not pending: this one was near).
 */
#ifndef PCOLL_GROUP_WINDOW_H
#define PCOLL_GROUP_WINDOW_H

#include <stdint.h>

#include "protocol/group/matchmaking.h"
#include "transport/window.h"

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
 * Here is what a vote makes of a word; group/group_window.h has it in the window. A word that
 * has been opened again for a later round is EXPIRED: only a member that was away for
 * DECISIONS groups of this leader finds that, and the others told it the decision
 * meanwhile.
 *
 * A member that has not marked itself done may leave the round without asking: it can
 * never count any more.
 */
enum { DECISIONS = 64 };

enum decision { DECISION_PENDING, DECISION_COMMIT, DECISION_ABORT, DECISION_EXPIRED };

/* What a group is called. */
struct group_name {
    uint32_t leader, seq;
};

struct group;
struct group_message;

/* What is added to the word. */
enum decision_vote { VOTE_NOTHING, VOTE_DONE, VOTE_ABORT, VOTE_OPEN };

/* The word after a vote; *decision: what it says then. Pure. */
int64_t group_window_after_vote(int64_t word, uint32_t seq, uint32_t members,
                                enum decision_vote vote, enum decision *decision);

/*
 * Votes on the word of a decision (group/group_window.h), which lies in the window
 * of the leader.
 *
 * Who writes: everybody, by compare-and-swap alone. Orderings: one word, and what a
 * member has fetched is its own; nothing else hangs on it. A stale read is harmless:
 * the swap that is built on it fails.
 */

/* Leader: open the word of this group. */
int group_window_open_decision(struct window *w, size_t words_at, uint32_t seq);

/* Vote in the memory of the leader. */
int group_window_vote(struct window *w, uint32_t leader, size_t words_at, uint32_t seq,
                      uint32_t members, enum decision_vote vote,
                      enum decision *decision);

/*
 * The directory: where ranks with dynamic keys find each other (Ryabinin et al.,
 * appendix B.5; a table in the ranks' windows in the place of a DHT, since an MPI world
 * is known). What is said under a key lies at the rank that a hash of key and round
 * names:
 *
 *   entry r   of rank r, three words: tag(key, round), time, tag ^ mix(time)
 *   counts    how many ranks have declared themselves for a round, under whatever key:
 *             round mod 2^32 << 32 | number, in place `round mod COUNTS`, at the rank
 *             that a hash of the round names
 *
 * A rank writes its entry, which is complete there, and then counts itself. So who has
 * seen that all have been counted finds in the entries all that will ever come, and
 * need not wait for more.
 *
 * Who writes: entry r, rank r alone, once for a round; counts, everybody by
 * compare-and-swap. An entry that is read while it is written does not fit its third
 * word and is taken for none: it is read again with the next look. A stale entry has
 * another tag. A count of an older round is written over; a newer one is left alone.
 */

enum { COUNTS = 16, ENTRY_WORDS = 3 };

/* Where it begins in every window. */
static inline size_t group_window_directory_bytes(uint32_t ranks)
{
    return (COUNTS + (size_t)ENTRY_WORDS * ranks) * sizeof(int64_t);
}

struct group_key {
    uint64_t round, key;
};

/* Who keeps the entries under a key, the count of a round. */
uint32_t group_window_directory_host(const struct group_key *key, uint32_t ranks);
uint32_t group_window_directory_counter(uint64_t round, uint32_t ranks);

/* Write the entry of `rank` at the host. */
int group_window_declare(struct window *w, size_t at, uint32_t host, uint32_t rank,
                         const struct group_key *key, int64_t time);
/* Count so many more (-1: one that had been counted goes) at the counter; *counted: how
 * many there are then (0: it counts for a newer round). */
int group_window_count(struct window *w, size_t at, uint32_t counter, uint64_t round,
                       int32_t more, uint32_t *counted);
/* The entries under a key. words: room for all of them as they lie there; found: for
 * all ranks; *count: of those found. */
int group_window_query(struct window *w, size_t at, uint32_t host,
                       const struct group_key *key, int64_t *words,
                       struct match_entry *found, uint32_t *count);

/* Room for a query of the directory. */
struct group_remote {
    struct match_entry *served; /* for another node */
    int64_t *words;             /* as the entries lie in the window */
};

/* Vote on a group's word; far: *decision is pending. */
int group_window_request_vote(struct group *g, struct group_name name,
                              enum decision_vote vote, uint32_t members,
                              enum decision *decision);
/* The directory (group_window.h). */
int group_window_request_declare(struct group *g, const struct group_key *key,
                                 int64_t time, bool *answered);
int group_window_request_count(struct group *g, uint64_t round, int32_t more,
                               uint32_t *counted, bool *answered);
int group_window_request_query(struct group *g, const struct group_key *key,
                               struct match_entry *entries, uint32_t *found,
                               bool *answered);

/* Another node asks for one of those: WIRE_DECLARE, WIRE_COUNT or WIRE_QUERY. */
int group_window_serve(struct group *g, const struct group_message *m);

/*
 * What lies where in a rank's window: the decisions of the groups that it leads, its
 * part of the directory, its input, and the part of the result that it has reduced. The
 * same on all ranks.
 *
 * The input is written by the application before a round and read by the members while
 * it runs; the part, by the driver and the members. Both may be written again as soon
 * as the round is decided: whoever still reads then is in a void round and throws it
 * away.
 */

struct group_layout {
    size_t element, count; /* bytes, elements */
    size_t decisions_at, directory_at, input_at, part_at;
    size_t bytes;
};

static inline size_t group_window_round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static inline struct group_layout group_window_layout(uint32_t ranks, size_t element,
                                                      size_t count)
{
    struct group_layout p = {.element = element, .count = count};
    size_t data = group_window_round_up(element * count);
    p.directory_at = group_window_round_up(DECISIONS * sizeof(int64_t));
    p.input_at =
        p.directory_at + group_window_round_up(group_window_directory_bytes(ranks));
    p.part_at = p.input_at + data;
    p.bytes = p.part_at + data;
    return p;
}

#endif

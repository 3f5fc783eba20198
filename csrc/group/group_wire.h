/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control messages that the ranks of a grouped allreduce send each other, how many were sent
 * and received, the clock by which a rank judges the silence of others, and what follows when a
 * rank leaves or falls silent. group_agent.c says what each message does. Messages of matchmaking
 * have kinds below WIRE_NOTICE, and matchmaking.c checks them.
 *
 * Bad messages. A message that no correct sender makes (a rank, kind, count, flag, name or round
 * outside its bounds) is refused with PCOLL_EPROTOCOL before anything has changed. So is a COMMIT
 * for a round in which this rank has not voted. The communicator then fails on this rank: every
 * call returns PCOLL_EPROTOCOL, and the objects can only be freed. Words of windows that other
 * ranks write are checked likewise. A message that is possible, but not expected now, is dropped.
 *
 * The clock of a rank stops while the rank is late. A rank that was suspended, or that computed for
 * a long time, has not read what the others sent in the meantime. If that time counted, the rank
 * would suspect them. A sixteenth of the timeout counts, so that a rank always late gives up too.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "protocol/group/matchmaking.h"
#include "transport/window.h"

struct control;
struct group;
struct group_message;

/*
 * The window of each rank, laid out alike on all: the decisions of the groups that the rank leads,
 * its part of the directory, its input, and the part of the result that it has reduced.
 *
 * The application writes the input before a round, and the members read it during the round. The
 * driver writes the part, and the members read it. Both may be written again as soon as the round
 * is decided: a member that still reads then is in a void round and discards what it reads.
 *
 * The decision on a round. A round may count only if every member has all its results. Otherwise
 * some members would go on with the average and others without it, and the sum over all ranks would
 * change. The members agree by one word in the leader's window, at place `seq mod DECISIONS`:
 *
 *   seq << 32 | abort << 31 | done
 *
 *   open    The leader writes seq, with no member done, before it sends the list.
 *   done    A member adds 1 to done, once, when it has fetched all that it needs, unless the round
 *           is aborted.
 *   abort   Any member sets abort when it has waited long enough, unless all are done.
 *
 * Invariant: "all done" and "abort" exclude each other, and a word never leaves either state. So a
 * member that reads one of them knows what all other members will read. Every rank changes the word
 * by compare-and-swap only. No other data is ordered by the word, because a member has already
 * copied what it fetched. A stale read is harmless: the swap that is based on it fails.
 *
 * A member that has not marked itself done may leave the round without asking, because the round
 * can no longer count. A word that was opened again for a later round is EXPIRED. Only a member
 * that was suspended for DECISIONS groups of its leader sees that; others have sent it.
 *
 * The directory. With dynamic keys ranks find each other here (Ryabinin et al., appendix B.5; a
 * table in windows takes the place of a DHT, because the ranks of an MPI job are known). A hash of
 * the round names the rank that keeps its directory, with an entry of each rank (struct
 * directory_entry). Rank r alone writes entry r: when it begins the round, and when it withdraws.
 * Rounds ascend, so a rank whose entry has this round or a later one appears under no other key of
 * this round. A rank that has read such entries of all ranks has found all that will ever exist,
 * and need not wait for more. An entry that is read while it is written does not match its last
 * word; the reader ignores it and finds it with its next query.
 *
 * Near and far. A rank accesses the window of a rank on its own node itself, and has the answer at
 * once. It asks a rank on another node by a message to do the same access, and the answer comes by
 * a message (the decision is pending until then).
 */

enum { DECISIONS = 64 };

struct directory_entry {
    uint64_t round; /* Plus 1; 0: none. */
    uint64_t key;
    int64_t time;   /* The priority of the rank. */
    uint64_t check; /* A hash of the others. */
};

enum decision { DECISION_PENDING, DECISION_COMMIT, DECISION_ABORT, DECISION_EXPIRED };

/* The effects of a vote on the word. */
enum decision_vote { VOTE_NOTHING, VOTE_DONE, VOTE_ABORT, VOTE_OPEN };

/* The name of a group, unique in the lifetime of the object. */
struct group_name {
    uint32_t leader, seq;
};

struct group_layout {
    size_t element, count;                  /* Bytes of an element; elements. */
    size_t directory_at, input_at, part_at; /* Offsets; the decisions are at 0. */
    size_t bytes;                           /* Of the whole window. */
};

/* Memory for a query of the directory. */
struct group_remote {
    struct match_entry *found;       /* Ranks under the key of the last query. */
    struct directory_entry *entries; /* By rank, as they are in the window. */
};

struct group_layout group_window_layout(uint32_t ranks, size_t element, size_t count);

/* Return the word after a vote; *decision is what it says then. Pure. */
int64_t group_window_after_vote(int64_t word, uint32_t seq, uint32_t members,
                                enum decision_vote vote, enum decision *decision);
/* Vote in the window of a near leader, or ask a far one for it. */
int group_window_vote(struct group *g, struct group_name name, enum decision_vote vote,
                      uint32_t members, enum decision *decision);
/* Carry out a WIRE_DECLARE or WIRE_WITHDRAW in the directory of `host`, which is near: write the
 * entry of its sender. If that declares itself, read all entries; remote.found has those of its key. */
int group_window_access(struct group *g, uint32_t host, const struct group_message *m,
                        struct group_message *answer);
/* Serve a WIRE_DECLARE or WIRE_WITHDRAW of a rank on another node. */
int group_window_serve(struct group *g, const struct group_message *m);

/*
 * The membership: which ranks take part, as far as this rank knows. A rank announces itself that it
 * leaves and that it is back. The ranks that have waited for a silent rank say that it is silent.
 * Each return of a rank has a number. A statement about a rank from before its last return is out
 * of date, and is dropped. A rank that is back asks the others for their rounds, joins the latest
 * of them, and announces itself again from there: ranks in an earlier round do not wait for it.
 */

/* DEAD is final: no statement changes it. */
enum member_status { MEMBER_LIVE, MEMBER_AWAY, MEMBER_SUSPECT, MEMBER_DEAD };

struct membership_entry {
    enum member_status status;
    uint32_t returns; /* Number of its returns. */
    uint64_t from;    /* It is live, and takes part from this round on. */
};

/* The ranks that have left or died. If all bytes are zero, all ranks are live. */
struct membership {
    struct membership_entry *entries; /* By rank. */
    uint32_t ranks;
};

/* Take a statement about a rank after its return number `returns`. True: it is new. */
bool membership_set(struct membership *r, uint32_t rank, enum member_status status,
                    uint32_t returns);
/* Return the number of ranks that take part in a round. */
uint32_t membership_count(const struct membership *r, uint64_t round);

static inline bool membership_is_live(const struct membership *r, uint32_t rank)
{
    return r->entries[rank].status == MEMBER_LIVE;
}

static inline bool membership_takes_part(const struct membership *r, uint32_t rank,
                                         uint64_t round)
{
    return membership_is_live(r, rank) && r->entries[rank].from <= round;
}

/* Messages and the clock. */

struct group_clock {
    int64_t time;   /* When the rank was last driven; ns on this clock. */
    int64_t due;    /* When it should be driven next, or INT64_MAX. */
    int64_t behind; /* How far this clock is behind the clock of the process; ns. */
};

enum group_wire_kind {
    WIRE_MATCH = 0,   /* Values up to WIRE_NOTICE are kinds of matchmaking.h. */
    WIRE_NOTICE = 64, /* To the members of a group: enum group_notice_bit. */
    WIRE_NUDGE,  /* The sender waits for you in this round. With the flag: do not wait
                        for your application in an earlier one. Without: only answer. */
    WIRE_NUDGED, /* The answer to WIRE_NUDGE. */
    WIRE_VOTE,   /* To a leader on another node. */
    WIRE_MEMBERSHIP, /* To all ranks: the status of a rank. */
    WIRE_ROUND,      /* To a rank that has returned: the round that it may join. */
    WIRE_DECLARE,    /* To a directory on another node: write an entry, and answer. */
    WIRE_FOUND,      /* The answer. */
    WIRE_WITHDRAW    /* To a directory on another node: remove the entry. */
};

/* The messages that a member has sent about a group: one bit for each kind except heartbeats. */
enum group_notice_bit {
    NOTICE_ALIVE = 0,
    NOTICE_INPUT = 1,
    NOTICE_NULL = 2, /* The member contributes nothing. */
    NOTICE_PART = 4, /* The member's part is reduced. */
    NOTICE_PASS = 8, /* Go on without your application. */
    NOTICE_ABORT = 16,
    NOTICE_COMMIT = 32
};

struct group_traffic {
    uint64_t sent, received; /* Control messages. */
    int64_t *received_at;    /* By rank: time of its last message, own clock. */
};

enum { FOUND_ENTRIES = 2 }; /* Most entries in one WIRE_FOUND. */

/* The values of a message of a kind from WIRE_NOTICE on, and of no value. */
union group_values {
    uint64_t word[4];
    struct {
        struct group_name name; /* NOTICE, VOTE */
        union {
            uint32_t bits; /* NOTICE: enum group_notice_bit */
            uint32_t vote; /* VOTE on a group that the receiver leads. */
        };
        union {
            uint32_t rate;    /* NOTICE_PART: how fast the sender fetched; KiB/s */
            uint32_t members; /* VOTE: size of the group; UINT32_MAX: not known. */
        };
    };
    struct {
        uint32_t returns;      /* MEMBERSHIP, ROUND */
        uint32_t rank, status; /* MEMBERSHIP: a rank and its status. */
    };
    uint64_t application; /* NUDGE: the flag. */
    struct {              /* DECLARE */
        uint64_t key;
        int64_t time; /* The priority. */
    };
    struct {              /* FOUND */
        uint32_t counted; /* Ranks that have declared themselves, under any key. */
        uint32_t count;   /* Those under the key. */
        uint32_t peer[FOUND_ENTRIES]; /* Some of them; then MATCH_NOBODY. */
        int64_t peer_time[FOUND_ENTRIES];
    };
};

struct group_message {
    enum group_wire_kind kind;
    uint32_t source;
    uint64_t round;
    union group_values values;
};

/* Read and check a message that rank `self` of `ranks` has received. */
int group_wire_decode(uint32_t self, uint32_t ranks, uint32_t source,
                      const struct control *c, struct group_message *m);

/* Send a control message. A message to a dead rank is dropped. */
int group_wire_send(struct group *g, uint32_t to, enum group_wire_kind kind,
                    uint16_t part, uint64_t round, union group_values values);
int group_wire_send_notice(struct group *g, uint32_t to, struct group_name name,
                           enum group_notice_bit bit, uint32_t rate);
/* Tell all ranks the status of a rank; if it is live, it takes part from the current round on. */
int group_wire_announce(struct group *g, uint32_t rank);

/* Update the clock. Call this first whenever the rank is driven. */
void group_wire_update_clock(struct group *g);

/* Tell matchmaking that the membership of a rank has changed. */
void group_wire_membership_changed(struct group *g, uint32_t rank);
/* Suspect a silent rank, and tell all ranks. */
int group_wire_suspect(struct group *g, uint32_t rank);

/* Return the time of the process, which continues while the rank's clock stops. */
static inline int64_t group_wire_process_time(const struct group_clock *c)
{
    return c->time + c->behind;
}

static inline enum group_notice_bit group_wire_bit_of(enum decision decision)
{
    return decision == DECISION_COMMIT ? NOTICE_COMMIT : NOTICE_ABORT;
}

static inline bool group_wire_same_name(struct group_name a, struct group_name b)
{
    return a.leader == b.leader && a.seq == b.seq;
}

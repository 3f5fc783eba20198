/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a grouped allreduce send each other: control messages, which are
 * always received. group_wire.c makes and counts them, group_wire.c decodes them, and
 * group_agent.c has what each of them does. Those about a group carry its name.
 * Matchmaking's pass through to its own decoder (matchmaking_message.c).
 *
 * Bad messages. The two decoders are the only code that reads the words of a message. A
 * message that no sound sender makes (a rank, kind, count, flag, name or round outside
 * its bounds) is refused with PCOLL_EPROTOCOL before it changes anything. So is a COMMIT
 * for a round in which this rank has not voted, since that needs its vote. The
 * communicator then fails on this rank: every call returns PCOLL_EPROTOCOL, nothing
 * waits, and its objects can only be freed. A message that could be, but is late or not
 * awaited, is dropped.
 *
 * Words of windows that other ranks write (a decision, a count of the directory) are
 * checked by who reads them, group_window.c and group_window.c, in the same way.
 */
#ifndef PCOLL_GROUP_WIRE_H
#define PCOLL_GROUP_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "group/group_window.h"
#include "protocol/group/matchmaking.h"
#include "protocol/group/membership.h"

/* A rank's own clock in a grouped allreduce: the time in which it was late stands still
 * on it. */
struct group;

struct group_clock {
    int64_t time;   /* ns, on this clock: of when the rank was driven last, … */
    int64_t due;    /* … and should be next, or INT64_MAX */
    int64_t behind; /* by how much this clock is behind the process's */
};

/* Before anything is done: how late is it? */
void group_wire_update_clock(struct group *g);

/* The process's time, which goes on while this one stands still. */
static inline int64_t group_wire_process_time(const struct group_clock *c)
{
    return c->time + c->behind;
}

struct control;
struct group;

enum group_wire_kind {
    WIRE_MATCH = 0, /* up to WIRE_INPUT: kinds of matchmaking.h */
    WIRE_INPUT = 64,
    WIRE_PART,
    WIRE_PASS,       /* go on without your application */
    WIRE_NUDGE,      /* … in whatever round before this one: you are waited for there;
                        or only answer this */
    WIRE_NUDGED,     /* the answer to that */
    WIRE_HEARTBEAT,  /* the same, to the members of a group */
    WIRE_VOTE,       /* to the leader on another node */
    WIRE_DECISION,   /* to all members */
    WIRE_MEMBERSHIP, /* to all ranks: somebody's status */
    WIRE_ROUND,      /* to one that is back: the round that it may join */
    WIRE_JOIN,       /* to all ranks: the one that it joins */
    WIRE_DECLARE,    /* to the directory on another node … */
    WIRE_COUNT,
    WIRE_COUNTED, /* … and its answers */
    WIRE_QUERY,
    WIRE_FOUND
};

/* What members of a group are told, in one word. */
enum group_notice_bit {
    NOTICE_INPUT = 1,
    NOTICE_NULL = 2, /* an input that is none */
    NOTICE_PART = 4,
    NOTICE_PASS = 8,
    NOTICE_ABORT = 16,
    NOTICE_COMMIT = 32
};

struct group_traffic {
    uint64_t sent, received; /* control messages */
    int64_t *received_at;    /* by rank: the last one of whatever kind; own clock */
};

enum { FOUND_ENTRIES = 2 }; /* in a WIRE_FOUND at most */

/* A message of one of the kinds from WIRE_INPUT on; each kind has some of the fields. */
struct group_message {
    enum group_wire_kind kind;
    uint32_t source;
    uint64_t round;
    struct group_name name;  /* INPUT, PART, PASS, HEARTBEAT, VOTE, DECISION */
    uint32_t bits;           /* the same but VOTE: enum group_notice_bit */
    uint32_t rate;           /* PART: KiB/s */
    enum decision_vote vote; /* VOTE, of a group that this rank leads … */
    uint32_t members;        /* … and that has so many; UINT32_MAX: not known */
    bool application;        /* NUDGE: else only answer it */
    uint32_t rank;           /* MEMBERSHIP: whose status … */
    enum member_status status;
    uint32_t returns;                        /* MEMBERSHIP, ROUND, JOIN */
    uint64_t key;                            /* DECLARE, QUERY */
    int64_t time;                            /* DECLARE */
    int32_t more;                            /* COUNT: -1, 0 or 1 */
    bool counts;                             /* COUNTED: else it has declared */
    uint32_t count;                          /* COUNTED: ranks; FOUND: entries in all */
    uint32_t entries;                        /* FOUND: in this message */
    struct match_entry entry[FOUND_ENTRIES]; /* FOUND */
};

/* Check a message that has come to `self`, one of so many ranks. */
int group_wire_decode(uint32_t self, uint32_t ranks, uint32_t source,
                      const struct control *c, struct group_message *m);

int group_wire_send(struct group *g, uint32_t to, enum group_wire_kind kind,
                    uint16_t part, uint64_t round, const uint64_t value[4]);
int group_wire_send_about(struct group *g, uint32_t to, enum group_wire_kind kind,
                          struct group_name name, uint64_t value);
int group_wire_send_decision(struct group *g, uint32_t to, struct group_name name,
                             enum decision decision);
int group_wire_send_to_all(struct group *g, enum group_wire_kind kind, uint64_t round,
                           const uint64_t value[4]);
/* To all ranks: somebody's status. */
int group_wire_announce(struct group *g, uint32_t rank, enum member_status status,
                        uint32_t returns);
/* … and that this rank takes part from the round that it is at. */
int group_wire_announce_join(struct group *g);
/* A message has come. */
void group_wire_count_received(struct group *g, uint32_t source);

static inline bool group_wire_same_name(struct group_name a, struct group_name b)
{
    return a.leader == b.leader && a.seq == b.seq;
}

static inline uint64_t group_wire_name_word(struct group_name name)
{
    return (uint64_t)name.leader << 32 | name.seq;
}

static inline struct group_name group_wire_name_of(uint64_t word)
{
    return (struct group_name){(uint32_t)(word >> 32), (uint32_t)word};
}

/* Who takes part changes: what this rank finds out itself, and what follows for
 * matchmaking. */

struct group;

/* The membership of a rank has changed. */
void group_wire_membership_changed(struct group *g, uint32_t rank);
/* It is silent; all are told. */
int group_wire_suspect(struct group *g, uint32_t rank);

#endif

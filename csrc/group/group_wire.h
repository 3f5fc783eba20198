/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control messages that the ranks of a grouped allreduce send each other: their
 * encoding and decoding, how many were sent and received, the clock by which a rank
 * judges the silence of others, and what follows when a rank leaves or falls silent.
 *
 * Control messages are always received. group_agent.c says what each of them does.
 * Messages about a group carry its name. Messages of matchmaking have kinds below
 * WIRE_INPUT and pass through to their own decoder (matchmaking_message.c).
 *
 * Bad messages. The two decoders are the only code that reads the words of a message. A
 * decoder refuses a message that no correct sender makes: a rank, kind, count, flag,
 * name or round that is outside its bounds. It returns PCOLL_EPROTOCOL before anything
 * has changed. A COMMIT for a round in which this rank has not voted is refused in the
 * same way, because that round needs this rank's vote. The communicator then fails on
 * this rank: every call returns PCOLL_EPROTOCOL, no call waits, and the objects can
 * only be freed. A message that is possible, but late or not expected, is dropped.
 *
 * group_window.c checks the words of windows that other ranks write (decisions, and
 * counts and entries of the directory) in the same way.
 *
 * The clock of a rank stops while the rank is late. A rank that was suspended, or that
 * computed for a long time, has not read what the others sent in the meantime. If that
 * time counted, the rank would suspect the others. A sixteenth of the timeout still
 * counts, so that a rank that is always late gives up too.
 */
#ifndef PCOLL_GROUP_WIRE_H
#define PCOLL_GROUP_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "group/group_window.h"
#include "protocol/group/matchmaking.h"
#include "protocol/group/membership.h"

struct control;

struct group_clock {
    int64_t time;   /* When the rank was last driven; ns on this clock. */
    int64_t due;    /* When it should be driven next, or INT64_MAX. */
    int64_t behind; /* How far this clock is behind the clock of the process; ns. */
};

enum group_wire_kind {
    WIRE_MATCH = 0, /* Values up to WIRE_INPUT are kinds of matchmaking.h. */
    WIRE_INPUT = 64,
    WIRE_PART,
    WIRE_PASS,   /* Go on without your application. */
    WIRE_NUDGE,  /* The sender waits for you in this round. With the flag: do not wait
                        for your application in an earlier one. Without: only answer. */
    WIRE_NUDGED, /* The answer to WIRE_NUDGE. */
    WIRE_HEARTBEAT,  /* To the members of a group: the sender is alive. */
    WIRE_VOTE,       /* To a leader on another node. */
    WIRE_DECISION,   /* To all members. */
    WIRE_MEMBERSHIP, /* To all ranks: the status of a rank. */
    WIRE_ROUND,      /* To a rank that has returned: the round that it may join. */
    WIRE_JOIN,       /* To all ranks: the round that the sender joins. */
    WIRE_DECLARE,    /* Requests to the directory on another node, and its answers. */
    WIRE_COUNT,
    WIRE_COUNTED,
    WIRE_QUERY,
    WIRE_FOUND
};

/* What a member has told the others about a group, one bit for each message. */
enum group_notice_bit {
    NOTICE_INPUT = 1,
    NOTICE_NULL = 2, /* The member contributes nothing. */
    NOTICE_PART = 4,
    NOTICE_PASS = 8,
    NOTICE_ABORT = 16,
    NOTICE_COMMIT = 32
};

struct group_traffic {
    uint64_t sent, received; /* Control messages. */
    int64_t *received_at;    /* By rank: time of its last message, own clock. */
};

enum { FOUND_ENTRIES = 2 }; /* Most entries in one WIRE_FOUND. */

/* A decoded message of a kind from WIRE_INPUT on. The comment of a field lists the
 * kinds that have it. */
struct group_message {
    enum group_wire_kind kind;
    uint32_t source;
    uint64_t round;
    struct group_name name;  /* INPUT, PART, PASS, HEARTBEAT, VOTE, DECISION */
    uint32_t bits;           /* The same without VOTE: enum group_notice_bit. */
    uint32_t rate;           /* PART: KiB/s */
    enum decision_vote vote; /* VOTE: on a group that this rank leads. */
    uint32_t members;        /* VOTE: size of the group; UINT32_MAX: not known. */
    bool application;        /* NUDGE: the flag. */
    uint32_t rank;           /* MEMBERSHIP: the rank whose status this is. */
    enum member_status status;
    uint32_t returns;                        /* MEMBERSHIP, ROUND, JOIN */
    uint64_t key;                            /* DECLARE, QUERY */
    int64_t time;                            /* DECLARE */
    int32_t more;                            /* COUNT: -1, 0 or 1 */
    bool counts;                             /* COUNTED: answers COUNT, not DECLARE. */
    uint32_t count;                          /* COUNTED: ranks; FOUND: all entries. */
    uint32_t entries;                        /* FOUND: entries in this message. */
    struct match_entry entry[FOUND_ENTRIES]; /* FOUND */
};

/* Decode and check a message that rank `self` of `ranks` has received. */
int group_wire_decode(uint32_t self, uint32_t ranks, uint32_t source,
                      const struct control *c, struct group_message *m);

/* Send a control message. A message to a dead rank is dropped. */
int group_wire_send(struct group *g, uint32_t to, enum group_wire_kind kind,
                    uint16_t part, uint64_t round, const uint64_t value[4]);
int group_wire_send_about(struct group *g, uint32_t to, enum group_wire_kind kind,
                          struct group_name name, uint64_t value);
int group_wire_send_decision(struct group *g, uint32_t to, struct group_name name,
                             enum decision decision);
/* Tell all ranks the status of a rank. */
int group_wire_announce(struct group *g, uint32_t rank, enum member_status status,
                        uint32_t returns);
/* Tell all ranks that this rank takes part from its current round on. */
int group_wire_announce_join(struct group *g);
/* Count a message that has arrived. */
void group_wire_count_received(struct group *g, uint32_t source);

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

static inline bool group_wire_same_name(struct group_name a, struct group_name b)
{
    return a.leader == b.leader && a.seq == b.seq;
}

static inline uint64_t group_wire_name_word(struct group_name name)
{
    return (uint64_t)name.leader << 32 | name.seq;
}

#endif

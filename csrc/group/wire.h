/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a grouped allreduce send each other: control messages, which are
 * always received. Here they are made and counted; on_message.c has what each of them
 * does. Those about a group carry its name; matchmaking's pass through.
 */
#ifndef PCOLL_GROUP_WIRE_H
#define PCOLL_GROUP_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/group/decision.h"
#include "protocol/group/membership.h"

struct group;

enum wire_kind {
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

/* What a group is called. */
struct group_name {
    uint32_t leader, seq;
};

/* What members of a group are told, in one word. */
enum notice_bit {
    NOTICE_INPUT = 1,
    NOTICE_NULL = 2, /* an input that is none */
    NOTICE_PART = 4,
    NOTICE_PASS = 8,
    NOTICE_ABORT = 16,
    NOTICE_COMMIT = 32
};

struct wire {
    uint64_t sent, received; /* control messages */
    int64_t *received_at;    /* by rank: the last one of whatever kind; own clock */
};

int group_send(struct group *g, uint32_t to, enum wire_kind kind, uint16_t part,
               uint64_t round, const uint64_t value[4]);
int group_send_about(struct group *g, uint32_t to, enum wire_kind kind,
                     struct group_name name, uint64_t value);
int group_send_decision(struct group *g, uint32_t to, struct group_name name,
                        enum decision decision);
int group_send_to_all(struct group *g, enum wire_kind kind, uint64_t round,
                      const uint64_t value[4]);
/* To all ranks: somebody's status. */
int group_announce(struct group *g, uint32_t rank, enum member_status status,
                   uint32_t returns);
/* … and that this rank takes part from the round that it is at. */
int group_announce_join(struct group *g);
/* A message has come. */
void group_count_received(struct group *g, uint32_t source);

static inline bool group_same(struct group_name a, struct group_name b)
{
    return a.leader == b.leader && a.seq == b.seq;
}

static inline uint64_t group_name_word(struct group_name name)
{
    return (uint64_t)name.leader << 32 | name.seq;
}

static inline struct group_name group_name_of(uint64_t word)
{
    return (struct group_name){(uint32_t)(word >> 32), (uint32_t)word};
}

#endif

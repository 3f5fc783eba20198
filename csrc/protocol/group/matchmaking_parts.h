/* SPDX-License-Identifier: Apache-2.0 */
/* What the sources of matchmaking share; matchmaking.h has the protocol. From the
 * bottom to the top: matchmaking_message.c, matchmaking_roles.c (asking and following,
 * leading, lists), matchmaking.c. */
#ifndef PCOLL_PROTOCOL_GROUP_MATCHMAKING_PARTS_H
#define PCOLL_PROTOCOL_GROUP_MATCHMAKING_PARTS_H

#include "base/check.h"
#include "protocol/group/matchmaking.h"

enum match_reason {
    REJECT_KEY = 1,
    REJECT_CLOSED,
    REJECT_GONE,
    REJECT_FOLLOWS,
    REJECT_FULL,
    REJECT_LOWER
};

enum { PART_ALIKE = 0x8000 }; /* A flag in `part`; see matchmaking_message.c. */

/* The decoded values of a message. Each kind uses some of them. */
struct match_note {
    uint64_t key;
    int64_t time; /* Priority of the asker, or of the hint. */
    struct match_member member;
    int64_t remaining;
    bool confirm;
    enum match_reason reason;
    uint32_t hint; /* Rank to ask instead, or MATCH_NOBODY. */
    uint64_t at;
    uint32_t attempt;
};

enum candidate_state {
    CANDIDATE_UNKNOWN,
    CANDIDATE_UNTRIED,
    CANDIDATE_ASKED,   /* This rank is bound to it. */
    CANDIDATE_WAITING, /* It still has the ask, and may answer. */
    CANDIDATE_FINAL    /* It is not asked again in this round. */
};

enum follower_state { FOLLOWER_NOT, FOLLOWER_UNCONFIRMED, FOLLOWER_IN };

/* A filed ask. */
struct match_ask {
    bool there;
    uint64_t round, key;
    int64_t time, since;
    struct match_member member;
    uint32_t attempt;
};

struct match_peer {
    uint64_t seen; /* Highest round of its asks. */

    enum candidate_state candidate;
    bool of_key;      /* It was given as a candidate. */
    int64_t time;     /* Its priority, as far as known. */
    uint32_t tries;   /* Asks sent to it in this round. */
    uint32_t attempt; /* Of the ask that it may still accept; 0: none. */

    struct match_ask ask;
    enum follower_state follower;
    int64_t confirm_by;

    bool refused;
    struct match_refusal refusal;
};

/* A decoded and checked part of a list. */
enum { PART_MEMBERS = 8 };
struct match_part {
    uint32_t attempt; /* The lowest 16 bits of the attempt that it answers. */
    uint32_t seq;     /* Of the group. */
    uint32_t count;   /* Members of the list, at least 2 and at most all ranks. */
    uint32_t first;   /* Position of the first member in this part. */
    uint32_t holds;   /* Members in this part, at least one. */
    struct match_member member[PART_MEMBERS]; /* Sorted by rank. */
};

/* Messages (matchmaking_message.c). Queue a message of any kind but LIST. */
void match_send(struct match *m, enum match_kind kind, uint32_t peer, uint64_t round,
                const struct match_note *note);
/* Decode and check a message. Afterwards every rank, reason, length and number is
 * within its bounds. PCOLL_EPROTOCOL: no correct sender makes the message. */
int match_decode(const struct match *m, const struct match_message *message,
                 struct match_note *note);
int match_decode_part(const struct match *m, const struct match_message *message,
                      struct match_part *part);
/* Queue m->list for all its members but this rank. */
void match_send_list(struct match *m);
/* Writing a part: the most members it holds, and the position of its first member. */
uint32_t match_part_holds(const struct match_message *message);
uint32_t match_part_first(const struct match_message *message);
void match_put_member(struct match_message *message, uint32_t i,
                      const struct match_member *member);
int match_outbox_init(struct match_outbox *o, uint32_t size);
void match_outbox_destroy(struct match_outbox *o);
/* Drop all queued messages. */
void match_outbox_clear(struct match_outbox *o);

/* Refused lists (matchmaking_roles.c). */
/* A list counts on a member that does not keep it. */
void match_refuse(struct match *m, uint32_t member, uint32_t leader, uint32_t seq,
                  uint64_t round);
/* Refuse the list that is arriving, if any. */
void match_refuse_coming(struct match *m);

/* Lists. Take a part that has arrived. False: it does not fit the parts before it, and
 * its sender has to be dismissed. */
bool match_on_list(struct match *m, const struct match_message *message,
                   const struct match_part *part);

/* Asking and following. */
/* Ask the lowest candidate, unless it is too late. */
void match_ask_next(struct match *m, int64_t now);
/* Does no rank take this one while others are ahead? */
bool match_is_behind(const struct match *m);
/* Give up a leader that has sent no list, and an ask that was not answered. */
void match_expire_seeking(struct match *m, int64_t now);
/* True: this rank follows now, and leads no rank any more. */
bool match_on_accept(struct match *m, int64_t now, const struct match_message *message,
                     const struct match_note *note);
void match_on_reject(struct match *m, const struct match_message *message,
                     const struct match_note *note);
void match_on_disband(struct match *m, int64_t now, const struct match_message *message,
                      const struct match_note *note);
/* Do not ask this rank again in this round. If it was asked or followed, tell it. */
void match_dismiss(struct match *m, int64_t now, uint32_t peer);
/* A rank is in that round. */
void match_note_gone(struct match *m, int64_t now, uint32_t peer, uint64_t round);
void match_add_candidate(struct match *m, uint32_t peer, int64_t time);
/* Tell the leader, or the rank that was asked, that this rank leaves. */
void match_withdraw(struct match *m);

/* Leading. */
void match_on_ask(struct match *m, int64_t now, const struct match_message *message,
                  const struct match_note *note);
void match_on_confirm(struct match *m, const struct match_message *message,
                      const struct match_note *note);
void match_on_leave(struct match *m, const struct match_message *message,
                    const struct match_note *note);
/* Answer the filed asks for the round that has just begun. */
void match_answer_filed(struct match *m, int64_t now);
/* Accept filed asks while there is room, if their senders confirm. */
void match_offer(struct match *m, int64_t now);
/* Drop the followers that did not confirm. */
void match_expire_unconfirmed(struct match *m, int64_t now);
void match_disband(struct match *m, uint32_t hint, int64_t time);
/* A follower is lost. */
void match_drop_lost_follower(struct match *m, uint32_t peer);
/* Are enough ranks in, or has the window ended? */
bool match_may_close(const struct match *m);
void match_close(struct match *m);

/* Add to a time without overflow. */
static inline int64_t match_later(int64_t time, int64_t by)
{
    return time > 0 && by > INT64_MAX - time ? INT64_MAX : time + by;
}

/* Is this rank looking or following? */
static inline bool match_active(const struct match *m)
{
    CHECK(m->state <= MATCH_BEHIND);
    return m->state == MATCH_LOOKING || m->state == MATCH_FOLLOWING;
}

/* Does the first priority come before the second? */
static inline bool match_before(int64_t time, uint32_t peer, int64_t than_time,
                                uint32_t than_peer)
{
    return time < than_time || (time == than_time && peer < than_peer);
}

/* Does it come before the priority of this rank? */
static inline bool match_below(const struct match *m, int64_t time, uint32_t peer)
{
    CHECK(peer < m->size);
    return match_before(time, peer, m->goal.time, m->rank);
}

#endif

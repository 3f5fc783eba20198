/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of matchmaking know of each other; matchmaking.h has the protocol. From
 * the bottom to the top: state and message; seek, lead and list, which do not call each
 * other; matchmaking.c.
 */
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

enum { PART_ALIKE = 0x8000 }; /* in `part`: see matchmaking_message.c */

/* What the values of a message say; each kind uses some. */
struct match_note {
    uint64_t key;
    int64_t time; /* priority of the asker, or of the hint */
    struct match_member member;
    int64_t remaining;
    bool confirm;
    enum match_reason reason;
    uint32_t hint; /* or MATCH_NOBODY */
    uint64_t at;
    uint32_t attempt;
};

enum candidate_state {
    CANDIDATE_UNKNOWN,
    CANDIDATE_UNTRIED,
    CANDIDATE_ASKED,   /* and bound to it */
    CANDIDATE_WAITING, /* has the ask still: an answer may come */
    CANDIDATE_FINAL    /* not in this round */
};

enum follower_state { FOLLOWER_NOT, FOLLOWER_UNCONFIRMED, FOLLOWER_IN };

/* An ask, on file. */
struct match_ask {
    bool there;
    uint64_t round, key;
    int64_t time, since;
    struct match_member member;
    uint32_t attempt;
};

struct match_peer {
    uint64_t seen; /* the highest round of an ask from it */

    enum candidate_state candidate;
    bool of_key;      /* it was said to have this key */
    int64_t time;     /* its priority, as far as is known */
    uint32_t tries;   /* asks of this round */
    uint32_t attempt; /* of the ask that it may still accept; 0: none */

    struct match_ask ask;
    enum follower_state follower;
    int64_t confirm_by;

    bool refused;
    struct match_refusal refusal;
};

/* A part of a list, as matchmaking_message.c has checked it. */
enum { PART_MEMBERS = 8 };
struct match_part {
    uint32_t attempt; /* the lowest 16 bits of the ask that it answers */
    uint32_t seq;     /* of the group */
    uint32_t count;   /* members of the list, 2 to the number of ranks */
    uint32_t first;   /* place in the list of the first member in this part */
    uint32_t holds;   /* members in this part, at least one */
    struct match_member member[PART_MEMBERS]; /* by ascending rank */
};

/* Messages (matchmaking_message.c). */
void match_send(struct match *m, enum match_kind kind, uint32_t peer, uint64_t round,
                const struct match_note *note);
/* The checked decoders: every rank, reason, length and number is within its bounds
 * afterwards. PCOLL_EPROTOCOL: the message cannot be. */
int match_decode(const struct match *m, const struct match_message *message,
                 struct match_note *note);
int match_decode_part(const struct match *m, const struct match_message *message,
                      struct match_part *part);
/* Queue m->list for all its members but this rank. */
void match_send_list(struct match *m);
/* A part that is written: how many members it holds at most, the first one's place. */
uint32_t match_part_holds(const struct match_message *message);
uint32_t match_part_first(const struct match_message *message);
void match_put_member(struct match_message *message, uint32_t i,
                      const struct match_member *member);
int match_outbox_init(struct match_outbox *o, uint32_t size);
void match_outbox_destroy(struct match_outbox *o);
/* Nothing of it is sent any more. */
void match_outbox_clear(struct match_outbox *o);

/* The state (matchmaking_roles.c). */
/* The list of this name counts on a member that does not keep it. */
void match_refuse(struct match *m, uint32_t member, uint32_t leader, uint32_t seq,
                  uint64_t round);
/* The one of which a part has come, if any. */
void match_refuse_coming(struct match *m);

/* A part of a list has come (matchmaking_roles.c). False: it does not fit to the parts
 * before it, and whoever sent it is to be dismissed. */
bool match_on_list(struct match *m, const struct match_message *message,
                   const struct match_part *part);

/* Asking and following (matchmaking_roles.c). */
/* The lowest candidate, unless it is too late for that. */
void match_ask_next(struct match *m, int64_t now);
/* Nobody takes it, and others are ahead. */
bool match_is_behind(const struct match *m);
/* A leader that does not send its list; an ask that is not answered. */
void match_expire_seeking(struct match *m, int64_t now);
/* True: this rank follows now, so it leads nobody any more. */
bool match_on_accept(struct match *m, int64_t now, const struct match_message *message,
                     const struct match_note *note);
void match_on_reject(struct match *m, const struct match_message *message,
                     const struct match_note *note);
void match_on_disband(struct match *m, int64_t now, const struct match_message *message,
                      const struct match_note *note);
/* Not in this round: the one asked, or followed, too. */
void match_dismiss(struct match *m, int64_t now, uint32_t peer);
/* It is in that round. */
void match_note_gone(struct match *m, int64_t now, uint32_t peer, uint64_t round);
void match_add_candidate(struct match *m, uint32_t peer, int64_t time);
/* Tell the leader, or the one that was asked. */
void match_withdraw(struct match *m);

/* Leading (matchmaking_roles.c). */
void match_on_ask(struct match *m, int64_t now, const struct match_message *message,
                  const struct match_note *note);
void match_on_confirm(struct match *m, const struct match_message *message,
                      const struct match_note *note);
void match_on_leave(struct match *m, const struct match_message *message,
                    const struct match_note *note);
/* The asks on file for the round that has just begun. */
void match_answer_filed(struct match *m, int64_t now);
/* Accept, if they still want, whose asks are on file and have room. */
void match_offer(struct match *m, int64_t now);
/* Those that did not confirm. */
void match_expire_unconfirmed(struct match *m, int64_t now);
void match_disband(struct match *m, uint32_t hint, int64_t time);
/* It is lost. */
void match_drop_lost_follower(struct match *m, uint32_t peer);
/* Enough have asked, or the window has ended. */
bool match_may_close(const struct match *m);
void match_close(struct match *m);

/* Sums of times that stay in range. */
static inline int64_t match_later(int64_t time, int64_t by)
{
    return time > 0 && by > INT64_MAX - time ? INT64_MAX : time + by;
}

/* In a round, and matching. */
static inline bool match_active(const struct match *m)
{
    CHECK(m->state <= MATCH_BEHIND);
    return m->state == MATCH_LOOKING || m->state == MATCH_FOLLOWING;
}

/* Does this priority come before that one? */
static inline bool match_before(int64_t time, uint32_t peer, int64_t than_time,
                                uint32_t than_peer)
{
    return time < than_time || (time == than_time && peer < than_peer);
}

/* … before that of this rank? */
static inline bool match_below(const struct match *m, int64_t time, uint32_t peer)
{
    CHECK(peer < m->size);
    return match_before(time, peer, m->goal.time, m->rank);
}

#endif

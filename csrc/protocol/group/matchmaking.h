/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matchmaking: ranks that share a key of a round find each other and agree who averages
 * with whom (Moshpit SGD, appendix E). One state machine per rank, fed with messages
 * and time, asked what to send: no I/O, no clock, no memory after match_init.
 *
 * Words. A rank's priority is (goal.time, rank); the lower one leads. Candidates are
 * the others that are said to have declared the same key. P is the answer timeout.
 *
 * Messages. All carry the round; `attempt` numbers the asks of a rank, and every answer
 * names the attempt that it is about.
 *
 *   ASK      key, priority, bandwidth, chain    may I follow you?
 *   ACCEPT   how long at most until the list    yes. With the flag "confirm": do you
 *                                               still want to?
 *   CONFIRM                                     I do
 *   REJECT   why, whom to ask instead, where    no
 *   LEAVE                                       I follow you no more, forget my asks
 *   DISBAND  whom to ask instead                I lead you no more
 *   LIST     part k: some members               the group is this, and closed
 *
 * States.
 *
 *   IDLE       has begun no round
 *   LOOKING    asks its lower candidates, one after the other in ascending order, and
 *              at the same time leads whoever has asked it
 *   FOLLOWING  was accepted by a lower one, and is bound to wait for its list
 *   FORMED     holds a list: has closed its own, or was sent one
 *   BEHIND     nobody takes it, and some candidate is in a later round already: told
 *              so by one that has ended this round, or nobody else can come, or came
 *
 * Who may do what.
 *
 *   Asker: is bound to the one it has asked until that one answers, for P at most; then
 *   it asks the next one, and the first may still answer. An ACCEPT that comes so late
 *   is taken if the asker is bound to nobody (it may be leading others), else answered
 *   by LEAVE, and asked again. Nobody is asked while it still has an ask.
 *
 *   Follower: stays until the list, DISBAND, the loss of its leader, or the deadline:
 *   what ACCEPT told, and 4P.
 *
 *   Leader: answers an ask of its key at once, with ACCEPT while there is room. It
 *   counts who has asked it. But an ask that has waited for longer than P/2 (this rank
 *   had not begun yet, or followed somebody, or had no room) is answered by ACCEPT with
 *   "confirm", and counts when that comes, within P: the asker may have gone elsewhere.
 *
 *   A leader that is accepted by a lower one disbands: its followers ask there. Their
 *   asks stay on file, and if that lower one fails, are answered anew. So are asks that
 *   were rejected because this rank followed somebody or had no room: nobody has to ask
 *   again and again whether things have changed.
 *
 *   A leader closes when nothing is open (no ask within P, no lower candidate that was
 *   not asked, nobody who has to confirm), and `expected` or `max_members` are in, or
 *   its window has ended. It asks nobody later than 2P after its window, so it closes
 *   within 3P.
 *
 * REJECT tells why:
 *
 *   KEY       another key                     final, for this round
 *   CLOSED    has a list of this round        final
 *   GONE      has ended this round, or left   final; tells the round that it is at,
 *                                             this one if it was its last one, and
 *                                             left unused
 *   FOLLOWS   follows somebody: ask there     the ask is on file
 *   FULL      `max_members` have asked        the ask is on file
 *   LOWER     the asker comes first           it was told another time of this rank;
 *                                             does not ask it again
 *
 * An ask for a round that this rank has not begun is on file until it begins.
 *
 * No cycle: who accepts compares its own priority with the asker's, so a follower's is
 * always the greater one. No deadlock: whatever waits has an alarm. No storm: asks are
 * bounded by MATCH_TRIES for each candidate and round, and every other message is
 * caused by an ask, a few for each. Where all begin within P/4 and know the lowest one,
 * a group of M takes 2(M - 1) messages and M - 1 lists; a list is ceil(M/8) messages if
 * bandwidth and chain are the same for all, else ceil(M/2).
 *
 * Guarantees.
 *
 *   1. Members of a group, named (leader, seq), hold the same list. The leader makes it
 *   once; a follower takes it only from the one it follows, for an ask that is open,
 *   whole, with itself in it. A member that has gone elsewhere does not take it, and
 *   says so (match_refused): that group has to be void. It needs a failure, or a
 *   message that takes longer than P/4.
 *
 *   2. Without failures, if all begin and know each other within the window less 4P,
 *   all ranks of a key form one group if they are `max_members` or less: whoever looks
 *   asks the lowest one; who led before that one began has asked it too, and brings
 *   its followers along.
 *
 *   3. If some fail, the rest form groups: one, if that is known (match_lost) in time.
 *   Every live rank forms one, alone if need be, or is BEHIND, within (f + 1) (W + 8P)
 *   of when the last one it meets has begun: W is the longest window, f how often
 *   somebody fails. After a failure it looks for at least 2P more.
 *
 * Clocks: `now` is this rank's own, and may differ from those of others by anything.
 * Between ranks only durations are told (the window that is left); drift over a window
 * must stay below P. goal.time orders ranks, no more: one whose clock is behind leads
 * more often.
 *
 * Messages have to be reliable and in order for each pair of ranks.
 */
#ifndef PCOLL_PROTOCOL_GROUP_MATCHMAKING_H
#define PCOLL_PROTOCOL_GROUP_MATCHMAKING_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/round.h"

enum {
    MATCH_MAX_MEMBERS = UINT16_MAX, /* members of a group at most */
    MATCH_TRIES = 8,                /* asks of one candidate in one round */
    MATCH_NOBODY = UINT32_MAX       /* no rank */
};

/* chain: opaque to matching, travels with the member. */
struct match_member {
    uint32_t rank;
    float bandwidth;
    uint32_t chain;
};

struct match_entry {
    uint32_t peer;
    int64_t time;
};

enum match_kind {
    MATCH_ASK = 1,
    MATCH_ACCEPT,
    MATCH_CONFIRM,
    MATCH_REJECT,
    MATCH_LEAVE,
    MATCH_DISBAND,
    MATCH_LIST,
    MATCH_KINDS
};

/* peer: to whom, or from whom. */
struct match_message {
    uint32_t peer;
    uint16_t kind, part;
    uint64_t round;
    uint64_t value[4];
};

struct match_goal {
    uint64_t round, key;
    int64_t time;         /* priority: lower (time, rank) leads */
    uint32_t max_members; /* clipped to 1 … MATCH_MAX_MEMBERS */
    uint32_t expected;    /* close as soon as so many are in; 0: not known */
    int64_t window;       /* ns from begin until a leader closes with who is there */
    struct match_member self;
};

enum match_state {
    MATCH_IDLE,
    MATCH_LOOKING,
    MATCH_FOLLOWING,
    MATCH_FORMED,
    MATCH_BEHIND
};

/* (leader, seq) is the group's name, unique. Members by ascending rank. */
struct match_list {
    uint32_t leader, seq;
    uint64_t round, key;
    uint32_t count;
    const struct match_member *members;
};

/* A list that a member of it does not keep: this rank, or one that left after this
 * rank's own list was closed. */
struct match_refusal {
    uint32_t leader, seq;
    uint64_t round;
};

struct match_peer; /* matchmaking_parts.h */

/* Messages to be sent. The list goes out between those that were queued before it was
 * closed and those after. */
struct match_outbox {
    struct match_message *ring;
    uint32_t capacity;
    uint64_t head, tail;
    uint64_t lost; /* the driver did not fetch them */
    struct match_list list;
    struct match_member *members;
    uint16_t *attempts;  /* of its members */
    uint64_t list_after; /* the tail when it was closed */
    bool alike;          /* they differ in their ranks alone */
    uint32_t to, part;   /* next: member, part */
};

struct match {
    uint32_t rank, size;
    int64_t answer_timeout;
    int64_t
        longest_window; /* no leader of this job waits longer; INT64_MAX: not known */
    enum match_state state;
    struct match_goal goal;
    struct match_peer *peers;
    uint64_t floor; /* rounds below it are over here */
    uint64_t at;    /* the round that others are told this rank is at */
    uint64_t ahead; /* the highest round of a candidate that is gone */
    bool told;      /* by one for which this round is over */
    bool has_left;  /* the last round, without using it: this one */
    uint64_t left;

    /* asking */
    bool given; /* candidates were, at least once */
    int64_t window_end;
    bool window_over;
    uint32_t *candidates, candidate_count;
    uint32_t asking; /* or MATCH_NOBODY */
    int64_t ask_by;
    uint32_t attempt; /* of the last ask; none is 0 */

    /* leading */
    uint32_t *followers, follower_count; /* ascending */
    uint32_t unconfirmed;                /* of them */
    bool offer;                          /* look through the asks on file */
    uint32_t seq;

    /* following */
    uint32_t leader; /* or MATCH_NOBODY */
    int64_t follow_by;
    struct match_list list; /* coming, or formed */
    struct match_member *members;
    uint32_t listed; /* members of it that have come */

    uint32_t refusals;
    struct match_outbox out;
};

/* answer_timeout: ns to wait for an answer before the next candidate is asked; the
 * same everywhere, and at least four times what a message takes. PCOLL_EINVAL,
 * PCOLL_ENOMEM. */
int match_init(struct match *m, uint32_t rank, uint32_t size, int64_t answer_timeout);
void match_destroy(struct match *m);

/*
 * After each of the following: fetch what is to be sent (match_next) and look at the
 * state. `now` never goes back. Only match_tick finds that something has waited too
 * long: take the messages that are there first, and an agent that was late itself does
 * not blame others.
 *
 * Begin a round: rounds ascend. One that is over here (ended, or left) already is
 * BEHIND at once. Whatever was going on is abandoned.
 */
void match_begin(struct match *m, int64_t now, const struct match_goal *goal);
/* Who else has declared this key: from a directory, or all live members of a static
 * line with time 0. May be called again with more; self and repetitions are harmless.
 * Before the first call only the end of the window closes a group. */
void match_candidates(struct match *m, int64_t now, const struct match_entry *entries,
                      uint32_t count);
/* Known only later, or changed. */
void match_expect(struct match *m, int64_t now, uint32_t expected);
/* It is away or suspected: as if it had left, for this round; unless it asks again. */
void match_lost(struct match *m, int64_t now, uint32_t peer);
/* It is there after all: it may be asked again in this round. */
void match_back(struct match *m, int64_t now, uint32_t peer);
/* A message came; in any state. PCOLL_EPROTOCOL: no sound sender makes it
 * (matchmaking_message.c), and nothing has changed. */
int match_on_message(struct match *m, int64_t now, const struct match_message *message);
void match_tick(struct match *m, int64_t now);
/* When to call match_tick; INT64_MAX: no need. */
int64_t match_alarm(const struct match *m);
/* The group was used, or given up: IDLE. Asks for rounds up to this one are answered
 * with GONE. While looking or following: the same as match_abandon. */
void match_end(struct match *m);
/* Leave while matching: tells leader or followers; IDLE. */
void match_abandon(struct match *m, int64_t now);

/* Ranks have died: all messages under way are lost, on all ranks, and whoever was matching
 * begins anew, in this round, or a later one. IDLE. */
void match_restart(struct match *m, uint64_t first);

/* It has asked somebody, or follows: it may be on a list already. */
bool match_bound(const struct match *m);
/* The first round that it may begin: those before are over here, or were left. */
uint64_t match_first(const struct match *m);

/* Messages to be sent, in order; false: no more. */
bool match_next(struct match *m, struct match_message *out);
/* Groups to be made void at once, one for each call; false: no more. Of one leader the
 * newest is kept. */
bool match_refused(struct match *m, struct match_refusal *out);

enum match_state match_state(const struct match *m);
/* FORMED: the list, until match_end. Else NULL. */
const struct match_list *match_formed(const struct match *m);
/* BEHIND: the round that others are at. */
uint64_t match_ahead(const struct match *m);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matchmaking: ranks that share the key of a round find each other and agree on a group (Moshpit
 * SGD, appendix E). Each rank has one state machine, without I/O, clock or new memory:
 * the driver feeds it with messages and the time, and asks it what to send.
 *
 * Terms. The priority of a rank is (goal.time, rank); the lower one leads. Candidates are the other
 * ranks that are said to have declared the same key. P is the answer timeout. An ask is open while
 * its sender waits for an answer, and filed while the receiver keeps it for later.
 *
 * Messages. Each has the round, and the `attempt`: the number of an ask, which answers repeat.
 *
 *   ASK      key, priority, bandwidth, chain    May I follow you?
 *   ACCEPT   longest time until the list        Yes. With the flag "confirm": do you
 *                                               still want to?
 *   CONFIRM                                     I do.
 *   REJECT   reason, whom to ask instead, round No.
 *   LEAVE                                       I no longer follow you. Forget my asks.
 *   DISBAND  whom to ask instead                I no longer lead you.
 *   LIST     part k: some members               This is the group, and it is closed.
 *
 * States.
 *
 *   IDLE       The rank has begun no round.
 *   LOOKING    The rank asks its lower candidates, one after the other in ascending order, and
 *              leads the ranks that have asked it.
 *   FOLLOWING  A lower rank has accepted this one. It must wait for the list.
 *   FORMED     The rank holds a list: it has closed its own, or has received one.
 *   BEHIND     No rank accepts this one for the round, and some candidate is in a later round.
 *              Entered when that candidate says that this round has ended there, or when no
 *              candidate is left, or when the window ends without a group.
 *
 * Rules.
 *
 *   Asker. It is bound to the rank it has asked until that rank answers, for at most P. Then it
 *   asks the next one, and the first may still answer. If that late ACCEPT arrives while the asker
 *   is bound to no rank (it may be leading others), the asker takes it. Otherwise it answers LEAVE
 *   and asks again later. A rank that has an open ask of this one is not asked again.
 *
 *   Follower. It stays until one of these: the list, DISBAND, the loss of its leader, or the
 *   deadline, which is the time that ACCEPT gave plus 4P.
 *
 *   Leader. It answers an ask of its key at once: ACCEPT while there is room. It counts the ranks
 *   that have asked it. An ask may have waited for longer than P/2, because this rank had not
 *   begun, followed another, or had no room. Then its sender may have gone elsewhere: the leader
 *   answers ACCEPT with "confirm", and counts the ask when CONFIRM arrives within P.
 *
 *   A leader that a lower rank accepts disbands its group: its followers ask there. Their asks stay
 *   filed, and are answered again if the lower rank fails. Asks that were rejected because this
 *   rank followed another or had no room stay filed as well, so that no rank has to ask repeatedly
 *   whether that has changed.
 *
 *   A leader closes when nothing is open (no ask younger than P, no lower candidate that was not
 *   asked, no missing CONFIRM) and either `expected` or `max_members` ranks are in or its window
 *   has ended. It asks no rank later than 2P after its window, so it closes within 3P.
 *
 * Reasons of REJECT.
 *
 *   KEY       This rank has another key. Final for this round.
 *   CLOSED    This rank has a list of this round. Final.
 *   GONE      This rank has ended or left this round. Final. The message tells its current round,
 *             or this round if it was the last one and this rank left it without using it.
 *   FOLLOWS   This rank follows another: ask that one. The ask is filed.
 *   FULL      `max_members` ranks have asked. The ask is filed.
 *   LOWER     The asker precedes this rank, so it should lead: it had a wrong time of this rank,
 *             and does not ask this rank again.
 *
 * An ask for a round that this rank has not begun is filed until the round begins.
 *
 * There is no cycle: a rank that accepts compares its priority with the asker's, so the follower's
 * priority value is always the greater one. There is no deadlock: every wait has an alarm. There is
 * no message storm: MATCH_TRIES bounds the asks for each candidate and round, and each ask causes
 * at most a few other messages. If all ranks begin within P/4 and know the lowest one, a group of M
 * takes 2(M - 1) messages and M - 1 lists. A list is ceil(M/8) messages if bandwidth and chain are
 * the same for all members, otherwise ceil(M/2).
 *
 * Guarantees.
 *
 *   1. The members of a group, named (leader, seq), hold the same list. The leader makes it once. A
 *   follower takes a list only from the rank it follows, for an open ask, complete and with itself
 *   in it. A member that has gone elsewhere does not take the list, and reports that (MATCH_VOID):
 *   that group has to be void. This happens only after a failure, or if a message is in flight for
 *   longer than P/4.
 *
 *   2. Without failures, all ranks of a key form one group if they are at most `max_members`, and
 *   if all begin and know each other within the window less 4P. Each rank that looks asks the
 *   lowest rank. A rank that led before the lowest one began has asked the lowest one too, and its
 *   followers come with it.
 *
 *   3. If some ranks fail, the others form groups; they form one group if the failures are reported
 *   (match_present) in time. Each live rank forms a group, alone if need be, or is BEHIND, within
 *   (f + 1) (W + 8P) after the last rank that it meets has begun. W is the longest window and f the
 *   number of failures. After a failure a rank looks for at least 2P more.
 *
 * Clocks. `now` is the rank's own clock; clocks of different ranks may differ by any amount. Ranks
 * tell each other only durations (the rest of the window). The drift during a window must stay
 * below P. goal.time only orders ranks: a rank whose clock is slow leads more often.
 *
 * Messages must be reliable and in order for each pair of ranks.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "protocol/round.h"

enum {
    MATCH_MAX_MEMBERS = UINT16_MAX, /* Most members of a group. */
    MATCH_TRIES = 8,                /* Asks of one candidate in one round. */
    MATCH_NOBODY = UINT32_MAX       /* No rank. */
};

/* Matchmaking does not interpret `chain`; it travels with the member. */
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
    MATCH_KINDS,
    MATCH_VOID /* To the driver: group (peer, list.seq) has to become void. */
};

/* The values of a message of any kind but LIST; those that a kind does not use are zero. */
struct match_note {
    union {
        uint64_t key; /* ASK */
        struct {
            uint32_t reason; /* REJECT: enum match_reason */
            uint32_t hint;   /* REJECT, DISBAND: rank to ask instead, or MATCH_NOBODY */
        };
    };
    int64_t time; /* ASK, and of the hint: priority. ACCEPT: time until the list. */
    union {
        struct {
            float bandwidth; /* ASK */
            uint32_t chain;
        };
        uint64_t confirm; /* ACCEPT: a flag */
        uint64_t at;      /* REJECT: the round that the sender is at */
    };
    uint64_t attempt;
};

/* The values of a LIST: members k, k + 1 … of the list. If all members differ only in their ranks,
 * and the ranks fit in 16 bits, `part` has the flag PART_ALIKE. */
enum { PART_ALIKE = 0x8000, PART_MEMBERS = 8 };
struct match_part {
    union {
        struct {
            struct {
                uint32_t rank;
                float bandwidth;
            } each[2];
            uint32_t chain[2];
        };
        struct {
            float bandwidth;
            uint32_t chain;
            uint16_t rank[PART_MEMBERS];
        } alike;
    };
    uint16_t count;   /* Members of the list. */
    uint16_t attempt; /* The lowest bits of the attempt that it answers. */
    uint32_t seq;     /* Of the group. */
};

/* `peer` is the receiver of a message to be sent, the sender of one that has arrived. */
struct match_message {
    uint32_t peer;
    uint16_t kind, part;
    uint64_t round;
    union {
        uint64_t value[4];
        struct match_note note;
        struct match_part list;
    };
};
_Static_assert(sizeof(struct match_note) == 4 * sizeof(uint64_t) &&
                   sizeof(struct match_part) == 4 * sizeof(uint64_t),
               "both are the four values of a message");

struct match_goal {
    uint64_t round, key;
    int64_t time;         /* Priority: the lower (time, rank) leads. */
    uint32_t max_members; /* Clipped to 1 … MATCH_MAX_MEMBERS. */
    uint32_t expected;    /* Close as soon as this many ranks are in; 0: not known. */
    int64_t window;       /* From begin until a leader closes at the latest; ns. */
    struct match_member self;
};

enum match_state {
    MATCH_IDLE,
    MATCH_LOOKING,
    MATCH_FOLLOWING,
    MATCH_FORMED,
    MATCH_BEHIND
};

/* A group. Its name (leader, seq) is unique. Members are sorted by rank. */
struct match_list {
    uint32_t leader, seq;
    uint32_t count;
    const struct match_member *members;
};

struct match_peer; /* Defined in matchmaking.c. */

/* Messages to be sent, and after them this rank's own list, if it has formed one. */
struct match_outbox {
    struct match_message *ring;
    uint32_t capacity;
    uint64_t head, tail;
    uint64_t lost;     /* Messages dropped because the driver did not fetch them. */
    bool alike;        /* The members of the list differ only in their ranks. */
    uint32_t to, part; /* The next member and part to send. */
};

struct match {
    uint32_t rank, size;
    int64_t now; /* Of the event that is handled. */
    int64_t answer_timeout;
    int64_t longest_window; /* No leader waits longer; INT64_MAX: not known. */
    enum match_state state;
    struct match_goal goal;
    struct match_peer *peers;
    uint64_t floor; /* Rounds below it have ended here, or were left. Told to others. */
    uint64_t ahead; /* The highest round of a candidate that is ahead. While BEHIND,
                       the round that the others are at. */
    bool told;      /* A rank that has ended this round has reported that. */
    bool has_left;  /* `left` is the last round, which this rank left unused. */
    uint64_t left;

    /* Asking. */
    bool given; /* Candidates were given at least once. */
    int64_t window_end;
    bool window_over;
    uint32_t *candidates, candidate_count;
    uint32_t asking; /* or MATCH_NOBODY */
    int64_t ask_by;
    uint32_t attempt; /* Of the last ask; never 0. */

    /* Leading. */
    uint32_t *followers, follower_count;
    uint32_t unconfirmed; /* Followers that have not confirmed. */
    bool offer;           /* Filed asks may be accepted now. */
    uint32_t seq;

    /* Following. */
    uint32_t leader; /* or MATCH_NOBODY */
    int64_t follow_by;
    struct match_list list; /* The list that is arriving, or that is formed. */
    struct match_member *members;
    uint32_t listed; /* Members of it that have arrived. */

    struct match_outbox out;
};

/* Initialize. answer_timeout (ns) is P: equal on all ranks, and at least four times what a message
 * takes. PCOLL_EINVAL, PCOLL_ENOMEM. */
int match_init(struct match *m, uint32_t rank, uint32_t size, int64_t answer_timeout);
void match_destroy(struct match *m);

/*
 * After each of the following calls, send all messages that match_next returns and read the state:
 * the next call may drop an own list. `now` never decreases. Only match_tick gives up waiting:
 * first handle the messages that have arrived, so that a rank that was late does not blame others.
 *
 * Begin a round, and abandon the current one. Rounds ascend; an earlier one is BEHIND at once.
 */
void match_begin(struct match *m, int64_t now, const struct match_goal *goal);
/* Add candidates: the ranks that have declared this key in a directory, or all live ranks of a
 * static line with time 0. May be called again with more; this rank and repetitions are ignored.
 * Before the first call only the end of the window closes a group. */
void match_candidates(struct match *m, int64_t now, const struct match_entry *entries,
                      uint32_t count);
/* Set the number of expected ranks later, or change it. */
void match_expect(struct match *m, int64_t now, uint32_t expected);
/* A rank is back: it may be asked again in this round. Or it has left or is suspected (`present` is
 * false): treat it as if it had left this round, unless it asks again. */
void match_present(struct match *m, int64_t now, uint32_t peer, bool present);
/* Handle a message, in any state. PCOLL_EPROTOCOL: no correct sender makes it, nothing changes. */
int match_on_message(struct match *m, int64_t now, const struct match_message *message);
/* Apply all timeouts that have passed. */
void match_tick(struct match *m, int64_t now);
/* Return when to call match_tick; INT64_MAX: no need. */
int64_t match_alarm(const struct match *m);
/* End the round, which was used or, while looking or following, is abandoned: the leader or the
 * followers are told. The state is IDLE; asks for rounds up to this one are answered with GONE. */
void match_end(struct match *m);

/* Begin again after ranks have died: all messages are lost. The next round is `first` or later. */
void match_restart(struct match *m, uint64_t first);

/* Return whether this rank has asked a rank or follows one: then it may be on a list already. */
bool match_bound(const struct match *m);

/* Fetch the next message to be sent, or a MATCH_VOID: a list names a member that does not keep it,
 * this rank or one that left after this rank had closed its list. False: no more. */
bool match_next(struct match *m, struct match_message *out);

/* Return the list while FORMED, otherwise NULL. It is valid until match_end. */
const struct match_list *match_formed(const struct match *m);

/* Parts of a list: how many members this message has room for, and the index of the first one. */
uint32_t match_part_holds(const struct match_message *message);
uint32_t match_part_first(const struct match_message *message);
void match_put_member(struct match_message *message, uint32_t i,
                      const struct match_member *member);

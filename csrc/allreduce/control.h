/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control messages between the endpoints of a handle, made and decoded.
 *
 * Bad messages. control_decode is the only code that reads the words of one; the headers
 * of data messages are checked by round_header_check (protocol/round.h) and their lengths
 * by data_received. What no sound rank sends (an edge, rank, count, flag or round outside
 * its bounds, a sender that has no part in it) is refused with PCOLL_EPROTOCOL before it
 * changes anything, and so is a number of rounds to close with that the ranks cannot have
 * agreed on. The communicator then fails on this rank: every call returns
 * PCOLL_EPROTOCOL, nothing waits, and its objects can only be freed. A message that could
 * be, but is late or repeated, is dropped.
 */
#ifndef PCOLL_ALLREDUCE_CONTROL_H
#define PCOLL_ALLREDUCE_CONTROL_H

#include "allreduce/endpoint.h"

/*
 * Who is missing? What a rank answers when it is asked where it is: its agent does, for
 * each rank of its domain. An answer carries, in `round`, the rank; in value[0], the
 * round that its next call stands for; in value[1], how many rounds it has activated,
 * shifted by 8, and the flags below.
 */

enum answer_flag {
    ANSWERED = 1,
    HAS_ARRIVED = 2,
    HAS_JOINED = 4,
    HAS_LEFT = 8,
    IS_CLOSING = 16,
    IS_CALLING = 32,
    ALL_ANSWER_FLAGS = 63
};

struct stall_answer {
    uint64_t next, activated;
    unsigned flags;
};

/* What comes back, for somebody who waits for it. */
struct stall_answers {
    uint32_t size;
    _Atomic uint32_t missing;
    struct stall_answer *by_rank;
};

/* Member `who` of this domain, as far as all may know. */
struct stall_answer stall_answer_of(const struct endpoint *v, uint32_t who);
/* Driver: answer a question; take an answer. */
int stall_answer_send(const struct endpoint *v, uint32_t source);
void stall_answer_take(struct endpoint *v, uint32_t rank,
                       const struct stall_answer *answer);

enum control_kind {
    CONTROL_ACTIVATE,
    CONTROL_LAST,
    CONTROL_ASK,
    CONTROL_ANSWER,
    CONTROL_REPORT /* to the coordinator of a round */
};

/* A message that has come; each kind has some of the fields. */
struct control_message {
    enum control_kind kind;
    uint32_t source;
    uint64_t round;              /* ACTIVATE, REPORT */
    int edge;                    /* ACTIVATE, LAST */
    uint32_t endpoint;           /* REPORT: whose it is … */
    struct policy_report report; /* … what has come there … */
    uint32_t starter;            /* … and who may have started it, or ROUND_NOBODY */
    uint32_t rank;               /* ANSWER: about whom */
    struct stall_answer answer;
};

/* PCOLL_EPROTOCOL. */
int control_decode(const struct endpoint *v, uint32_t source, const struct control *c,
                   struct control_message *m);

/* Of the current round; `edge` is the activation's. */
static inline int control_send(const struct endpoint *v, uint32_t rank,
                               enum control_kind kind, int edge)
{
    struct transport *t = v->communicator->transport;
    struct control message = {.handle = v->base.slot,
                              .kind = (uint16_t)kind,
                              .edge = (uint16_t)edge,
                              .round = v->engine.current};
    return t->ops->control(t, rank, &message);
}

/*
 * Who is missing? A rank that waits for too long asks all others where they are; their
 * agents answer. What comes out is one sentence for people.
 */

/* Application: ask, collect for at most patience_us, write the sentence. */
int stall_report_run(struct endpoint *v, int64_t patience_us, char *text,
                     uint64_t capacity);
/* The same of a handle that this rank frees: which ranks do not? */
int stall_report_unfreed(struct endpoint *v, int64_t patience_us, char *text,
                         uint64_t capacity);

#endif

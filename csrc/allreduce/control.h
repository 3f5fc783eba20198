/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control messages between the endpoints of a handle: sending, decoding, and the answers to
 * the question where a rank is.
 *
 * Bad messages. control_decode is the only code that reads the words of a message; the headers
 * of data messages are checked by round_header_check (protocol/round.h) and their lengths by
 * data_received. A correct rank never sends an edge, rank, count, flag or round outside its
 * bounds, nor a message in which it has no part. Such a message is refused with PCOLL_EPROTOCOL
 * before it changes anything, and so is a number of rounds to close with that the ranks cannot
 * have agreed on. The communicator then fails on this rank: every call returns PCOLL_EPROTOCOL,
 * no call waits, and its objects can only be freed. A possible message that is late or repeated
 * is dropped.
 */
#pragma once

#include "allreduce/endpoint.h"

enum control_kind {
    CONTROL_ACTIVATE, /* A round starts. */
    CONTROL_LAST,     /* The last message on an edge. */
    CONTROL_ASK,      /* Where are the ranks of your domain? */
    CONTROL_ANSWER,   /* Where one of them is. */
    CONTROL_REPORT    /* Arrivals, for the coordinator of a round. */
};

enum answer_flag {
    ANSWERED = 1,
    HAS_ARRIVED = 2,
    HAS_JOINED = 4,
    HAS_LEFT = 8,
    IS_CLOSING = 16,
    IS_CALLING = 32,
    ALL_ANSWER_FLAGS = 63
};

/*
 * The state of a rank. The agent of its domain's leader answers for each rank of the domain. A
 * handle closes only after every rank that asked a question has all answers to it. In a message, `round` is the rank, value[0] is `next`, and value[1] is `activated` << 8 | `flags`.
 */
struct stall_answer {
    uint64_t next;      /* The round that its next call stands for. */
    uint64_t activated; /* Number of rounds that it has activated. */
    unsigned flags;
};

/* The answers to one question. */
struct stall_answers {
    uint32_t size;
    _Atomic uint32_t missing;
    struct stall_answer *by_rank;
    uint64_t *awaited;     /* Set of the ranks that matter. */
    struct outage *outage; /* Of the communicator: no rank answers during an outage. */
};

/* A decoded message. Each kind has some of the fields. */
struct control_message {
    enum control_kind kind;
    uint32_t source;
    uint64_t round;              /* ACTIVATE, REPORT */
    int edge;                    /* ACTIVATE, LAST */
    uint32_t endpoint;           /* REPORT: the endpoint that sent it. */
    struct policy_report report; /* REPORT: the arrivals there. */
    uint32_t starter; /* REPORT: the rank that may start it, or ROUND_NOBODY. */
    uint32_t rank;    /* ANSWER: the rank that it is about. */
    struct stall_answer answer;
};

/* Decode and check a message. PCOLL_EPROTOCOL: no correct rank sends it. */
int control_decode(const struct endpoint *endpoint, uint32_t source,
                   const struct control *c, struct control_message *m);

/* Send a message about the current round. `edge` is an edge of the activation. */
static inline int control_send(const struct endpoint *endpoint, uint32_t rank,
                               enum control_kind kind, int edge)
{
    struct transport *t = endpoint->communicator->transport;
    struct control message = {.handle = endpoint->base.slot,
                              .kind = (uint16_t)kind,
                              .edge = (uint16_t)edge,
                              .round = endpoint->engine.current};
    return t->ops->control(t, rank, &message);
}

/* Driver, before COUNTING: ask the leaders of all other domains. */
int stall_question_send(struct endpoint *endpoint);
/* Driver: answer a question. */
int stall_answer_send(const struct endpoint *endpoint, uint32_t source);
/* Driver: store an answer. */
void stall_answer_take(struct endpoint *endpoint, uint32_t rank,
                       const struct stall_answer *answer);

/*
 * Application, which has waited too long: read from shared memory where the ranks of this domain
 * are, ask the leaders of the other domains, and collect answers for at most patience_us. Write a
 * sentence for users about the ranks that hold the round up; or, if this rank frees the handle,
 * about those that do not free it.
 */
int stall_report(struct endpoint *endpoint, bool frees, int64_t patience_us, char *text,
                 uint64_t capacity);

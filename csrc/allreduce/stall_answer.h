/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is missing? What a rank answers when it is asked where it is: its agent does, for
 * each rank of its domain. An answer carries, in `round`, the rank; in value[0], the
 * round that its next call stands for; in value[1], how many rounds it has activated,
 * shifted by 8, and the flags below.
 */
#ifndef PCOLL_ALLREDUCE_STALL_ANSWER_H
#define PCOLL_ALLREDUCE_STALL_ANSWER_H

#include "allreduce/endpoint.h"

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

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Questions who is missing, as they are answered; see stall_answer.h. */
#include "allreduce/stall_answer.h"

#include "allreduce/control.h"
#include "base/check.h"

struct stall_answer stall_answer_of(const struct endpoint *v, uint32_t who)
{
    CHECK(who < v->placement.members);
    struct member m;
    v->domain->ops->poll(v->domain, (int)who, &m);
    unsigned flags = ANSWERED;
    flags |= m.arrived ? HAS_ARRIVED : 0;
    flags |= m.started ? IS_CALLING : 0;
    flags |= m.joining ? HAS_JOINED : 0;
    flags |= m.left ? HAS_LEFT : 0;
    flags |= m.retired ? IS_CLOSING : 0;
    return (struct stall_answer){
        .next = m.delivered, .activated = m.frozen, .flags = flags};
}

int stall_answer_send(const struct endpoint *v, uint32_t source)
{
    struct transport *t = v->communicator->transport;
    int rc = PCOLL_OK;
    for (uint32_t who = 0; who < v->placement.members && rc == PCOLL_OK; who++) {
        struct stall_answer a = stall_answer_of(v, who);
        struct control message = {.handle = v->base.slot,
                                  .kind = CONTROL_ANSWER,
                                  .round = v->placement.member[who],
                                  .value = {a.next, a.activated << 8 | a.flags}};
        rc = t->ops->control(t, source, &message);
    }
    return rc;
}

void stall_answer_take(struct endpoint *v, uint32_t rank,
                       const struct stall_answer *answer)
{
    struct stall_answers *s = v->stall_answers;
    CHECK(rank < v->placement.ranks && answer->flags & ANSWERED);
    if (!s || s->by_rank[rank].flags) /* too late, or an old one */
        return;
    s->by_rank[rank] = *answer;
    if (atomic_fetch_sub(&s->missing, 1) == 1 && v->communicator->progress)
        progress_wake_waiters(v->communicator->progress);
}

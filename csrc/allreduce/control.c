/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding of control messages, one function for each kind, and stall answers; see control.h. */
#include "allreduce/control.h"

#include "base/check.h"
#include "base/error.h"

static int control_refuse(const struct control *c, uint32_t source, const char *why)
{
    return fail(PCOLL_EPROTOCOL,
                "rank %u sent a control message of kind %u that cannot be: %s", source,
                c->kind, why);
}

/* Return whether `rank` leads the domain of rank `about`. Ranks that have died are in no
 * domain. */
static bool control_leads(const struct placement *p, uint64_t about, uint32_t rank)
{
    return about < p->ranks && placement_domain(p, about) < p->domains &&
           placement_leader(p, placement_domain(p, about)) == rank;
}

/* The sender must be at the other end of an edge of the activation to this endpoint. */
static int control_decode_edge(const struct endpoint *endpoint, const struct control *c,
                               struct control_message *m)
{
    const struct activation *a = &endpoint->activation;
    if (!endpoint->drives || c->edge >= a->edges ||
        m->source != (uint32_t)endpoint->sched->ops[a->from[c->edge]].peer)
        return control_refuse(c, m->source, "its edge");
    m->edge = c->edge;
    return PCOLL_OK;
}

static int control_decode_report(const struct endpoint *endpoint,
                                 const struct control *c, struct control_message *m)
{
    const struct placement *p = &endpoint->placement;
    struct policy_report r = {.arrived = (uint32_t)(c->value[0] >> 32),
                              .drawn = (uint32_t)c->value[0],
                              .overdue = (uint32_t)(c->value[1] >> 32)};
    m->starter = (uint32_t)c->value[1];
    m->endpoint = placement_domain(p, m->source);
    m->report = r;
    if (!endpoint->drives || !endpoint->trigger.reports_sent ||
        !control_leads(p, m->source, m->source))
        return control_refuse(c, m->source, "nobody reports here");
    if (r.arrived > p->ranks || r.drawn > p->ranks || r.overdue > p->ranks ||
        (r.arrived && r.arrived < r.drawn))
        return control_refuse(c, m->source, "how many ranks have come");
    if (m->starter != ROUND_NOBODY &&
        (m->starter >= p->ranks || placement_domain(p, m->starter) != m->endpoint))
        return control_refuse(c, m->source, "who has started it");
    return c->round > endpoint->engine.current + 1
               ? control_refuse(c, m->source, "its round")
               : PCOLL_OK;
}

static int control_decode_answer(const struct endpoint *endpoint,
                                 const struct control *c, struct control_message *m)
{
    const struct placement *p = &endpoint->placement;
    m->answer = (struct stall_answer){.next = c->value[0],
                                      .activated = c->value[1] >> 8,
                                      .flags = c->value[1] & 0xff};
    if (!control_leads(p, c->round, m->source))
        return control_refuse(c, m->source, "the rank that it is about");
    if (!(m->answer.flags & ANSWERED) || m->answer.flags & ~(unsigned)ALL_ANSWER_FLAGS)
        return control_refuse(c, m->source, "its flags");
    m->rank = (uint32_t)c->round;
    return PCOLL_OK;
}

int control_decode(const struct endpoint *endpoint, uint32_t source,
                   const struct control *c, struct control_message *m)
{
    *m = (struct control_message){
        .kind = (enum control_kind)c->kind, .source = source, .round = c->round};
    switch (m->kind) {
    case CONTROL_ACTIVATE:
    case CONTROL_LAST:
        return control_decode_edge(endpoint, c, m);
    case CONTROL_REPORT:
        return control_decode_report(endpoint, c, m);
    case CONTROL_ANSWER:
        return control_decode_answer(endpoint, c, m);
    case CONTROL_ASK:
        return PCOLL_OK;
    }
    return control_refuse(c, source, "its kind");
}

struct stall_answer stall_answer_of(const struct endpoint *endpoint, uint32_t who)
{
    CHECK(who < endpoint->placement.members);
    struct member m;
    endpoint->domain->ops->poll(endpoint->domain, (int)who, &m);
    unsigned flags = ANSWERED;
    flags |= m.arrived ? HAS_ARRIVED : 0;
    flags |= m.started ? IS_CALLING : 0;
    flags |= m.joining ? HAS_JOINED : 0;
    flags |= m.left ? HAS_LEFT : 0;
    flags |= m.retired ? IS_CLOSING : 0;
    return (struct stall_answer){
        .next = m.delivered, .activated = m.frozen, .flags = flags};
}

int stall_question_send(struct endpoint *endpoint)
{
    struct transport *t = endpoint->communicator->transport;
    const struct placement *p = &endpoint->placement;
    struct control question = {.handle = endpoint->base.slot, .kind = CONTROL_ASK};
    int rc = PCOLL_OK;
    CHECK(atomic_load(&endpoint->closing) < COUNTING);
    endpoint->unanswered += t->living - p->members;
    for (uint32_t i = 0; i < p->domains && rc == PCOLL_OK; i++)
        if (i != p->index)
            rc = t->ops->control(t, placement_leader(p, i), &question);
    return rc;
}

int stall_answer_send(const struct endpoint *endpoint, uint32_t source)
{
    struct transport *t = endpoint->communicator->transport;
    int rc = PCOLL_OK;
    for (uint32_t who = 0; who < endpoint->placement.members && rc == PCOLL_OK; who++) {
        struct stall_answer a = stall_answer_of(endpoint, who);
        struct control message = {.handle = endpoint->base.slot,
                                  .kind = CONTROL_ANSWER,
                                  .round = endpoint->placement.member[who],
                                  .value = {a.next, a.activated << 8 | a.flags}};
        rc = t->ops->control(t, source, &message);
    }
    return rc;
}

void stall_answer_take(struct endpoint *endpoint, uint32_t rank,
                       const struct stall_answer *answer)
{
    struct stall_answers *s = endpoint->stall_answers;
    endpoint->unanswered -= endpoint->unanswered > 0;
    CHECK(rank < endpoint->placement.ranks && answer->flags & ANSWERED);
    if (!s || s->by_rank[rank].flags) /* The question has ended, or was answered. */
        return;
    s->by_rank[rank] = *answer;
    if (atomic_fetch_sub(&s->missing, 1) == 1 && endpoint->communicator->progress)
        progress_wake_waiters(endpoint->communicator->progress);
}

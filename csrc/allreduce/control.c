/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding of control messages, one function for each kind, and stall reports; see control.h. */
#include "allreduce/control.h"

#include <stdlib.h>

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
        m->source != (uint32_t)endpoint->sched->ops[a->from + c->edge].peer)
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

/* Stall reports. */

/* Return where member `who` of this domain is, as far as its shared memory tells. */
static struct stall_answer stall_answer_of(const struct endpoint *endpoint,
                                           uint32_t who)
{
    CHECK(who < endpoint->placement.members);
    struct member m;
    node_poll(endpoint->domain, (int)who, &m);
    unsigned flags = ANSWERED;
    flags |= m.arrived ? HAS_ARRIVED : 0;
    flags |= m.started ? IS_CALLING : 0;
    flags |= m.joining ? HAS_JOINED : 0;
    flags |= m.left ? HAS_LEFT : 0;
    flags |= m.retired ? IS_CLOSING : 0;
    return (struct stall_answer){
        .next = m.delivered, .activated = m.frozen, .flags = flags};
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

static bool stall_report_complete(void *arg)
{
    struct stall_answers *q = arg;
    return atomic_load(&q->missing) == 0 || outage_now(q->outage);
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

/* Note the ranks whose arrivals start the round, as far as this rank can tell; all ranks if it
 * cannot. */
static void stall_report_note_awaited(struct endpoint *endpoint,
                                      struct stall_answers *q)
{
    size_t words = bitset_words(q->size);
    const uint64_t *awaited = NULL;
    if (endpoint->drives)
        awaited = endpoint_awaited(endpoint);
    else if (endpoint->placement.domains == 1)
        awaited = node_awaited(endpoint->domain);
    if (awaited)
        memcpy(q->awaited, awaited, words * sizeof *awaited);
    else
        bitset_fill(q->awaited, q->size);
    for (size_t i = 0; endpoint->shape.failed && i < words; i++)
        q->awaited[i] &= ~endpoint->shape.failed[i];
}

static void stall_report_collect(struct endpoint *endpoint, struct stall_answers *q,
                                 int64_t patience_us)
{
    struct progress *p = endpoint->communicator->progress;
    for (uint32_t who = 0; who < endpoint->placement.members; who++)
        q->by_rank[endpoint->placement.member[who]] = stall_answer_of(endpoint, who);
    progress_lock(p);
    endpoint->stall_answers = q;
    stall_report_note_awaited(endpoint, q);
    /* All ranks free a handle that has entered its closing: no answer is needed. */
    bool asks = atomic_load(&endpoint->closing) < COUNTING;
    for (uint32_t rank = 0; !asks && rank < q->size; rank++)
        q->by_rank[rank].flags |= ANSWERED | IS_CLOSING;
    int rc = asks ? stall_question_send(endpoint) : PCOLL_EAGAIN;
    progress_unlock(p);
    if (rc == PCOLL_OK)
        progress_wait(p, stall_report_complete, q, patience_us);
    progress_lock(p);
    endpoint->stall_answers = NULL;
    progress_unlock(p);
}

/* Say why this rank does not take part in the round, unless it does. */
static void stall_report_say_rank(struct text *t, uint32_t rank,
                                  const struct stall_answer *a, uint64_t round)
{
    const char *separator = t->items ? "; " : "";
    unsigned long long next = a->next;
    if (!(a->flags & ANSWERED))
        text_add(t, "%srank %u does not answer", separator, rank);
    else if (a->activated > round || (a->flags & HAS_ARRIVED))
        return;
    else if (a->flags & (HAS_LEFT | IS_CLOSING))
        text_add(t, "%srank %u has left its loop", separator, rank);
    else if (a->flags & HAS_JOINED)
        return;
    else if (a->flags & IS_CALLING)
        text_add(t, "%srank %u has not collected round %llu", separator, rank, next);
    else
        text_add(t, "%srank %u has not arrived: its next call is for round %llu",
                 separator, rank, next);
    t->items++;
}

/* Name the running operations, those of the same kind and peer together. */
static void stall_report_say_pending(struct text *t, const struct endpoint *endpoint)
{
    enum { MAX_NAMED = 6 };
    const struct engine *e = &endpoint->engine;
    const struct op *ops = endpoint->sched->ops;
    int named = 0;
    for (uint32_t i = 0; i < endpoint->sched->count; i++) {
        uint32_t first = i;
        int alike = 0;
        if (engine_state(e, e->current, (int)i) != OP_RUNNING)
            continue;
        for (uint32_t k = endpoint->sched->count; k-- > 0;)
            if (engine_state(e, e->current, (int)k) == OP_RUNNING &&
                ops[k].kind == ops[i].kind && ops[k].peer == ops[i].peer)
                first = k, alike++;
        if (first != i) /* It was named with an earlier one. */
            continue;
        text_add(t, named ? ", " : "; pending here: ");
        if (named++ == MAX_NAMED) {
            text_add(t, "…");
            return;
        }
        text_add(t, "%d %s", alike, op_kind_name(ops[i].kind));
        if (ops[i].peer >= 0)
            text_add(t, " %s rank %d", ops[i].kind == OP_SEND ? "to" : "from",
                     ops[i].peer);
    }
}

/* Name the ranks that hold a part of the round's work in shared memory and do not go on. */
static void stall_report_say_busy(struct text *t, struct endpoint *endpoint,
                                  uint64_t *set)
{
    bitset_clear(set, bitset_words(endpoint->placement.ranks));
    node_busy(endpoint->domain, set);
    for (uint32_t rank = 0; rank < endpoint->placement.ranks; rank++)
        if (bitset_has(set, rank) && rank != endpoint->communicator->transport->rank)
            text_add(t,
                     "%srank %u is in the middle of the reduction and does not go on",
                     t->items++ ? "; " : "", rank);
}

static void stall_report_write_missing(struct text *t, struct endpoint *endpoint,
                                       const struct stall_answers *q)
{
    struct member own;
    node_poll(endpoint->domain, (int)endpoint->placement.who, &own);
    text_add(t, "round %llu: ", (unsigned long long)own.complete);
    for (uint32_t rank = 0; rank < q->size; rank++)
        if (bitset_has(q->awaited, rank))
            stall_report_say_rank(t, rank, &q->by_rank[rank], own.complete);
    stall_report_say_busy(t, endpoint, q->awaited);
    if (!t->items)
        text_add(t, "all ranks have arrived or take part, messages are under way");
    if (endpoint->event_log)
        text_add(
            t, "; arrivals are recorded or replayed: a replay waits for ever where the "
               "program takes another way than it did");
    progress_lock(endpoint->communicator->progress);
    stall_report_say_pending(t, endpoint);
    progress_unlock(endpoint->communicator->progress);
}

static void stall_report_write_unfreed(struct text *t, struct endpoint *endpoint,
                                       const struct stall_answers *q)
{
    text_add(t, "a handle is freed on this rank");
    for (uint32_t rank = 0; rank < q->size; rank++)
        if (!(q->by_rank[rank].flags & IS_CLOSING) &&
            transport_lives(endpoint->communicator->transport, rank))
            text_add(t, t->items++ ? ", %u" : ", and not on rank %u", rank);
    if (!t->items)
        text_add(t, ", and on all ranks that are known to have it");
}

int stall_report(struct endpoint *endpoint, bool frees, int64_t patience_us, char *out,
                 uint64_t capacity)
{
    const struct transport *t = endpoint->communicator->transport;
    struct stall_answers q = {.size = t->size,
                              .outage = endpoint->communicator->outage};
    struct text text = {.at = out, .left = capacity};
    if (!capacity)
        return fail(PCOLL_EINVAL, "no room for the answer");
    q.by_rank = calloc(t->size, sizeof *q.by_rank);
    q.awaited = calloc(bitset_words(t->size), sizeof *q.awaited);
    bool enough = q.by_rank && q.awaited;
    if (enough) {
        atomic_store(&q.missing, t->living - endpoint->placement.members);
        stall_report_collect(endpoint, &q, patience_us);
        (frees ? stall_report_write_unfreed : stall_report_write_missing)(&text,
                                                                          endpoint, &q);
    }
    free(q.by_rank);
    free(q.awaited);
    return enough ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for %u answers", t->size);
}

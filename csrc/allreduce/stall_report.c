/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the others where they are. What the ranks of the own domain do shows in the
 * memory shared with them; of every other domain the leader is asked, and answers for
 * each of its ranks (control.h).
 */
#include "allreduce/control.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"

/* The answers, and the ranks that matter. */
struct stall_query {
    struct stall_answers answers;
    uint64_t *awaited;
    struct outage *outage; /* of the communicator: nobody answers then */
};

static bool stall_report_complete(void *arg)
{
    struct stall_query *q = arg;
    return atomic_load(&q->answers.missing) == 0 || outage_now(q->outage);
}

static int stall_report_ask_all(struct endpoint *v)
{
    struct transport *t = v->communicator->transport;
    struct control question = {.handle = v->base.slot, .kind = CONTROL_ASK};
    for (uint32_t i = 0; i < v->placement.domains; i++) {
        int rc = i == v->placement.index
                     ? PCOLL_OK
                     : t->ops->control(t, v->placement.leader[i], &question);
        if (rc != PCOLL_OK)
            return rc;
    }
    return PCOLL_OK;
}

/* The ranks whose arrivals start the round, as far as this one can tell. */
static const uint64_t *stall_report_awaited(struct endpoint *v)
{
    if (v->drives)
        return endpoint_awaited(v);
    return v->placement.domains == 1 ? v->domain->ops->awaited(v->domain) : NULL;
}

static void stall_report_collect(struct endpoint *v, struct stall_query *q,
                                 int64_t patience_us)
{
    struct progress *p = v->communicator->progress;
    for (uint32_t who = 0; who < v->placement.members; who++)
        q->answers.by_rank[v->placement.member[who]] = stall_answer_of(v, who);
    progress_lock(p);
    v->stall_answers = &q->answers;
    const uint64_t *awaited = stall_report_awaited(v);
    if (awaited)
        memcpy(q->awaited, awaited, bitset_words(q->answers.size) * sizeof *awaited);
    else
        bitset_fill(q->awaited, q->answers.size);
    for (size_t i = 0; v->shape.failed && i < bitset_words(q->answers.size); i++)
        q->awaited[i] &= ~v->shape.failed[i];
    int rc = stall_report_ask_all(v);
    progress_unlock(p);
    if (rc == PCOLL_OK)
        progress_wait(p, stall_report_complete, q, patience_us);
    progress_lock(p);
    v->stall_answers = NULL;
    progress_unlock(p);
}

/* What keeps this rank from taking part in the round; nothing if it does. */
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

/* How many operations like this one have begun and are not over, if it is the first of
 * them. */
static int stall_report_count_alike(const struct endpoint *v, uint32_t first)
{
    const struct engine *e = &v->engine;
    const struct op *like = &v->sched->ops[first];
    int alike = 0;
    for (uint32_t i = 0; i < v->sched->count; i++) {
        const struct op *op = &v->sched->ops[i];
        if (engine_state(e, e->current, (int)i) != OP_RUNNING ||
            op->kind != like->kind || op->peer != like->peer)
            continue;
        if (i < first)
            return 0;
        alike++;
    }
    return alike;
}

static void stall_report_say_pending(struct text *t, const struct endpoint *v)
{
    enum { MAX_NAMED = 6 };
    const struct engine *e = &v->engine;
    int named = 0;
    for (uint32_t i = 0; i < v->sched->count && named <= MAX_NAMED; i++) {
        const struct op *op = &v->sched->ops[i];
        int alike = engine_state(e, e->current, (int)i) == OP_RUNNING
                        ? stall_report_count_alike(v, i)
                        : 0;
        if (!alike)
            continue;
        text_add(t, named++ ? ", " : "; pending here: ");
        if (named > MAX_NAMED)
            text_add(t, "…");
        else
            text_add(t, "%d %s", alike, op_kind_name(op->kind));
        if (named <= MAX_NAMED && op->peer >= 0)
            text_add(t, " %s rank %d", op->kind == OP_SEND ? "to" : "from", op->peer);
    }
}

/* Who holds a part of the round's work in shared memory, and does not go on. */
static void stall_report_say_busy(struct text *t, struct endpoint *v, uint64_t *set)
{
    bitset_clear(set, bitset_words(v->placement.ranks));
    if (v->domain->ops->busy)
        v->domain->ops->busy(v->domain, set);
    for (uint32_t rank = 0; rank < v->placement.ranks; rank++)
        if (bitset_has(set, rank) && rank != v->communicator->transport->rank)
            text_add(t,
                     "%srank %u is in the middle of the reduction and does not go on",
                     t->items++ ? "; " : "", rank);
}

static void stall_report_write(struct text *t, struct endpoint *v,
                               const struct stall_query *q)
{
    struct member own;
    v->domain->ops->poll(v->domain, (int)v->placement.who, &own);
    text_add(t, "round %llu: ", (unsigned long long)own.complete);
    for (uint32_t rank = 0; rank < q->answers.size; rank++)
        if (bitset_has(q->awaited, rank))
            stall_report_say_rank(t, rank, &q->answers.by_rank[rank], own.complete);
    stall_report_say_busy(t, v, q->awaited);
    if (!t->items)
        text_add(t, "all ranks have arrived or take part, messages are under way");
    if (v->event_log)
        text_add(
            t, "; arrivals are recorded or replayed: a replay waits for ever where the "
               "program takes another way than it did");
    progress_lock(v->communicator->progress);
    stall_report_say_pending(t, v);
    progress_unlock(v->communicator->progress);
}

static void stall_report_write_unfreed(struct text *t, struct endpoint *v,
                                       const struct stall_query *q)
{
    text_add(t, "a handle is freed on this rank, and not on rank");
    for (uint32_t rank = 0; rank < q->answers.size; rank++)
        if (!(q->answers.by_rank[rank].flags & IS_CLOSING) &&
            transport_lives(v->communicator->transport, rank))
            text_add(t, "%s %u", t->items++ ? "," : "", rank);
}

static int stall_report_ask(struct endpoint *v, int64_t patience_us, char *out,
                            uint64_t capacity,
                            void (*write)(struct text *t, struct endpoint *v,
                                          const struct stall_query *q))
{
    uint32_t size = v->communicator->transport->size;
    struct stall_query q = {.answers.size = size, .outage = v->communicator->outage};
    if (!capacity)
        return fail(PCOLL_EINVAL, "no room for the answer");
    q.answers.by_rank = calloc(size, sizeof *q.answers.by_rank);
    q.awaited = calloc(bitset_words(size), sizeof *q.awaited);
    int rc = q.answers.by_rank && q.awaited
                 ? PCOLL_OK
                 : fail(PCOLL_ENOMEM, "no memory for %u answers", size);
    if (rc == PCOLL_OK) {
        atomic_store(&q.answers.missing,
                     v->communicator->transport->living - v->placement.members);
        stall_report_collect(v, &q, patience_us);
        write(&(struct text){.at = out, .left = capacity}, v, &q);
    }
    free(q.answers.by_rank);
    free(q.awaited);
    return rc;
}

int stall_report_run(struct endpoint *v, int64_t patience_us, char *text,
                     uint64_t capacity)
{
    return stall_report_ask(v, patience_us, text, capacity, stall_report_write);
}

int stall_report_unfreed(struct endpoint *v, int64_t patience_us, char *text,
                         uint64_t capacity)
{
    return stall_report_ask(v, patience_us, text, capacity, stall_report_write_unfreed);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the others where they are. What the ranks of the own domain do shows in the
 * memory shared with them; of every other domain the leader is asked, and answers for
 * each of its ranks. An answer carries, in `round`, the rank; in value[0], the round
 * that its next call stands for; in value[1], how many rounds it has activated, shifted
 * by 8, and the flags below.
 */
#include "survey.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "../base/error.h"

enum answer_flag {
    ANSWERED = 1,
    HAS_ARRIVED = 2,
    HAS_JOINED = 4,
    HAS_LEFT = 8,
    IS_CLOSING = 16,
    IS_CALLING = 32
};

struct answer {
    uint64_t next, activated;
    unsigned flags;
};

struct survey {
    uint32_t size;
    _Atomic uint32_t missing;
    uint64_t *awaited;      /* the ranks that matter */
    struct answer *answers; /* by rank */
};

static struct answer answer_of(struct vertex *v, uint32_t who)
{
    struct member m;
    v->domain->ops->look(v->domain, (int)who, &m);
    unsigned flags = ANSWERED;
    flags |= m.arrived ? HAS_ARRIVED : 0;
    flags |= m.started ? IS_CALLING : 0;
    flags |= m.joining ? HAS_JOINED : 0;
    flags |= m.left ? HAS_LEFT : 0;
    flags |= m.retired ? IS_CLOSING : 0;
    return (struct answer){.next = m.delivered, .activated = m.frozen, .flags = flags};
}

int survey_answer(struct vertex *v, uint32_t source)
{
    struct transport *t = v->context->transport;
    int rc = PCOLL_OK;
    for (uint32_t who = 0; who < v->plane.members && rc == PCOLL_OK; who++) {
        struct answer a = answer_of(v, who);
        struct control message = {.handle = v->base.slot,
                                  .kind = CONTROL_ANSWER,
                                  .round = v->plane.member[who],
                                  .value = {a.next, a.activated << 8 | a.flags}};
        rc = t->ops->control(t, source, &message);
    }
    return rc;
}

void survey_take(struct vertex *v, const struct control *message)
{
    struct survey *s = v->survey;
    uint64_t rank = message->round;
    if (!s || rank >= s->size || s->answers[rank].flags) /* too late, or an old one */
        return;
    s->answers[rank] = (struct answer){.next = message->value[0],
                                       .activated = message->value[1] >> 8,
                                       .flags = message->value[1] & 0xff};
    if (atomic_fetch_sub(&s->missing, 1) == 1 && v->context->progress)
        progress_notify(v->context->progress);
}

static bool complete(void *arg)
{
    return atomic_load(&((struct survey *)arg)->missing) == 0;
}

static int ask_all(struct vertex *v)
{
    struct transport *t = v->context->transport;
    struct control question = {.handle = v->base.slot, .kind = CONTROL_ASK};
    for (uint32_t i = 0; i < v->plane.domains; i++) {
        int rc = i == v->plane.index
                     ? PCOLL_OK
                     : t->ops->control(t, v->plane.leader[i], &question);
        if (rc != PCOLL_OK)
            return rc;
    }
    return PCOLL_OK;
}

/* The ranks whose arrivals start the round, as far as this one can tell. */
static const uint64_t *awaited_by(struct vertex *v)
{
    if (v->drives)
        return vertex_awaited(v);
    return v->plane.domains == 1 ? v->domain->ops->awaited(v->domain) : NULL;
}

static void collect(struct vertex *v, struct survey *s, int64_t patience_us)
{
    struct progress *p = v->context->progress;
    for (uint32_t who = 0; who < v->plane.members; who++)
        s->answers[v->plane.member[who]] = answer_of(v, who);
    progress_lock(p);
    v->survey = s;
    const uint64_t *awaited = awaited_by(v);
    if (awaited)
        memcpy(s->awaited, awaited, bitset_words(s->size) * sizeof *awaited);
    else
        bitset_fill(s->awaited, s->size);
    int rc = ask_all(v);
    progress_unlock(p);
    if (rc == PCOLL_OK)
        progress_wait(p, complete, s, patience_us);
    progress_lock(p);
    v->survey = NULL;
    progress_unlock(p);
}

struct text {
    char *at;
    size_t left;
    int items;
};

static void __attribute__((format(printf, 2, 3))) say(struct text *t,
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->at, t->left, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < t->left ? (size_t)n : t->left - 1;
    t->at += used;
    t->left -= used;
}

/* What keeps this rank from taking part in the round; nothing if it does. */
static void say_rank(struct text *t, uint32_t rank, const struct answer *a,
                     uint64_t round)
{
    const char *separator = t->items ? "; " : "";
    unsigned long long next = a->next;
    if (!(a->flags & ANSWERED))
        say(t, "%srank %u does not answer", separator, rank);
    else if (a->activated > round || (a->flags & HAS_ARRIVED))
        return;
    else if (a->flags & (HAS_LEFT | IS_CLOSING))
        say(t, "%srank %u has left its loop", separator, rank);
    else if (a->flags & HAS_JOINED)
        return;
    else if (a->flags & IS_CALLING)
        say(t, "%srank %u has not collected round %llu", separator, rank, next);
    else
        say(t, "%srank %u has not arrived: its next call is for round %llu", separator,
            rank, next);
    t->items++;
}

/* How many operations like this one have begun and are not over, if it is the first of
 * them. */
static int count_alike(const struct vertex *v, uint32_t first)
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

static void say_pending(struct text *t, const struct vertex *v)
{
    enum { MOST_NAMED = 6 };
    const struct engine *e = &v->engine;
    int named = 0;
    for (uint32_t i = 0; i < v->sched->count && named <= MOST_NAMED; i++) {
        const struct op *op = &v->sched->ops[i];
        int alike =
            engine_state(e, e->current, (int)i) == OP_RUNNING ? count_alike(v, i) : 0;
        if (!alike)
            continue;
        say(t, named++ ? ", " : "; pending here: ");
        if (named > MOST_NAMED)
            say(t, "…");
        else
            say(t, "%d %s", alike, op_kind_name(op->kind));
        if (named <= MOST_NAMED && op->peer >= 0)
            say(t, " %s rank %d", op->kind == OP_SEND ? "to" : "from", op->peer);
    }
}

/* Who holds a part of the round's work in shared memory, and does not go on. */
static void say_busy(struct text *t, struct vertex *v, uint64_t *set)
{
    bitset_clear(set, bitset_words(v->plane.ranks));
    if (v->domain->ops->busy)
        v->domain->ops->busy(v->domain, set);
    for (uint32_t rank = 0; rank < v->plane.ranks; rank++)
        if (bitset_has(set, rank) && rank != v->context->transport->rank)
            say(t, "%srank %u is in the middle of the reduction and does not go on",
                t->items++ ? "; " : "", rank);
}

int survey_run(struct vertex *v, int64_t patience_us, char *out, uint64_t capacity)
{
    struct survey s = {.size = v->context->transport->size};
    struct text t = {.at = out, .left = capacity};
    if (!capacity)
        return fail(PCOLL_EINVAL, "no room for the answer");
    s.answers = calloc(s.size, sizeof *s.answers);
    s.awaited = calloc(bitset_words(s.size), sizeof *s.awaited);
    if (!s.answers || !s.awaited) {
        free(s.answers);
        free(s.awaited);
        return fail(PCOLL_ENOMEM, "no memory for %u answers", s.size);
    }
    atomic_store(&s.missing, s.size - v->plane.members);
    collect(v, &s, patience_us);

    struct member own;
    v->domain->ops->look(v->domain, (int)v->plane.who, &own);
    say(&t, "round %llu: ", (unsigned long long)own.complete);
    for (uint32_t rank = 0; rank < s.size; rank++)
        if (bitset_has(s.awaited, rank))
            say_rank(&t, rank, &s.answers[rank], own.complete);
    say_busy(&t, v, s.awaited);
    if (!t.items)
        say(&t, "all ranks have arrived or take part, messages are under way");
    if (v->arrivals)
        say(&t,
            "; arrivals are recorded or replayed: a replay waits for ever where the "
            "program takes another way than it did");
    progress_lock(v->context->progress);
    say_pending(&t, v);
    progress_unlock(v->context->progress);
    free(s.answers);
    free(s.awaited);
    return PCOLL_OK;
}

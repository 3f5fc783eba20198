/* SPDX-License-Identifier: Apache-2.0 */
/* Running a user's schedule; see schedule_run.h. */
#include "user_schedule/schedule_run.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "base/error.h"
#include "base/text.h"
#include "runtime/agreement.h"
#include "runtime/closing.h"

/* No job gets there. */
static const uint64_t LAST_RUN = (uint64_t)1 << 43;

static struct schedule_run *of(struct object *p)
{
    return (struct schedule_run *)p;
}

/* A run that this rank has never asked for: the others need its messages. */
static bool is_empty_run(const struct schedule_run *p)
{
    return p->engine.current >= atomic_load(&p->started);
}

static uint32_t tag_of(const struct schedule_run *p, const struct builder_op *op)
{
    return p->base.slot * DATA_EDGES + (uint32_t)op->edge;
}

/* Memory for a message in place of the user's. */
static int stand_in(struct schedule_run *p, int id)
{
    CHECK(!p->ops[id].stand_in);
    size_t bytes = p->builder.ops[id].bytes;
    p->ops[id].stand_in = calloc(1, bytes ? bytes : 1);
    return p->ops[id].stand_in
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a message of %zu bytes", bytes);
}

/* Of a message of this rank to itself, the send is carried out first and leaves a copy,
 * so that it is over whenever the receive begins, as a short message to others is. */
static int send_to_self(struct schedule_run *p, int id)
{
    const struct builder_op *op = &p->builder.ops[id];
    int rc = stand_in(p, op->partner);
    if (rc == PCOLL_OK && op->bytes && !is_empty_run(p))
        memcpy(p->ops[op->partner].stand_in, op->from, op->bytes);
    return rc;
}

static void take_own(struct schedule_run *p, int id)
{
    CHECK(p->ops[id].stand_in);
    const struct builder_op *op = &p->builder.ops[id];
    if (op->bytes && !is_empty_run(p))
        memcpy(op->into, p->ops[id].stand_in, op->bytes);
    free(p->ops[id].stand_in);
    p->ops[id].stand_in = NULL;
}

static int send_own(struct schedule_run *p, int id, bool *finished)
{
    int receive = p->builder.ops[id].partner;
    int rc = send_to_self(p, id);
    *finished = rc == PCOLL_OK;
    if (rc != PCOLL_OK ||
        engine_state(&p->engine, p->engine.current, receive) != OP_RUNNING)
        return rc;
    take_own(p, receive);
    engine_complete(&p->engine, p->engine.current, receive);
    return PCOLL_OK;
}

static void receive_own(struct schedule_run *p, int id, bool *finished)
{
    *finished = p->ops[id].stand_in != NULL;
    if (*finished)
        take_own(p, id);
}

static int send(struct schedule_run *p, int id)
{
    const struct builder_op *op = &p->builder.ops[id];
    struct transport *t = p->communicator->transport;
    int rc = is_empty_run(p) ? stand_in(p, id) : PCOLL_OK;
    const void *from = p->ops[id].stand_in ? p->ops[id].stand_in : op->from;
    return rc == PCOLL_OK ? t->ops->send(t, (uint32_t)op->peer, tag_of(p, op), from,
                                         op->bytes, object_cookie(&p->base, id))
                          : rc;
}

static int receive(struct schedule_run *p, int id)
{
    const struct builder_op *op = &p->builder.ops[id];
    struct transport *t = p->communicator->transport;
    int rc = is_empty_run(p) ? stand_in(p, id) : PCOLL_OK;
    void *into = p->ops[id].stand_in ? p->ops[id].stand_in : op->into;
    return rc == PCOLL_OK ? t->ops->recv(t, (uint32_t)op->peer, tag_of(p, op), into,
                                         op->bytes, object_cookie(&p->base, id))
                          : rc;
}

static bool start_timer(struct schedule_run *p, int id)
{
    int64_t delay = p->builder.ops[id].delay;
    if (is_empty_run(p) || !delay)
        return true;
    p->ops[id].due = communicator_now(p->communicator) + delay;
    communicator_alarm(p->communicator, &p->base, p->ops[id].due);
    return false;
}

/* Carry an operation out, or begin to. *finished: it needs no event to be complete. */
static int issue(struct schedule_run *p, int id, bool *finished)
{
    const struct builder_op *op = &p->builder.ops[id];
    *finished = true;
    switch (op->kind) {
    case OP_SEND:
        if (op->partner >= 0)
            return send_own(p, id, finished);
        *finished = false;
        return send(p, id);
    case OP_RECV:
        *finished = false;
        if (op->partner < 0)
            return receive(p, id);
        receive_own(p, id, finished);
        return PCOLL_OK;
    case OP_REDUCE:
        if (!is_empty_run(p))
            reduce_buffer(op->op, op->dtype, op->into, op->from, op->into, op->count);
        return PCOLL_OK;
    case OP_COPY:
        if (!is_empty_run(p) && op->bytes && op->into != op->from)
            memcpy(op->into, op->from, op->bytes);
        return PCOLL_OK;
    case OP_TIMER:
        *finished = start_timer(p, id);
        return PCOLL_OK;
    case OP_NOP:
    case OP_NATIVE:
        break;
    }
    return fail(PCOLL_EPROTOCOL, "operation %d (%s) cannot be executed here", id,
                op->label);
}

static int run_operations(struct schedule_run *p)
{
    for (int id; (id = engine_next(&p->engine)) >= 0;) {
        bool finished;
        int rc = issue(p, id, &finished);
        if (rc != PCOLL_OK)
            return rc;
        if (finished)
            engine_complete(&p->engine, p->engine.current, id);
    }
    return PCOLL_OK;
}

/* Those whose time has come; an alarm for the others. */
static void end_timers(struct schedule_run *p)
{
    struct engine *e = &p->engine;
    int64_t now = p->timer_count ? communicator_now(p->communicator) : 0;
    for (uint32_t i = 0; i < p->timer_count; i++) {
        uint32_t id = p->timers[i];
        if (engine_state(e, e->current, (int)id) != OP_RUNNING)
            continue;
        if (p->ops[id].due <= now)
            engine_complete(e, e->current, (int)id);
        else
            communicator_alarm(p->communicator, &p->base, p->ops[id].due);
    }
}

static void begin_run(struct schedule_run *p)
{
    CHECK(!p->engine.released);
    engine_release(&p->engine);
    if (p->communicator->progress)
        progress_round(p->communicator->progress, 1);
}

static void finish_run(struct schedule_run *p)
{
    CHECK(engine_over(&p->engine));
    engine_advance(&p->engine);
    atomic_store(&p->finished, p->engine.current);
    if (p->communicator->progress) {
        progress_round(p->communicator->progress, -1);
        progress_wake_waiters(p->communicator->progress);
    }
}

/* Runs that are to be over sooner or later, as far as is known. */
static uint64_t runs_wanted(const struct schedule_run *p)
{
    uint64_t started = atomic_load(&p->started);
    bool drains = atomic_load(&p->closing) == RUN_DRAINING;
    return drains && p->closing_runs > started ? p->closing_runs : started;
}

static int run_wanted(struct schedule_run *p)
{
    while (p->engine.current < runs_wanted(p)) {
        if (!p->engine.released)
            begin_run(p);
        end_timers(p);
        int rc = run_operations(p);
        if (rc != PCOLL_OK || !engine_over(&p->engine))
            return rc;
        finish_run(p);
    }
    return PCOLL_OK;
}

static int schedule_run_run(struct object *base)
{
    struct schedule_run *p = of(base);
    if (atomic_load(&p->closing) == RUN_AGREEING && atomic_load(&p->agreement.done)) {
        if (p->closing_runs < atomic_load(&p->started) || p->closing_runs > LAST_RUN)
            return fail(PCOLL_EPROTOCOL,
                        "the ranks close a schedule after %llu runs, and this one has "
                        "asked for %llu",
                        (unsigned long long)p->closing_runs,
                        (unsigned long long)atomic_load(&p->started));
        atomic_store(&p->closing, RUN_DRAINING);
    }
    int rc = run_wanted(p);
    if (rc != PCOLL_OK || atomic_load(&p->closing) != RUN_DRAINING ||
        p->engine.current < p->closing_runs)
        return rc;
    atomic_store(&p->closing, RUN_CLOSED);
    return communicator_closed(p->communicator, base);
}

static int schedule_run_done(struct object *base, int id, size_t bytes)
{
    struct schedule_run *p = of(base);
    const struct builder_op *op = &p->builder.ops[id];
    if (op->kind == OP_RECV && bytes != op->bytes)
        return fail(PCOLL_EPROTOCOL,
                    "rank %d sent %zu bytes to operation %d (%s), which takes %zu",
                    op->peer, bytes, id, op->label, op->bytes);
    free(p->ops[id].stand_in);
    p->ops[id].stand_in = NULL;
    engine_complete(&p->engine, p->engine.current, id);
    return schedule_run_run(base);
}

static int schedule_run_control(struct object *base, uint32_t source,
                                const struct control *message)
{
    return fail(PCOLL_EPROTOCOL,
                "rank %u sent a control message of kind %u to the schedule in slot %u",
                source, message->kind, base->slot);
}

static int schedule_run_begin_close(struct object *base)
{
    CHECK(atomic_load(&((struct schedule_run *)base)->closing) == RUN_QUEUED);
    struct schedule_run *p = of(base);
    atomic_store(&p->closing, RUN_AGREEING);
    p->closing_runs = atomic_load(&p->started);
    p->agreement = (struct agreement){
        .values = &p->closing_runs, .count = 1, .op = AGREE_MAX, .object = base};
    return communicator_agree(p->communicator, &p->agreement);
}

static const struct object_ops schedule_run_ops = {
    .run = schedule_run_run,
    .done = schedule_run_done,
    .control = schedule_run_control,
    .begin_close = schedule_run_begin_close,
};

void schedule_run_start(struct schedule_run *p)
{
    CHECK(atomic_load(&p->closing) == RUN_OPEN);
    atomic_fetch_add(&p->started, 1);
    communicator_notify(p->communicator, &p->base);
}

int schedule_run_close(struct schedule_run *p)
{
    if (atomic_load(&p->closing) != RUN_OPEN)
        return PCOLL_OK;
    atomic_store(&p->closing, RUN_QUEUED);
    return communicator_close(p->communicator, &p->base);
}

static int allocate(struct schedule_run *p, const struct builder *d)
{
    p->ops = calloc(d->count + 1, sizeof *p->ops);
    p->timers = calloc(d->count + 1, sizeof *p->timers);
    if (!p->ops || !p->timers)
        return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations",
                    d->count);
    for (uint32_t i = 0; i < d->count; i++) {
        if (d->ops[i].kind == OP_TIMER)
            p->timers[p->timer_count++] = i;
        if (d->ops[i].edge >= (int64_t)p->base.slots * DATA_EDGES)
            return fail(PCOLL_EPROTOCOL, "message %d does not fit into %u slots",
                        d->ops[i].edge, p->base.slots);
    }
    return PCOLL_OK;
}

int schedule_run_create(struct communicator *c, struct builder *d, struct sched *s,
                        struct schedule_run **out)
{
    CHECK(s->committed);
    struct schedule_run *p = calloc(1, sizeof *p);
    if (!p)
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    p->base = object_init(&schedule_run_ops);
    p->base.slots = d->tags ? (d->tags + DATA_EDGES - 1) / DATA_EDGES : 1;
    p->communicator = c;
    int rc = allocate(p, d);
    if (rc == PCOLL_OK)
        rc = engine_init(&p->engine, s);
    if (rc != PCOLL_OK) {
        schedule_run_destroy(&p);
        return rc;
    }
    p->builder = *d;
    p->sched = s;
    *d = (struct builder){.rank = d->rank, .size = d->size};
    *out = p;
    return PCOLL_OK;
}

void schedule_run_destroy(struct schedule_run **at)
{
    struct schedule_run *p = *at;
    engine_destroy(&p->engine);
    sched_free(&p->sched);
    for (uint32_t i = 0; p->ops && i < p->builder.count; i++)
        free(p->ops[i].stand_in);
    builder_destroy(&p->builder);
    free(p->ops);
    free(p->timers);
    free(p);
    *at = NULL;
}

/* What a run waits for, as one sentence for people. */

enum { MAX_NAMED = 8 };

static void add_operation(struct text *t, uint32_t id, const struct builder_op *op)
{
    text_add(t, "operation %u (%s %s) ", id, op_kind_name(op->kind), op->label);
    if (op->kind == OP_RECV)
        text_add(t, "waits for rank %d", op->peer);
    else if (op->kind == OP_SEND)
        text_add(t, "waits for rank %d to receive", op->peer);
    else
        text_add(t, "has not run out");
}

void schedule_run_pending(const struct schedule_run *p, char *text, size_t capacity)
{
    const struct engine *e = &p->engine;
    uint32_t more = 0;
    struct text t = {.at = text, .left = capacity};
    text_add(&t, "run %llu of a schedule: ", (unsigned long long)e->current);
    for (uint32_t i = 0; i < p->builder.count; i++) {
        if (engine_state(e, e->current, (int)i) != OP_RUNNING)
            continue;
        if (t.items == MAX_NAMED) {
            more++;
            continue;
        }
        text_add(&t, "%s", t.items++ ? "; " : "");
        add_operation(&t, i, &p->builder.ops[i]);
    }
    if (more)
        text_add(&t, "; and %u more", more);
    else if (!t.items)
        text_add(&t, "%s",
                 atomic_load(&p->closing) == RUN_OPEN
                     ? "nothing is under way"
                     : "some ranks have not freed it yet");
}

/* Everybody's messages on every rank; only when they are known not to match. */
static int report_mismatch(struct communicator *c, const struct builder *d)
{
    uint64_t *counts, total, before;
    int rc = agree_gather(c, messages_count(d), &counts);
    if (rc == PCOLL_OK)
        rc = messages_place(d, counts, &before, &total);
    free(counts);
    if (rc != PCOLL_OK)
        return rc;
    bool fits = total <= INT_MAX / MESSAGE_WORDS;
    uint64_t *words = fits ? calloc(total * MESSAGE_WORDS + 1, sizeof *words) : NULL,
             none = !words;
    rc = agree_max(c, &none, 1);
    if (rc == PCOLL_OK && none)
        rc = fail(PCOLL_EMISMATCH, "the schedules do not match: %llu messages in all",
                  (unsigned long long)total);
    if (rc == PCOLL_OK) {
        messages_write(d, words + before * MESSAGE_WORDS);
        rc = agree_max(c, words, (int)(total * MESSAGE_WORDS));
    }
    if (rc == PCOLL_OK)
        rc = messages_compare(words, total);
    free(words);
    return rc == PCOLL_OK ? fail(PCOLL_EMISMATCH, "the schedules do not match") : rc;
}

/* Is everybody's part valid, and does every send have its receive? */
static int compare_messages(struct communicator *c, int local, struct builder *d)
{
    enum { INVALID = DIGEST_WORDS, WORDS };
    uint64_t sum[WORDS] = {0}, tags = d->tags;
    struct reason reason;
    fail_reason(&reason);
    if (local == PCOLL_OK)
        messages_digest(d, sum);
    sum[INVALID] = local != PCOLL_OK;
    int rc = agree_sum(c, sum, WORDS);
    if (rc == PCOLL_OK && sum[INVALID])
        rc = agree_refusals(c, local != PCOLL_OK, &reason, PCOLL_EMISMATCH,
                            "the schedule of rank", "is not valid");
    else if (rc == PCOLL_OK && (sum[0] || sum[1]))
        rc = report_mismatch(c, d);
    else if (rc == PCOLL_OK)
        rc = agree_max(c, &tags, 1);
    if (rc == PCOLL_OK && (tags < d->tags || tags > UINT32_MAX))
        rc = fail(PCOLL_EPROTOCOL,
                  "the ranks agreed on %llu tags, and this one needs %u",
                  (unsigned long long)tags, d->tags);
    if (rc == PCOLL_OK)
        d->tags = (uint32_t)tags;
    return local == PCOLL_OK ? rc : fail(local, "%s", reason.text);
}

int schedule_run_commit(struct communicator *c, int local, struct builder *d,
                        struct schedule_run **out)
{
    struct sched *s = NULL;
    struct schedule_run *p = NULL;
    if (local == PCOLL_OK)
        local = builder_commit(d, &s);
    agree_settle(c);
    int rc = compare_messages(c, local, d);
    if (rc != PCOLL_OK) {
        sched_free(&s);
        return rc;
    }
    struct builder taken = *d;
    local = schedule_run_create(c, &taken, s, &p);
    if ((rc = agree_outcome(c, local)) == PCOLL_OK)
        rc = agree_enter(c, &p->base);
    if (rc == PCOLL_OK) {
        *d = taken;
        *out = p;
    } else if (p) {
        p->builder = (struct builder){0}; /* goes on being the caller's */
        schedule_run_destroy(&p);
    } else
        sched_free(&s);
    return rc;
}

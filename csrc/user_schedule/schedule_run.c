/* SPDX-License-Identifier: Apache-2.0 */
/* Running, describing and committing a user's schedule; see user_schedule.h. */
#include "user_schedule/user_schedule.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "runtime/agreement.h"

/* More runs than any job makes. */
static const uint64_t LAST_RUN = (uint64_t)1 << 43;

/* Return whether this rank has not started this run: only other ranks need it. */
static bool schedule_run_is_empty(const struct schedule_run *run)
{
    return run->engine.current >= atomic_load(&run->started);
}

/* Allocate memory for a message in place of the user's. */
static int schedule_run_stand_in(struct schedule_run *run, int id)
{
    CHECK(!run->ops[id].stand_in);
    size_t bytes = run->builder->ops[id].bytes;
    run->ops[id].stand_in = calloc(1, bytes ? bytes : 1);
    return run->ops[id].stand_in
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a message of %zu bytes", bytes);
}

static void schedule_run_take_own(struct schedule_run *run, int id)
{
    CHECK(run->ops[id].stand_in);
    const struct builder_op *op = &run->builder->ops[id];
    if (op->bytes && !schedule_run_is_empty(run))
        memcpy(op->into, run->ops[id].stand_in, op->bytes);
    free(run->ops[id].stand_in);
    run->ops[id].stand_in = NULL;
}

/* Send a message of this rank to itself: keep a copy for the receive, so that the send
 * completes before the receive begins, like a short message to another rank. */
static int schedule_run_send_own(struct schedule_run *run, int id, bool *finished)
{
    const struct builder_op *op = &run->builder->ops[id];
    int rc = schedule_run_stand_in(run, op->partner);
    *finished = rc == PCOLL_OK;
    if (rc != PCOLL_OK)
        return rc;
    if (op->bytes && !schedule_run_is_empty(run))
        memcpy(run->ops[op->partner].stand_in, op->from, op->bytes);
    if (engine_state(&run->engine, run->engine.current, op->partner) == OP_RUNNING) {
        schedule_run_take_own(run, op->partner);
        engine_complete(&run->engine, run->engine.current, op->partner);
    }
    return PCOLL_OK;
}

/* Begin a message from or to another rank. */
static int schedule_run_begin_message(struct schedule_run *run, int id)
{
    const struct builder_op *op = &run->builder->ops[id];
    struct transport *t = run->communicator->transport;
    int rc = schedule_run_is_empty(run) ? schedule_run_stand_in(run, id) : PCOLL_OK;
    if (rc != PCOLL_OK)
        return rc;
    uint32_t peer = (uint32_t)op->peer,
             tag = run->base.slot * DATA_EDGES + (uint32_t)op->edge;
    void *memory = run->ops[id].stand_in;
    uint64_t cookie = object_cookie(&run->base, id);
    return op->kind == OP_SEND ? t->ops->send(t, peer, tag, memory ? memory : op->from,
                                              op->bytes, cookie)
                               : t->ops->recv(t, peer, tag, memory ? memory : op->into,
                                              op->bytes, cookie);
}

/* Execute or begin an operation. *finished: it is complete and needs no event. */
static int schedule_run_issue(struct schedule_run *run, int id, bool *finished)
{
    const struct builder_op *op = &run->builder->ops[id];
    *finished = true;
    switch (op->kind) {
    case OP_SEND:
    case OP_RECV:
        *finished = false;
        if (op->partner < 0)
            return schedule_run_begin_message(run, id);
        if (op->kind == OP_SEND)
            return schedule_run_send_own(run, id, finished);
        if ((*finished = run->ops[id].stand_in != NULL))
            schedule_run_take_own(run, id);
        return PCOLL_OK;
    case OP_REDUCE:
        if (!schedule_run_is_empty(run))
            reduce_buffer(op->op, op->dtype, op->into, op->from, op->into, op->count);
        return PCOLL_OK;
    case OP_COPY:
        if (!schedule_run_is_empty(run) && op->bytes && op->into != op->from)
            memcpy(op->into, op->from, op->bytes);
        return PCOLL_OK;
    case OP_TIMER:
        if ((*finished = schedule_run_is_empty(run) || op->seconds == 0))
            return PCOLL_OK;
        run->ops[id].due =
            communicator_now(run->communicator) + clock_from_seconds(op->seconds);
        communicator_alarm(run->communicator, &run->base, run->ops[id].due);
        return PCOLL_OK;
    case OP_NOP:
    case OP_NATIVE:
        break;
    }
    return fail(PCOLL_EPROTOCOL, "operation %d (%s) cannot be executed here", id,
                op->label);
}

static int schedule_run_issue_ready(struct schedule_run *run)
{
    for (int id; (id = engine_next(&run->engine)) >= 0;) {
        bool finished;
        int rc = schedule_run_issue(run, id, &finished);
        if (rc != PCOLL_OK)
            return rc;
        if (finished)
            engine_complete(&run->engine, run->engine.current, id);
    }
    return PCOLL_OK;
}

/* Complete the expired timers, and set an alarm for the others. */
static void schedule_run_end_timers(struct schedule_run *run)
{
    struct engine *e = &run->engine;
    int64_t now = run->timer_count ? communicator_now(run->communicator) : 0;
    for (uint32_t i = 0; i < run->timer_count; i++) {
        uint32_t id = run->timers[i];
        if (engine_state(e, e->current, (int)id) != OP_RUNNING)
            continue;
        if (run->ops[id].due <= now)
            engine_complete(e, e->current, (int)id);
        else
            communicator_alarm(run->communicator, &run->base, run->ops[id].due);
    }
}

/* Complete the runs that this rank has started or, while it drains, that all ranks have. */
static int schedule_run_advance(struct schedule_run *run)
{
    struct progress *progress = run->communicator->progress;
    while (run->engine.current < atomic_load(&run->started) ||
           (atomic_load(&run->closing) == RUN_DRAINING &&
            run->engine.current < run->closing_runs)) {
        if (!run->engine.released) {
            engine_release(&run->engine);
            if (progress)
                progress_round(progress, 1);
        }
        schedule_run_end_timers(run);
        int rc = schedule_run_issue_ready(run);
        if (rc != PCOLL_OK || !engine_over(&run->engine))
            return rc;
        engine_advance(&run->engine);
        atomic_store(&run->finished, run->engine.current);
        if (progress) {
            progress_round(progress, -1);
            progress_wake_waiters(progress);
        }
    }
    return PCOLL_OK;
}

static int schedule_run_run(struct object *base)
{
    struct schedule_run *run = (struct schedule_run *)base;
    if (atomic_load(&run->closing) == RUN_AGREEING &&
        atomic_load(&run->agreement.done)) {
        if (run->closing_runs < atomic_load(&run->started) ||
            run->closing_runs > LAST_RUN)
            return fail(PCOLL_EPROTOCOL,
                        "the ranks close a schedule after %llu runs, and this one has "
                        "asked for %llu",
                        (unsigned long long)run->closing_runs,
                        (unsigned long long)atomic_load(&run->started));
        atomic_store(&run->closing, RUN_DRAINING);
    }
    int rc = schedule_run_advance(run);
    if (rc != PCOLL_OK || atomic_load(&run->closing) != RUN_DRAINING ||
        run->engine.current < run->closing_runs)
        return rc;
    atomic_store(&run->closing, RUN_CLOSED);
    return communicator_closed(run->communicator, base);
}

static int schedule_run_done(struct object *base, int id, size_t bytes)
{
    struct schedule_run *run = (struct schedule_run *)base;
    const struct builder_op *op = &run->builder->ops[id];
    if (op->kind == OP_RECV && bytes != op->bytes)
        return fail(PCOLL_EPROTOCOL,
                    "rank %d sent %zu bytes to operation %d (%s), which takes %zu",
                    op->peer, bytes, id, op->label, op->bytes);
    free(run->ops[id].stand_in);
    run->ops[id].stand_in = NULL;
    engine_complete(&run->engine, run->engine.current, id);
    return schedule_run_run(base);
}

static int schedule_run_begin_close(struct object *base)
{
    CHECK(atomic_load(&((struct schedule_run *)base)->closing) == RUN_QUEUED);
    struct schedule_run *run = (struct schedule_run *)base;
    atomic_store(&run->closing, RUN_AGREEING);
    run->closing_runs = atomic_load(&run->started);
    run->agreement = (struct agreement){
        .values = &run->closing_runs, .count = 1, .op = AGREE_MAX, .object = base};
    return communicator_agree(run->communicator, &run->agreement);
}

static const struct object_ops schedule_run_ops = {
    .run = schedule_run_run,
    .done = schedule_run_done,
    .begin_close = schedule_run_begin_close,
};

void schedule_run_start(struct schedule_run *run)
{
    CHECK(atomic_load(&run->closing) == RUN_OPEN);
    atomic_fetch_add(&run->started, 1);
    communicator_notify(run->communicator, &run->base);
}

int schedule_run_close(struct schedule_run *run)
{
    if (atomic_load(&run->closing) != RUN_OPEN)
        return PCOLL_OK;
    atomic_store(&run->closing, RUN_QUEUED);
    return communicator_close(run->communicator, &run->base);
}

static int schedule_run_allocate(struct schedule_run *run,
                                 const struct builder *builder)
{
    run->ops = calloc(builder->count + 1, sizeof *run->ops);
    run->timers = calloc(builder->count + 1, sizeof *run->timers);
    if (!run->ops || !run->timers)
        return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations",
                    builder->count);
    for (uint32_t i = 0; i < builder->count; i++) {
        if (builder->ops[i].kind == OP_TIMER)
            run->timers[run->timer_count++] = i;
        if (builder->ops[i].edge >= (int64_t)run->base.slots * DATA_EDGES)
            return fail(PCOLL_EPROTOCOL, "message %d does not fit into %u slots",
                        builder->ops[i].edge, run->base.slots);
    }
    return PCOLL_OK;
}

int schedule_run_create(struct communicator *communicator,
                        const struct builder *builder, struct sched *s,
                        struct schedule_run **out)
{
    CHECK(s->committed);
    struct schedule_run *run = *out = calloc(1, sizeof *run);
    if (!run) {
        sched_free(&s);
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    }
    *run = (struct schedule_run){
        .base = object_init(&schedule_run_ops),
        .communicator = communicator,
        .builder = builder,
        .sched = s,
    };
    run->base.slots = builder->tags ? (builder->tags + DATA_EDGES - 1) / DATA_EDGES : 1;
    int rc = schedule_run_allocate(run, builder) ?: engine_init(&run->engine, s);
    if (rc != PCOLL_OK)
        schedule_run_destroy(out);
    return rc;
}

void schedule_run_destroy(struct schedule_run **at)
{
    struct schedule_run *run = *at;
    engine_destroy(&run->engine);
    sched_free(&run->sched);
    for (uint32_t i = 0; run->ops && i < run->builder->count; i++)
        free(run->ops[i].stand_in);
    free(run->ops);
    free(run->timers);
    free(run);
    *at = NULL;
}

/* Description of a run. */

enum { MAX_NAMED = 8 };

void schedule_run_pending(const struct schedule_run *run, char *text, size_t capacity)
{
    const struct engine *e = &run->engine;
    uint32_t more = 0;
    struct text t = {.at = text, .left = capacity};
    text_add(&t, "run %llu of a schedule: ", (unsigned long long)e->current);
    for (uint32_t i = 0; i < run->builder->count; i++) {
        if (engine_state(e, e->current, (int)i) != OP_RUNNING)
            continue;
        if (t.items == MAX_NAMED) {
            more++;
            continue;
        }
        const struct builder_op *op = &run->builder->ops[i];
        text_add(&t, "%soperation %u (%s %s) ", t.items++ ? "; " : "", i,
                 op_kind_name(op->kind), op->label);
        if (op->kind == OP_TIMER)
            text_add(&t, "has not run out");
        else
            text_add(&t, "waits for rank %d%s", op->peer,
                     op->kind == OP_SEND ? " to receive" : "");
    }
    if (more)
        text_add(&t, "; and %u more", more);
    else if (!t.items)
        text_add(&t, "%s",
                 atomic_load(&run->closing) == RUN_OPEN
                     ? "nothing is under way"
                     : "some ranks have not freed it yet");
}

/* Gather the messages of all ranks on every rank, once they are known not to match. */
static int schedule_run_report_mismatch(struct communicator *communicator,
                                        const struct builder *builder)
{
    uint64_t *counts, total, before;
    int rc = agree_gather(communicator, builder->messages, &counts)
                 ?: builder_place_messages(builder, counts, &before, &total);
    free(counts);
    if (rc != PCOLL_OK)
        return rc;
    bool fits = total <= INT_MAX / MESSAGE_WORDS;
    uint64_t *words = fits ? calloc(total * MESSAGE_WORDS + 1, sizeof *words) : NULL,
             none = !words;
    rc = agree_max(communicator, &none, 1);
    if (rc == PCOLL_OK && none)
        rc = fail(PCOLL_EMISMATCH, "the schedules do not match: %llu messages in all",
                  (unsigned long long)total);
    if (rc == PCOLL_OK) {
        builder_write_messages(builder, words + before * MESSAGE_WORDS);
        rc = agree_max(communicator, words, (int)(total * MESSAGE_WORDS));
    }
    if (rc == PCOLL_OK)
        rc = builder_compare_messages(words, total);
    free(words);
    return rc ?: fail(PCOLL_EMISMATCH, "the schedules do not match");
}

/* Compare: is every rank's part valid, and does every send have its receive? */
static int schedule_run_compare(struct communicator *communicator, int local,
                                struct builder *builder)
{
    enum { INVALID = DIGEST_WORDS, WORDS };
    uint64_t sum[WORDS] = {0}, tags = builder->tags;
    struct reason reason;
    fail_reason(&reason);
    if (local == PCOLL_OK)
        builder_digest_messages(builder, sum);
    sum[INVALID] = local != PCOLL_OK;
    int rc = agree_sum(communicator, sum, WORDS);
    if (rc == PCOLL_OK && sum[INVALID])
        rc = agree_refusals(communicator, local != PCOLL_OK, &reason, PCOLL_EMISMATCH,
                            "the schedule of rank", "is not valid");
    else if (rc == PCOLL_OK && (sum[0] || sum[1]))
        rc = schedule_run_report_mismatch(communicator, builder);
    else if (rc == PCOLL_OK)
        rc = agree_max(communicator, &tags, 1);
    if (rc == PCOLL_OK && (tags < builder->tags || tags > UINT32_MAX))
        rc = fail(PCOLL_EPROTOCOL,
                  "the ranks agreed on %llu tags, and this one needs %u",
                  (unsigned long long)tags, builder->tags);
    if (rc == PCOLL_OK)
        builder->tags = (uint32_t)tags;
    return local == PCOLL_OK ? rc : fail(local, "%s", reason.text);
}

int schedule_run_commit(struct communicator *communicator, int local,
                        struct builder *builder, struct schedule_run **out)
{
    struct sched *s = NULL;
    if (local == PCOLL_OK)
        local = builder_commit(builder, &s);
    agree_settle(communicator);
    int rc = schedule_run_compare(communicator, local, builder);
    if (rc != PCOLL_OK) {
        sched_free(&s);
        return rc;
    }
    local = schedule_run_create(communicator, builder, s, out);
    rc = agree_enter(communicator, *out ? &(*out)->base : NULL, local);
    if (rc != PCOLL_OK && *out)
        schedule_run_destroy(out);
    return rc;
}

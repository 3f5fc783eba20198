/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of the public header: first a builder, which its user fills, after the
 * commit a run. One thread at a time may use a schedule.
 */

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "runtime/user_object.h"
#include "transport/mpi/mpi_transport.h"
#include "user_schedule/user_schedule.h"

struct pcoll_schedule {
    struct user_object base; /* first: a pointer to it is one to the schedule */
    const void *comm;        /* MPI_Comm; used until the commit */
    struct builder builder;
    struct schedule_run *run; /* NULL before the commit and after the end */
    bool waiting;             /* a run was started and not yet waited for */
};

/* Begin and end a call; see user_object.h. */
static int schedule_enter(pcoll_schedule *schedule)
{
    return fail_if_null_as("schedule", schedule) ?: user_object_enter(&schedule->base);
}

static int schedule_leave(pcoll_schedule *schedule, int rc)
{
    return user_object_leave(&schedule->base, rc);
}

/* The end: freed by its user, or by MPI_Finalize (user_object.h). */

static int schedule_close(struct user_object *o)
{
    CHECK(((pcoll_schedule *)o)->run);
    return schedule_run_close(((pcoll_schedule *)o)->run);
}

static void schedule_dispose(struct user_object *o, bool healthy)
{
    pcoll_schedule *schedule = (pcoll_schedule *)o;
    if (healthy)
        schedule_run_destroy(&schedule->run);
    schedule->run = NULL;
}

static const struct user_object_kind schedule_kind = {
    .name = "the schedule",
    .plural = "schedules",
    .close = schedule_close,
    .dispose = schedule_dispose,
};

static int schedule_enter_builder(pcoll_schedule *schedule)
{
    int rc = schedule_enter(schedule);
    if (rc != PCOLL_OK || !schedule->run)
        return rc;
    return schedule_leave(
        schedule,
        fail(PCOLL_ESTATE, "the schedule is committed: it can no longer be changed"));
}

/* Adding operations. */

int pcoll_schedule_create(const void *comm, pcoll_schedule **out)
{
    int rc = fail_if_null_as("comm, schedule", comm, out)
                 ?: user_object_admit(&schedule_kind, comm, PCOLL_FAILURE_RAISE, NULL);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_schedule *schedule = calloc(1, sizeof *schedule);
    if (!schedule)
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    user_object_init(&schedule->base, &schedule_kind);
    schedule->comm = comm;
    mpi_comm_shape(comm, &schedule->builder.rank, &schedule->builder.size);
    *out = schedule;
    return PCOLL_OK;
}

static int schedule_add(pcoll_schedule *schedule, struct builder_op op,
                        const pcoll_buffer *shape, const char *label, int32_t *id)
{
    bool sends = op.kind == OP_SEND;
    int rc = schedule_enter_builder(schedule);
    if (rc != PCOLL_OK)
        return rc;
    if ((sends || op.kind == OP_RECV) && mpi_is_proc_null(op.peer)) {
        op = (struct builder_op){.kind = OP_NOP};
        label = label ? label : sends ? "send to nobody" : "recv from nobody";
        shape = NULL;
    }
    return schedule_leave(schedule,
                          builder_add(&schedule->builder, op, shape, label, id));
}

int pcoll_schedule_send(pcoll_schedule *schedule, const void *from,
                        const pcoll_buffer *shape, int32_t dest, int32_t tag,
                        const char *label, int32_t *op)
{
    struct builder_op send = {.kind = OP_SEND, .from = from, .peer = dest, .tag = tag};
    return fail_if_null(shape, op) ?: schedule_add(schedule, send, shape, label, op);
}

int pcoll_schedule_recv(pcoll_schedule *schedule, void *into, const pcoll_buffer *shape,
                        int32_t source, int32_t tag, const char *label, int32_t *op)
{
    struct builder_op recv = {
        .kind = OP_RECV, .into = into, .peer = source, .tag = tag};
    return fail_if_null(shape, op) ?: schedule_add(schedule, recv, shape, label, op);
}

int pcoll_schedule_reduce(pcoll_schedule *schedule, const void *from, void *into,
                          const pcoll_buffer *shape, const char *label, int32_t *op)
{
    struct builder_op reduce = {.kind = OP_REDUCE, .from = from, .into = into};
    return fail_if_null(shape, op) ?: schedule_add(schedule, reduce, shape, label, op);
}

int pcoll_schedule_copy(pcoll_schedule *schedule, const void *from, void *into,
                        const pcoll_buffer *shape, const char *label, int32_t *op)
{
    struct builder_op copy = {.kind = OP_COPY, .from = from, .into = into};
    return fail_if_null(shape, op) ?: schedule_add(schedule, copy, shape, label, op);
}

int pcoll_schedule_nop(pcoll_schedule *schedule, const char *label, int32_t *op)
{
    struct builder_op nop = {.kind = OP_NOP};
    return fail_if_null(op) ?: schedule_add(schedule, nop, NULL, label, op);
}

int pcoll_schedule_timer(pcoll_schedule *schedule, double seconds, const char *label,
                         int32_t *op)
{
    struct builder_op timer = {.kind = OP_TIMER, .seconds = seconds};
    return fail_if_null(op) ?: schedule_add(schedule, timer, NULL, label, op);
}

int pcoll_schedule_after(pcoll_schedule *schedule, int32_t op,
                         const int32_t *predecessors, int32_t count, uint32_t k)
{
    return schedule_enter_builder(schedule)
               ?: schedule_leave(schedule, builder_after(&schedule->builder, op,
                                                         predecessors, count, k));
}

/* Commit. */

/* valid: false to tell the other ranks that this rank gives up. */
static int schedule_commit(pcoll_schedule *schedule, int progress, bool valid)
{
    struct communicator *c;
    int rc = mpi_check_comm(schedule->comm)
                 ?: process_context(schedule->comm, PCOLL_FAILURE_RAISE, &c);
    if (rc != PCOLL_OK)
        return rc;
    int local;
    if (!valid)
        local = fail(PCOLL_EINVAL, "not a valid schedule");
    else if (progress < PCOLL_PROGRESS_AGENT || progress > PCOLL_PROGRESS_SPIN)
        local = fail(PCOLL_EINVAL, "progress: unknown value %d", progress);
    else
        local = process_start_agent(c, progress, true);
    rc = schedule_run_commit(c, local, &schedule->builder, &schedule->run);
    if (rc == PCOLL_OK)
        user_object_made(&schedule->base, c, &schedule->run->base, progress);
    return rc;
}

int pcoll_schedule_commit(pcoll_schedule *schedule, int32_t progress)
{
    return schedule_enter_builder(schedule)
               ?: schedule_leave(schedule, schedule_commit(schedule, progress, true));
}

int pcoll_schedule_give_up(pcoll_schedule *schedule)
{
    return schedule_enter_builder(schedule)
               ?: (schedule_commit(schedule, PCOLL_PROGRESS_MANUAL, false),
                   schedule_leave(schedule, PCOLL_OK));
}

/* Runs. */

static int schedule_enter_committed(pcoll_schedule *schedule)
{
    int rc = fail_if_null_as("schedule", schedule)
                 ?: user_object_enter_open(&schedule->base);
    if (rc == PCOLL_OK && !schedule->run)
        return schedule_leave(schedule,
                              fail(PCOLL_ESTATE, "the schedule is not committed"));
    return rc;
}

static bool schedule_run_is_over(void *arg)
{
    pcoll_schedule *schedule = arg;
    return atomic_load(&schedule->run->finished) >=
               atomic_load(&schedule->run->started) ||
           atomic_load(&schedule->base.communicator->failure);
}

int pcoll_schedule_start(pcoll_schedule *schedule)
{
    int rc = schedule_enter_committed(schedule);
    if (rc != PCOLL_OK)
        return rc;
    if (schedule->waiting)
        return schedule_leave(
            schedule, fail(PCOLL_ESTATE, "started already: wait for the run first"));
    schedule->waiting = true;
    schedule_run_start(schedule->run);
    return schedule_leave(schedule, PCOLL_OK);
}

int pcoll_schedule_wait(pcoll_schedule *schedule, int64_t timeout_us)
{
    int rc = schedule_enter_committed(schedule);
    if (rc != PCOLL_OK)
        return rc;
    struct communicator *communicator = schedule->base.communicator;
    if (!schedule->waiting)
        rc = fail(PCOLL_ESTATE, "not started: there is nothing to wait for");
    else {
        rc = progress_wait(communicator->progress, schedule_run_is_over, schedule,
                           timeout_us)
                 ?: communicator_check(communicator);
        schedule->waiting = rc != PCOLL_OK;
    }
    return schedule_leave(schedule, rc);
}

int pcoll_schedule_runs(pcoll_schedule *schedule, uint64_t *runs)
{
    return fail_if_null(runs)
               ?: schedule_enter(schedule)
               ?: (*runs = schedule->run ? atomic_load(&schedule->run->finished) : 0,
                   schedule_leave(schedule, PCOLL_OK));
}

int pcoll_schedule_pending(pcoll_schedule *schedule, char *text, uint64_t capacity)
{
    int rc = fail_if_null(text) ?: schedule_enter(schedule);
    if (rc != PCOLL_OK)
        return rc;
    if (schedule->run && capacity) {
        progress_lock(schedule->base.communicator->progress);
        schedule_run_pending(schedule->run, text, capacity);
        progress_unlock(schedule->base.communicator->progress);
    } else
        rc = fail(PCOLL_ESTATE, "the schedule is not committed");
    return schedule_leave(schedule, rc);
}

/* Printing, before and after the commit. */

static struct goal_cost schedule_cost(const void *arg, int id)
{
    const struct builder *builder = arg;
    if ((uint32_t)id >= builder->count)
        return (struct goal_cost){0};
    const struct builder_op *op = &builder->ops[id];
    return (struct goal_cost){.bytes = op->bytes,
                              .tag = (uint32_t)op->edge,
                              .time = clock_from_seconds(op->seconds)};
}

/* Print in this format (NULL: GOAL). */
static int schedule_print(pcoll_schedule *schedule, const char *format,
                          double ns_per_byte, char **text)
{
    const struct builder *builder = &schedule->builder;
    struct sched *built = NULL, *sched = schedule->run ? schedule->run->sched : NULL;
    if (!sched && !(sched = built = builder_build(&schedule->builder)))
        return fail(PCOLL_ENOMEM, "no memory for a text");
    int rc = format ? sched_print(sched, format, text)
                    : sched_goal(sched, builder->rank, ns_per_byte, schedule_cost,
                                 builder, text);
    sched_free(&built);
    return rc;
}

int pcoll_schedule_text(pcoll_schedule *schedule, const char *format, char **text)
{
    return fail_if_null(format, text)
               ?: schedule_enter(schedule)
               ?: schedule_leave(schedule, schedule_print(schedule, format, 0, text));
}

int pcoll_schedule_goal(pcoll_schedule *schedule, double ns_per_byte, char **text)
{
    return fail_if_null(text)
               ?: schedule_enter(schedule)
               ?: schedule_leave(schedule,
                                 schedule_print(schedule, NULL, ns_per_byte, text));
}

int pcoll_schedule_free_begin(pcoll_schedule *schedule)
{
    return schedule ? user_object_close(&schedule->base) : PCOLL_OK;
}

int pcoll_schedule_free(pcoll_schedule **at, int64_t timeout_us)
{
    pcoll_schedule *schedule = at ? *at : NULL;
    bool over = true;
    int rc = schedule ? user_object_end(&schedule->base, timeout_us, &over) : PCOLL_OK;
    if (over && schedule) {
        builder_destroy(&schedule->builder);
        free(schedule);
        *at = NULL;
    }
    return rc;
}

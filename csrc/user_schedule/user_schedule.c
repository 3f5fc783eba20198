/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of the public header: first a builder, which its user fills, after the
 * commit a run. One thread at a time may use a schedule.
 */

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/user_object.h"
#include "transport/mpi/mpi_transport.h"
#include "user_schedule/schedule_run.h"

struct pcoll_schedule {
    struct user_object base;  /* first: found again from it */
    const void *comm;         /* until the commit */
    struct builder builder;   /* empty after the commit */
    struct schedule_run *run; /* NULL before the commit and after the end */
    bool committed;
    bool waiting; /* started, and not yet waited for */
};

/* Begin and end a call, as in user_object.h. */
static int schedule_enter(pcoll_schedule *s)
{
    return user_object_enter(&s->base);
}

static int schedule_leave(pcoll_schedule *s, int rc)
{
    return user_object_leave(&s->base, rc);
}

/* The end of a schedule: freed by its user, or by MPI_Finalize (user_object.h). */

static int close_run(struct user_object *o)
{
    CHECK(((pcoll_schedule *)o)->run);
    return schedule_run_close(((pcoll_schedule *)o)->run);
}

static void dispose(struct user_object *o, bool healthy)
{
    pcoll_schedule *s = (pcoll_schedule *)o;
    if (healthy)
        schedule_run_destroy(&s->run);
    s->run = NULL;
}

static const struct user_object_kind schedule_kind = {
    .name = "the schedule",
    .plural = "schedules",
    .close = close_run,
    .dispose = dispose,
};

/* Writing a schedule down and committing it. */

static int enter_builder(pcoll_schedule *s)
{
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK || !s->committed)
        return rc;
    return schedule_leave(
        s,
        fail(PCOLL_ESTATE, "the schedule is committed: it can no longer be changed"));
}

/* Writing it down. */

int pcoll_schedule_create(const void *comm, pcoll_schedule **schedule)
{
    int rc = user_object_admit(&schedule_kind, comm, PCOLL_FAILURE_RAISE, NULL);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_schedule *s = calloc(1, sizeof *s);
    if (!s)
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    user_object_init(&s->base, &schedule_kind);
    s->comm = comm;
    mpi_comm_shape(comm, &s->builder.rank, &s->builder.size);
    *schedule = s;
    return PCOLL_OK;
}

int pcoll_schedule_send(pcoll_schedule *s, const void *from, const pcoll_buffer *shape,
                        int32_t dest, int32_t tag, const char *label, int32_t *op)
{
    int rc = enter_builder(s);
    if (rc != PCOLL_OK)
        return rc;
    if (mpi_is_proc_null(dest))
        return schedule_leave(
            s, builder_nop(&s->builder, label ? label : "send to nobody", op));
    return schedule_leave(s,
                          builder_send(&s->builder, from, shape, dest, tag, label, op));
}

int pcoll_schedule_recv(pcoll_schedule *s, void *into, const pcoll_buffer *shape,
                        int32_t source, int32_t tag, const char *label, int32_t *op)
{
    int rc = enter_builder(s);
    if (rc != PCOLL_OK)
        return rc;
    if (mpi_is_proc_null(source))
        return schedule_leave(
            s, builder_nop(&s->builder, label ? label : "recv from nobody", op));
    return schedule_leave(
        s, builder_recv(&s->builder, into, shape, source, tag, label, op));
}

int pcoll_schedule_reduce(pcoll_schedule *s, const void *from, void *into,
                          const pcoll_buffer *shape, const char *label, int32_t *op)
{
    int rc = enter_builder(s);
    return rc == PCOLL_OK ? schedule_leave(s, builder_reduce(&s->builder, from, into,
                                                             shape, label, op))
                          : rc;
}

int pcoll_schedule_copy(pcoll_schedule *s, const void *from, void *into,
                        const pcoll_buffer *shape, const char *label, int32_t *op)
{
    int rc = enter_builder(s);
    return rc == PCOLL_OK ? schedule_leave(s, builder_copy(&s->builder, from, into,
                                                           shape, label, op))
                          : rc;
}

int pcoll_schedule_nop(pcoll_schedule *s, const char *label, int32_t *op)
{
    int rc = enter_builder(s);
    return rc == PCOLL_OK ? schedule_leave(s, builder_nop(&s->builder, label, op)) : rc;
}

int pcoll_schedule_timer(pcoll_schedule *s, double seconds, const char *label,
                         int32_t *op)
{
    int rc = enter_builder(s);
    return rc == PCOLL_OK
               ? schedule_leave(s, builder_timer(&s->builder, seconds, label, op))
               : rc;
}

int pcoll_schedule_after(pcoll_schedule *s, int32_t op, const int32_t *predecessors,
                         int32_t count, uint32_t k)
{
    int rc = enter_builder(s);
    return rc == PCOLL_OK ? schedule_leave(s, builder_after(&s->builder, op,
                                                            predecessors, count, k))
                          : rc;
}

/* Committing it. */

static int check_progress(struct communicator *c, int progress)
{
    if (progress < PCOLL_PROGRESS_AGENT || progress > PCOLL_PROGRESS_SPIN)
        return fail(PCOLL_EINVAL, "progress: unknown value %d", progress);
    return process_start_agent(c, progress, true);
}

/* valid: false to let the others know only. */
static int commit(pcoll_schedule *s, int progress, bool valid)
{
    struct communicator *c;
    int rc = mpi_check_comm(s->comm);
    if (rc == PCOLL_OK)
        rc = process_context(s->comm, PCOLL_FAILURE_RAISE, &c);
    if (rc != PCOLL_OK)
        return rc;
    int local = valid ? check_progress(c, progress)
                      : fail(PCOLL_EINVAL, "not a valid schedule");
    rc = schedule_run_commit(c, local, &s->builder, &s->run);
    if (rc != PCOLL_OK)
        return rc;
    s->committed = true;
    user_object_made(&s->base, c, &s->run->base, progress);
    return PCOLL_OK;
}

int pcoll_schedule_commit(pcoll_schedule *s, int32_t progress)
{
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    if (s->committed)
        return schedule_leave(s,
                              fail(PCOLL_ESTATE, "the schedule is committed already"));
    return schedule_leave(s, commit(s, progress, true));
}

int pcoll_schedule_give_up(pcoll_schedule *s)
{
    int rc = enter_builder(s);
    if (rc != PCOLL_OK)
        return rc;
    commit(s, PCOLL_PROGRESS_MANUAL, false);
    return schedule_leave(s, PCOLL_OK);
}

/* Running a committed schedule. */

static int enter_committed(pcoll_schedule *s)
{
    int rc = user_object_enter_open(&s->base);
    if (rc == PCOLL_OK && !s->committed)
        return schedule_leave(s, fail(PCOLL_ESTATE, "the schedule is not committed"));
    return rc;
}

static bool run_is_over(void *arg)
{
    pcoll_schedule *s = arg;
    return atomic_load(&s->run->finished) >= atomic_load(&s->run->started) ||
           atomic_load(&s->base.communicator->failure);
}

int pcoll_schedule_start(pcoll_schedule *s)
{
    int rc = enter_committed(s);
    if (rc != PCOLL_OK)
        return rc;
    if (s->waiting)
        return schedule_leave(
            s, fail(PCOLL_ESTATE, "started already: wait for the run first"));
    s->waiting = true;
    schedule_run_start(s->run);
    return schedule_leave(s, PCOLL_OK);
}

int pcoll_schedule_wait(pcoll_schedule *s, int64_t timeout_us)
{
    int rc = enter_committed(s);
    if (rc != PCOLL_OK)
        return rc;
    if (!s->waiting)
        return schedule_leave(
            s, fail(PCOLL_ESTATE, "not started: there is nothing to wait for"));
    rc = progress_wait(s->base.communicator->progress, run_is_over, s, timeout_us);
    if (rc == PCOLL_OK)
        rc = communicator_check(s->base.communicator);
    s->waiting = rc != PCOLL_OK;
    return schedule_leave(s, rc);
}

int pcoll_schedule_runs(pcoll_schedule *s, uint64_t *runs)
{
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    *runs = s->run ? atomic_load(&s->run->finished) : 0;
    return schedule_leave(s, PCOLL_OK);
}

int pcoll_schedule_pending(pcoll_schedule *s, char *text, uint64_t capacity)
{
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    if (!s->run || !capacity)
        return schedule_leave(s, fail(PCOLL_ESTATE, "the schedule is not committed"));
    progress_lock(s->base.communicator->progress);
    schedule_run_pending(s->run, text, capacity);
    progress_unlock(s->base.communicator->progress);
    return schedule_leave(s, PCOLL_OK);
}

/* A schedule as text, DOT and GOAL, before and after the commit. */

struct pricing {
    const struct builder *builder;
    double ns_per_byte;
};

static struct goal_cost cost_of(const void *arg, int id)
{
    const struct pricing *pricing = arg;
    if ((uint32_t)id >= pricing->builder->count)
        return (struct goal_cost){0};
    const struct builder_op *op = &pricing->builder->ops[id];
    double time = (double)op->bytes * pricing->ns_per_byte;
    return (struct goal_cost){.bytes = op->bytes,
                              .tag = (uint32_t)op->edge,
                              .time = op->kind == OP_TIMER ? (uint64_t)op->delay
                                                           : (uint64_t)time};
}

/* What is to be printed: the committed one, or the builder as it stands (*made). */
static int look(pcoll_schedule *s, struct sched **sched, bool *made)
{
    *made = !s->run;
    *sched = s->run ? s->run->sched : builder_build(&s->builder);
    return *sched ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a schedule");
}

static int finish_text(struct sched *sched, bool made, const char *text)
{
    if (made)
        sched_free(&sched);
    return text ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a text");
}

int pcoll_schedule_text(pcoll_schedule *s, const char *format, char **text)
{
    struct sched *sched;
    bool made;
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    bool dot = !strcmp(format, "dot");
    if (!dot && strcmp(format, "text"))
        return schedule_leave(
            s, fail(PCOLL_EINVAL, "format: expected \"text\" or \"dot\", got \"%.50s\"",
                    format));
    if ((rc = look(s, &sched, &made)) != PCOLL_OK)
        return schedule_leave(s, rc);
    *text = dot ? sched_dot(sched) : sched_text(sched);
    return schedule_leave(s, finish_text(sched, made, *text));
}

int pcoll_schedule_goal(pcoll_schedule *s, double ns_per_byte, char **text)
{
    struct sched *sched;
    bool made;
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    if (!(ns_per_byte >= 0 && ns_per_byte <= PCOLL_LONGEST_TIME))
        return schedule_leave(s, fail(PCOLL_EINVAL,
                                      "ns_per_byte: expected 0 to %g, got %g",
                                      PCOLL_LONGEST_TIME, ns_per_byte));
    if ((rc = look(s, &sched, &made)) != PCOLL_OK)
        return schedule_leave(s, rc);
    struct pricing pricing = {.builder = s->run ? &s->run->builder : &s->builder,
                              .ns_per_byte = ns_per_byte};
    *text = sched_goal(sched, pricing.builder->rank, cost_of, &pricing);
    return schedule_leave(s, finish_text(sched, made, *text));
}

int pcoll_schedule_free_begin(pcoll_schedule *s)
{
    return s ? user_object_close(&s->base) : PCOLL_OK;
}

int pcoll_schedule_free(pcoll_schedule **at, int64_t timeout_us)
{
    pcoll_schedule *s = *at;
    bool over = true;
    int rc = s ? user_object_end(&s->base, timeout_us, &over) : PCOLL_OK;
    if (over && s) {
        builder_destroy(&s->builder);
        free(s);
        *at = NULL;
    }
    return rc;
}

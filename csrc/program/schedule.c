/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a schedule down and committing it. */
#include "schedule.h"

#include <stdlib.h>

#include "../base/error.h"
#include "../transport/mpi.h"
#include "commit.h"

int schedule_enter(pcoll_schedule *s)
{
    if (runtime_forked())
        return fail(PCOLL_ESTATE,
                    "this process was forked from the one that made the schedule: "
                    "schedules work in that one only");
    if (atomic_exchange(&s->busy, true))
        return fail(PCOLL_ESTATE, "the schedule is in use by another thread");
    if (!s->committed || s->program)
        return PCOLL_OK;
    atomic_store(&s->busy, false);
    return fail(PCOLL_ESTATE, "the schedule has been freed");
}

int schedule_leave(pcoll_schedule *s, int rc)
{
    atomic_store(&s->busy, false);
    return rc;
}

static int enter_draft(pcoll_schedule *s)
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
    if (runtime_forked())
        return fail(PCOLL_ESTATE, "schedules cannot be made in a forked process");
    int rc = mpi_check_comm(comm);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_schedule *s = calloc(1, sizeof *s);
    if (!s)
        return fail(PCOLL_ENOMEM, "no memory for a schedule");
    s->comm = comm;
    mpi_comm_shape(comm, &s->draft.rank, &s->draft.size);
    *schedule = s;
    return PCOLL_OK;
}

int pcoll_schedule_send(pcoll_schedule *s, const void *from, const pcoll_buffer *shape,
                        int32_t dest, int32_t tag, const char *label, int32_t *op)
{
    int rc = enter_draft(s);
    if (rc != PCOLL_OK)
        return rc;
    if (mpi_is_proc_null(dest))
        return schedule_leave(
            s, draft_nop(&s->draft, label ? label : "send to nobody", op));
    return schedule_leave(s, draft_send(&s->draft, from, shape, dest, tag, label, op));
}

int pcoll_schedule_recv(pcoll_schedule *s, void *into, const pcoll_buffer *shape,
                        int32_t source, int32_t tag, const char *label, int32_t *op)
{
    int rc = enter_draft(s);
    if (rc != PCOLL_OK)
        return rc;
    if (mpi_is_proc_null(source))
        return schedule_leave(
            s, draft_nop(&s->draft, label ? label : "recv from nobody", op));
    return schedule_leave(s,
                          draft_recv(&s->draft, into, shape, source, tag, label, op));
}

int pcoll_schedule_reduce(pcoll_schedule *s, const void *from, void *into,
                          const pcoll_buffer *shape, const char *label, int32_t *op)
{
    int rc = enter_draft(s);
    return rc == PCOLL_OK ? schedule_leave(s, draft_reduce(&s->draft, from, into, shape,
                                                           label, op))
                          : rc;
}

int pcoll_schedule_copy(pcoll_schedule *s, const void *from, void *into,
                        const pcoll_buffer *shape, const char *label, int32_t *op)
{
    int rc = enter_draft(s);
    return rc == PCOLL_OK
               ? schedule_leave(s, draft_copy(&s->draft, from, into, shape, label, op))
               : rc;
}

int pcoll_schedule_nop(pcoll_schedule *s, const char *label, int32_t *op)
{
    int rc = enter_draft(s);
    return rc == PCOLL_OK ? schedule_leave(s, draft_nop(&s->draft, label, op)) : rc;
}

int pcoll_schedule_timer(pcoll_schedule *s, double seconds, const char *label,
                         int32_t *op)
{
    int rc = enter_draft(s);
    return rc == PCOLL_OK
               ? schedule_leave(s, draft_timer(&s->draft, seconds, label, op))
               : rc;
}

int pcoll_schedule_after(pcoll_schedule *s, int32_t op, const int32_t *predecessors,
                         int32_t count, uint32_t k)
{
    int rc = enter_draft(s);
    return rc == PCOLL_OK
               ? schedule_leave(s, draft_after(&s->draft, op, predecessors, count, k))
               : rc;
}

/* Committing it. */

static int check_progress(struct context *c, int progress)
{
    if (progress < PCOLL_PROGRESS_AGENT || progress > PCOLL_PROGRESS_SPIN)
        return fail(PCOLL_EINVAL, "progress: unknown value %d", progress);
    return runtime_start_agent(c, progress, true);
}

/* valid: false to let the others know only. */
static int commit(pcoll_schedule *s, int progress, bool valid)
{
    struct context *c;
    int rc = mpi_check_comm(s->comm);
    if (rc == PCOLL_OK)
        rc = runtime_context(s->comm, &c);
    if (rc != PCOLL_OK)
        return rc;
    int local = valid ? check_progress(c, progress)
                      : fail(PCOLL_EINVAL, "not a valid schedule");
    rc = program_commit(c, local, &s->draft, &s->program);
    if (rc != PCOLL_OK)
        return rc;
    s->context = c;
    s->committed = true;
    s->entry = (struct runtime_entry){.begin_end = schedule_begin_end,
                                      .end = schedule_end,
                                      .slot = s->program->base.slot,
                                      .progress = progress};
    runtime_add(&s->entry);
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
    int rc = enter_draft(s);
    if (rc != PCOLL_OK)
        return rc;
    commit(s, PCOLL_PROGRESS_MANUAL, false);
    return schedule_leave(s, PCOLL_OK);
}

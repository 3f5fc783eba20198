/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a schedule down and committing it. */
#include "user_schedule/object.h"

#include <stdlib.h>

#include "base/error.h"
#include "transport/mpi/mpi_transport.h"
#include "user_schedule/commit.h"

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

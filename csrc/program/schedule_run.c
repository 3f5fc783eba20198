/* SPDX-License-Identifier: Apache-2.0 */
/* Running a committed schedule, and its end. */
#include <stdlib.h>

#include "../base/error.h"
#include "schedule.h"

static int enter_program(pcoll_schedule *s)
{
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    if (!s->committed)
        return schedule_leave(s, fail(PCOLL_ESTATE, "the schedule is not committed"));
    if (atomic_load(&s->program->closing) != PROGRAM_OPEN)
        return schedule_leave(s, fail(PCOLL_ESTATE, "the schedule is being freed"));
    return PCOLL_OK;
}

/* Running it. */

static bool run_is_over(void *arg)
{
    pcoll_schedule *s = arg;
    return atomic_load(&s->program->finished) >= atomic_load(&s->program->started) ||
           atomic_load(&s->context->failure);
}

int pcoll_schedule_start(pcoll_schedule *s)
{
    int rc = enter_program(s);
    if (rc != PCOLL_OK)
        return rc;
    rc = context_check(s->context);
    if (rc == PCOLL_OK && s->waiting)
        rc = fail(PCOLL_ESTATE, "started already: wait for the run first");
    if (rc != PCOLL_OK)
        return schedule_leave(s, rc);
    s->waiting = true;
    program_start(s->program);
    return schedule_leave(s, PCOLL_OK);
}

int pcoll_schedule_wait(pcoll_schedule *s, int64_t timeout_us)
{
    int rc = enter_program(s);
    if (rc != PCOLL_OK)
        return rc;
    if (!s->waiting)
        return schedule_leave(
            s, fail(PCOLL_ESTATE, "not started: there is nothing to wait for"));
    rc = progress_wait(s->context->progress, run_is_over, s, timeout_us);
    if (rc == PCOLL_OK)
        rc = context_check(s->context);
    s->waiting = rc != PCOLL_OK;
    return schedule_leave(s, rc);
}

int pcoll_schedule_runs(pcoll_schedule *s, uint64_t *runs)
{
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    *runs = s->program ? atomic_load(&s->program->finished) : 0;
    return schedule_leave(s, PCOLL_OK);
}

int pcoll_schedule_pending(pcoll_schedule *s, char *text, uint64_t capacity)
{
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    if (!s->program || !capacity)
        return schedule_leave(s, fail(PCOLL_ESTATE, "the schedule is not committed"));
    progress_lock(s->context->progress);
    program_pending(s->program, text, capacity);
    progress_unlock(s->context->progress);
    return schedule_leave(s, PCOLL_OK);
}

/* The end. */

static int close_program(pcoll_schedule *s)
{
    progress_lock(s->context->progress);
    int rc = program_close(s->program);
    if (rc != PCOLL_OK)
        context_fail(s->context, rc);
    progress_unlock(s->context->progress);
    return rc;
}

static bool is_closed(void *arg)
{
    pcoll_schedule *s = arg;
    return atomic_load(&s->program->closing) == PROGRAM_CLOSED ||
           atomic_load(&s->context->failure);
}

/* After a failure requests of the transport may still point into it: it is better
 * lost. */
static void dispose(pcoll_schedule *s)
{
    bool healthy = atomic_load(&s->context->failure) == PCOLL_OK;
    progress_lock(s->context->progress);
    context_unregister(s->context, s->program->base.slot);
    progress_unlock(s->context->progress);
    if (healthy)
        program_destroy(&s->program);
    s->program = NULL;
}

int pcoll_schedule_free_begin(pcoll_schedule *s)
{
    if (!s || !s->program)
        return PCOLL_OK;
    int rc = schedule_enter(s);
    return rc == PCOLL_OK ? schedule_leave(s, close_program(s)) : rc;
}

int pcoll_schedule_free(pcoll_schedule **at, int64_t timeout_us)
{
    pcoll_schedule *s = *at;
    int rc = PCOLL_OK;
    if (!s)
        return PCOLL_OK;
    if (s->program) {
        if ((rc = schedule_enter(s)) != PCOLL_OK)
            return rc;
        close_program(s); /* a failure shows below, as the context's */
        if (progress_wait(s->context->progress, is_closed, s, timeout_us) ==
            PCOLL_EAGAIN)
            return schedule_leave(s, PCOLL_EAGAIN);
        rc = context_check(s->context);
        runtime_remove(&s->entry);
        dispose(s);
        runtime_release(s->context);
    }
    draft_destroy(&s->draft);
    free(s);
    *at = NULL;
    return rc;
}

/* At MPI_Finalize. The application still has the schedule and may free it later: it
 * stays, empty. */

void schedule_begin_end(struct runtime_entry *entry)
{
    close_program((pcoll_schedule *)entry);
}

void schedule_end(struct runtime_entry *entry)
{
    pcoll_schedule *s = (pcoll_schedule *)entry;
    while (progress_wait(s->context->progress, is_closed, s, 1000000) == PCOLL_EAGAIN)
        ;
    dispose(s);
}

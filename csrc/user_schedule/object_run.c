/* SPDX-License-Identifier: Apache-2.0 */
/* Running a committed schedule. */
#include "base/error.h"
#include "user_schedule/object.h"

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

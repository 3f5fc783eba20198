/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a schedule: first the builder, after the commit the run. object.c writes
 * it down and commits it, object_run.c runs it, object_end.c ends it, object_query.c
 * prints it.
 *
 * Threads: one at a time on a schedule.
 */
#ifndef PCOLL_USER_SCHEDULE_OBJECT_H
#define PCOLL_USER_SCHEDULE_OBJECT_H

#include "runtime/user_object.h"
#include "user_schedule/run.h"

struct pcoll_schedule {
    struct user_object base;  /* first: found again from it */
    const void *comm;         /* until the commit */
    struct builder builder;   /* empty after the commit */
    struct schedule_run *run; /* NULL before the commit and after the end */
    bool committed;
    bool waiting; /* started, and not yet waited for */
};

/* Begin and end a call, as in user_object.h. */
static inline int schedule_enter(pcoll_schedule *s)
{
    return user_object_enter(&s->base);
}

static inline int schedule_leave(pcoll_schedule *s, int rc)
{
    return user_object_leave(&s->base, rc);
}

extern const struct user_object_kind schedule_kind;

#endif

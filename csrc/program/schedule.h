/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a schedule: first the draft, after the commit the program. schedule.c
 * writes it down and commits it, schedule_run.c runs and ends it, schedule_look.c
 * prints it.
 *
 * Threads: one at a time on a schedule. `busy` turns a second one away.
 */
#ifndef PCOLL_PROGRAM_SCHEDULE_H
#define PCOLL_PROGRAM_SCHEDULE_H

#include "../allreduce/runtime.h"
#include "program.h"

struct pcoll_schedule {
    struct runtime_entry entry; /* first: found again from it */
    const void *comm;           /* until the commit */
    struct draft draft;         /* empty after the commit */
    struct context *context;
    struct program *program; /* NULL before the commit and after the end */
    bool committed;
    bool waiting; /* started, and not yet waited for */
    _Atomic bool busy;
};

/* Begin and end a call. PCOLL_ESTATE: in use, freed, in a forked child. */
int schedule_enter(pcoll_schedule *s);
int schedule_leave(pcoll_schedule *s, int rc);

/* What MPI_Finalize does with a schedule that is alive. */
void schedule_begin_end(struct runtime_entry *entry);
void schedule_end(struct runtime_entry *entry);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's own clock in a grouped allreduce: the time in which it was late stands still
 * on it. */
#ifndef PCOLL_GROUP_CLOCK_H
#define PCOLL_GROUP_CLOCK_H

#include <stdint.h>

struct group;

struct group_clock {
    int64_t time;   /* ns, on this clock: of when the rank was driven last, … */
    int64_t due;    /* … and should be next, or INT64_MAX */
    int64_t behind; /* by how much this clock is behind the process's */
};

/* Before anything is done: how late is it? */
void group_wire_update_clock(struct group *g);

/* The process's time, which goes on while this one stands still. */
static inline int64_t group_wire_process_time(const struct group_clock *c)
{
    return c->time + c->behind;
}

#endif

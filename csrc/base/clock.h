/* SPDX-License-Identifier: Apache-2.0 */
/* Time by the monotonic clock, so that setting the wall clock does not change any wait. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t clock_us(void)
{
    return clock_ns() / 1000;
}

/* Return the time for which the calling thread has run on a core. This is a system call. */
static inline int64_t clock_thread_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Return the time `ns` from now, for a condition with this clock. */
static inline struct timespec clock_until(int64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    return until;
}

/* Convert a duration that a user gives in seconds. */
static inline int64_t clock_from_seconds(double seconds)
{
    return (int64_t)(seconds * 1e9);
}

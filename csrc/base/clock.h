/* SPDX-License-Identifier: Apache-2.0 */
/* Time; monotonic, but for what others want in theirs. */
#ifndef PCOLL_BASE_CLOCK_H
#define PCOLL_BASE_CLOCK_H

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

/* So far from now, less than a second, on that clock: what waits of pthreads take. */
static inline struct timespec clock_until(clockid_t clock, int64_t ns)
{
    struct timespec until;
    clock_gettime(clock, &until);
    ns += until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    return until;
}

/* What users give in seconds. */
static inline int64_t seconds_to_ns(double seconds)
{
    return (int64_t)(seconds * 1e9);
}

#endif

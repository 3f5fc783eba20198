/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. */
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

/* What users give in seconds. */
static inline int64_t seconds_to_ns(double seconds)
{
    return (int64_t)(seconds * 1e9);
}

#endif

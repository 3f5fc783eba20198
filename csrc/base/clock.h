/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time in microseconds. */
#ifndef PCOLL_BASE_CLOCK_H
#define PCOLL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

#endif

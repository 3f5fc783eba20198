/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/stall.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/text.h"
#include "base/environment.h"
#include "base/error.h"

/* The time until the first warning, in microseconds. Python complains of values that are not
 * numbers (_core/settings.py). */
static int64_t stall_limit(void)
{
    const char *text = environment_get("PARTIALCOLL_STALL_WARN");
    char *end;
    double seconds = text ? decimal_parse(text, &end) : 10;
    bool valid = !text || (end != text && !*end && seconds > 0 && seconds < 1e9);
    return (int64_t)(1e6 * (valid ? seconds : 10));
}

void stall_wait(struct progress *p, uint32_t rank, bool (*ready)(void *), void *arg,
                void (*explain)(void *arg, char *text, size_t capacity))
{
    char text[500];
    int64_t begin = clock_us(), limit = stall_limit();
    while (progress_wait(p, ready, arg, begin + limit - clock_us()) == PCOLL_EAGAIN) {
        explain(arg, text, sizeof text);
        fprintf(stderr, "partialcoll: rank %u: waiting for %.1f s: %s\n", rank,
                (double)(clock_us() - begin) / 1e6, text);
        limit *= 2;
    }
}

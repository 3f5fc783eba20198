/* SPDX-License-Identifier: Apache-2.0 */
/* How much the cache holds that the cores of a machine share. */
#ifndef PCOLL_BASE_CACHE_H
#define PCOLL_BASE_CACHE_H

#include <stddef.h>
#include <unistd.h>

static inline size_t cache_bytes(void)
{
    enum { TYPICAL = 32 << 20 }; /* where the system does not know */
    long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return level3 > 0 ? (size_t)level3 : (size_t)TYPICAL;
}

#endif

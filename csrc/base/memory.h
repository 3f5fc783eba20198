/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: blocks for messages, the cache, the amount that is left, and what outlives its object. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Allocate memory for messages, in large pages where the system has them, so that the first rounds
 * of a handle do not spend their time on page faults. `pinned`: a device can pin the memory, which
 * begins with a page. Other small blocks begin with a cache line, because a page for each would be
 * mostly unused: short headers leave the room for long ones empty. Free the memory with free().
 * NULL: there is not enough memory. */
static inline void *memory_allocate(size_t bytes, bool pinned)
{
    enum { LINE = 64, PAGE = 4096, LARGE = 2 << 20 };
    void *memory;
    size_t boundary = bytes >= LARGE ? LARGE : pinned ? PAGE : LINE;
    if (posix_memalign(&memory, boundary, bytes ? bytes : 1))
        return NULL;
    if (boundary == LARGE)
        madvise(memory, bytes, MADV_HUGEPAGE); /* failure is harmless */
    return memory;
}

/* Return the size in bytes of the largest cache of this machine's first core, as the kernel
 * reports it. (The C library may report the caches of all cores together.) */
size_t memory_cache_size(void);

/* Copy as memcpy does, but past the cache: for data that is so large that it would leave the cache
 * before it is read. A plain copy reads every cache line that it overwrites, and evicts other data:
 * 11 GB/s rather than 22 for 16 MiB on two cores, but 46 rather than 27 for 1 MiB in the cache. The
 * stores become visible like all others. */
void memory_copy_past_cache(void *out, const void *in, size_t bytes);

/* Return the number of bytes that can still be allocated, by the machine and by the control groups
 * of this process. A larger allocation would not fail: the kernel would later kill this process or
 * another one of its container or batch job. */
uint64_t memory_left(void);

/* The same for control groups only, of both versions. `groups` is a file like
 * /proc/self/cgroup, and the files of the groups are below `mount`. UINT64_MAX: no limit. */
uint64_t memory_left_in_groups(const char *groups, const char *mount);

/* Dispose of memory by end(memory, bytes): when no address in it is held any more
 * (pcoll_memory_hold), because a program that reads a view after its object was freed must not die
 * by a signal. Any thread may call this. */
void memory_dispose(void *memory, size_t bytes,
                    void (*end)(void *memory, size_t bytes));

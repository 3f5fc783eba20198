/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for messages: whole pages, large ones where the system has them, so that the
 * first rounds of a handle do not spend their time on page faults. */
#ifndef PCOLL_BASE_PAGES_H
#define PCOLL_BASE_PAGES_H

#include <stdlib.h>
#include <sys/mman.h>

/* NULL without memory; free() it. */
static inline void *pages_allocate(size_t bytes)
{
    enum { SMALL = 4096, LARGE = 2 << 20 };
    void *memory;
    size_t page = bytes >= LARGE ? LARGE : SMALL;
    if (posix_memalign(&memory, page, bytes ? bytes : 1))
        return NULL;
    if (page == LARGE)
        madvise(memory, bytes, MADV_HUGEPAGE); /* a wish */
    return memory;
}

#endif

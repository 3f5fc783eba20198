/* SPDX-License-Identifier: Apache-2.0 */
/* See memory.h. */
#include "base/memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/lock.h"
#include "include/partialcoll.h"

/* Copying past the cache. */

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64 };

static void stream_line(char *out, const char *in)
{
    const __m128i_u *from = (const __m128i_u *)in;
    __m128i *to = (__m128i *)out;
    __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1),
            c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
}

/* Copy whole cache lines by streaming stores, and the bytes before and after them by memcpy. */
void memory_copy_past_cache(void *out, const void *in, size_t bytes)
{
    char *to = out;
    const char *from = in;
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    head = head < bytes ? head : bytes;
    memcpy(to, from, head);
    size_t at = head;
    for (; at + LINE <= bytes; at += LINE)
        stream_line(to + at, from + at);
    memcpy(to + at, from + at, bytes - at);
    _mm_sfence(); /* atomic operations do not order streaming stores */
}

#else

void memory_copy_past_cache(void *out, const void *in, size_t bytes)
{
    memcpy(out, in, bytes);
}

#endif

/* The cache, and the amount that is left, as the system reports them. */

/* Return the number in the first line of this form. UINT64_MAX: no such line, or no file. */
static uint64_t memory_read_number(const char *folder, const char *name,
                                   const char *format)
{
    char path[PATH_MAX], line[128];
    unsigned long long value;
    uint64_t found = UINT64_MAX;
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = length < (int)sizeof path ? fopen(path, "r") : NULL;
    while (f && found == UINT64_MAX && fgets(line, sizeof line, f))
        if (sscanf(line, format, &value) == 1)
            found = value;
    if (f)
        fclose(f);
    return found;
}

size_t memory_cache_size(void)
{
    enum { TYPICAL_KIB = 32 << 10 }; /* if the system does not report it */
    uint64_t kib = memory_read_number("/sys/devices/system/cpu/cpu0/cache/index3",
                                      "size", "%lluK");
    return (kib && kib != UINT64_MAX ? kib : TYPICAL_KIB) * 1024;
}

static uint64_t memory_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Read the files of a control group of either version. Memory that only caches files counts as used
 * there, but the kernel reclaims it before it kills a process. */
static uint64_t memory_left_in(const char *folder)
{
    uint64_t limit =
        memory_least(memory_read_number(folder, "memory.max", "%llu"),
                     memory_read_number(folder, "memory.limit_in_bytes", "%llu"));
    uint64_t used =
        memory_least(memory_read_number(folder, "memory.current", "%llu"),
                     memory_read_number(folder, "memory.usage_in_bytes", "%llu"));
    uint64_t cached =
        memory_read_number(folder, "memory.stat", "total_inactive_file %llu");
    if (cached == UINT64_MAX)
        cached = memory_read_number(folder, "memory.stat", "inactive_file %llu");
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    if (cached != UINT64_MAX)
        used -= memory_least(cached, used);
    return limit - memory_least(used, limit);
}

/* Return the least of a group and of all groups that contain it. */
static uint64_t memory_left_from(const char *mount, const char *hierarchy,
                                 const char *own)
{
    char folder[PATH_MAX];
    uint64_t left = UINT64_MAX;
    size_t root = strlen(mount) + strlen(hierarchy);
    int length = snprintf(folder, sizeof folder, "%s%s%s", mount, hierarchy, own);
    while (length < (int)sizeof folder && strlen(folder) >= root) {
        left = memory_least(left, memory_left_in(folder));
        char *slash = strrchr(folder + root, '/');
        if (!slash)
            break;
        *slash = 0;
    }
    return left;
}

uint64_t memory_left_in_groups(const char *groups, const char *mount)
{
    CHECK(groups && mount);
    char line[PATH_MAX];
    uint64_t left = UINT64_MAX;
    FILE *f = fopen(groups, "r");
    while (f && fgets(line, sizeof line, f)) { /* number:controllers:group */
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *own = names ? strchr(names + 1, ':') : NULL;
        if (!own)
            continue;
        *own++ = 0;
        if (!*++names)
            left = memory_least(left, memory_left_from(mount, "", own));
        else if (strstr(names, "memory"))
            left = memory_least(left, memory_left_from(mount, "/memory", own));
    }
    if (f)
        fclose(f);
    return left;
}

uint64_t memory_left(void)
{
    uint64_t machine = memory_read_number("/proc", "meminfo", "MemAvailable: %llu kB");
    machine = machine == UINT64_MAX ? machine : machine * 1024;
    return memory_least(machine,
                        memory_left_in_groups("/proc/self/cgroup", "/sys/fs/cgroup"));
}

/*
 * Memory that outlives its object: the addresses that are held, and the blocks that were
 * disposed of meanwhile. The mutex protects both lists, which are short. A block is in
 * `disposed` if and only if an address in it is held. The thread that takes it from the list
 * ends it after it has released the mutex; no other thread knows the block then.
 */

struct hold {
    uintptr_t address;
    struct hold *next;
};

struct memory_block {
    uintptr_t begin;
    size_t bytes;
    void (*end)(void *memory, size_t bytes);
    struct memory_block *next;
};

static struct lock mutex = LOCK_INIT(LOCK_HELD_MEMORY);
static struct hold *holds;
static struct memory_block *disposed;

static bool memory_block_has(const struct memory_block *b, uintptr_t address)
{
    return address - b->begin < b->bytes;
}

static bool memory_is_held(const struct memory_block *b)
{
    for (const struct hold *h = holds; h; h = h->next)
        if (memory_block_has(b, h->address))
            return true;
    return false;
}

int pcoll_memory_hold(const void *address)
{
    int rc = fail_if_null(address);
    struct hold *h = rc == PCOLL_OK ? malloc(sizeof *h) : NULL;
    if (!h)
        return rc ?: fail(PCOLL_ENOMEM, "no memory to hold a view");
    lock_take(&mutex);
    *h = (struct hold){(uintptr_t)address, holds};
    holds = h;
    lock_release(&mutex);
    return PCOLL_OK;
}

/* Take the block of this address from the list, if no address in it is held. */
static struct memory_block *memory_take_block(uintptr_t address)
{
    struct memory_block **at = &disposed;
    while (*at && !memory_block_has(*at, address))
        at = &(*at)->next;
    struct memory_block *b = *at;
    if (!b || memory_is_held(b))
        return NULL;
    *at = b->next;
    return b;
}

void pcoll_memory_release(const void *address)
{
    if (!address)
        return;
    lock_take(&mutex);
    struct hold **at = &holds;
    while (*at && (*at)->address != (uintptr_t)address)
        at = &(*at)->next;
    struct hold *h = *at;
    CHECK(h);
    *at = h->next;
    struct memory_block *free_now = memory_take_block((uintptr_t)address);
    lock_release(&mutex);
    free(h);
    if (free_now)
        free_now->end((void *)free_now->begin, free_now->bytes);
    free(free_now);
}

void memory_dispose(void *memory, size_t bytes, void (*end)(void *memory, size_t bytes))
{
    CHECK(memory && bytes && end);
    struct memory_block block = {
        .begin = (uintptr_t)memory, .bytes = bytes, .end = end};
    lock_take(&mutex);
    bool held = memory_is_held(&block);
    struct memory_block *b = held ? malloc(sizeof *b) : NULL;
    if (b) { /* without memory for the entry the block is leaked, but stays valid */
        *b = block;
        b->next = disposed;
        disposed = b;
    }
    lock_release(&mutex);
    if (!held)
        end(memory, bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Doorbells: futexes in an anonymous memory file. The protocol is in doorbell.h. */
#include "base/doorbell.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"

static const size_t page_bytes = 4096;

/* Map the page of a memory file; -1: memory of this process. */
static struct doorbell_page *doorbell_map(int fd)
{
    int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
    void *page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}

int doorbell_create(struct doorbell *b)
{
    b->page = NULL;
    b->fd = memfd_create("partialcoll-doorbell", MFD_CLOEXEC);
    if (b->fd >= 0 && ftruncate(b->fd, (off_t)page_bytes) == 0)
        b->page = doorbell_map(b->fd);
    /* Without a memory file (too many open files, an old kernel) the doorbell cannot be rung by
     * other processes. That is better than a rank that drops out while the others wait. */
    if (!b->page)
        b->page = doorbell_map(-1);
    if (!b->page) {
        doorbell_destroy(b);
        return fail(PCOLL_ENOMEM, "no memory for the doorbell of this process");
    }
    if (getrandom(&b->page->cookie, sizeof b->page->cookie, 0) < 0)
        b->page->cookie = (uint64_t)getpid();
    return PCOLL_OK;
}

void doorbell_destroy(struct doorbell *b)
{
    if (b->page)
        doorbell_close(b->page);
    if (b->fd >= 0)
        close(b->fd);
    b->page = NULL;
    b->fd = -1;
}

struct doorbell_page *doorbell_open(uint64_t pid, uint64_t fd, uint64_t cookie)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)pid,
             (unsigned long long)fd);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0)
        return NULL;
    off_t size = lseek(opened, 0, SEEK_END);
    struct doorbell_page *page =
        size >= (off_t)page_bytes ? doorbell_map(opened) : NULL;
    close(opened);
    if (page && page->cookie != cookie) {
        doorbell_close(page);
        page = NULL;
    }
    return page;
}

void doorbell_close(struct doorbell_page *page)
{
    munmap(page, page_bytes);
}

static void doorbell_wake(struct doorbell_page *page, int count,
                          enum doorbell_sleeper who)
{
    syscall(SYS_futex, &page->count, FUTEX_WAKE_BITSET, count, NULL, NULL, who);
}

void doorbell_ring(struct doorbell_page *page)
{
    atomic_fetch_add(&page->count, 1);
    if (atomic_load(&page->waiters_asleep))
        doorbell_wake(page, 1, DOORBELL_WAITER);
    else if (!atomic_load(&page->waiters) && atomic_load(&page->agent_asleep))
        doorbell_wake(page, 1, DOORBELL_AGENT);
}

void doorbell_wake_waiters(struct doorbell_page *page)
{
    atomic_fetch_add(&page->count, 1);
    if (atomic_load(&page->waiters_asleep))
        doorbell_wake(page, INT_MAX, DOORBELL_WAITER);
}

void doorbell_wake_agent(struct doorbell_page *page)
{
    atomic_fetch_add(&page->count, 1);
    if (atomic_load(&page->agent_asleep))
        doorbell_wake(page, 1, DOORBELL_AGENT);
}

void doorbell_sleep(struct doorbell_page *page, uint32_t seen,
                    enum doorbell_sleeper who, int64_t timeout_us)
{
    _Atomic uint32_t *flag =
        who == DOORBELL_WAITER ? &page->waiters_asleep : &page->agent_asleep;
    /* FUTEX_WAIT_BITSET takes an absolute time. */
    struct timespec until = clock_until(timeout_us * 1000);
    atomic_fetch_add(flag, 1);
    syscall(SYS_futex, &page->count, FUTEX_WAIT_BITSET, seen, &until, NULL, who);
    atomic_fetch_sub(flag, 1);
}

static uint64_t doorbell_hash_link(uint64_t hash, const char *path)
{
    char text[128] = "";
    ssize_t n = readlink(path, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    return splitmix_text(hash, text);
}

uint64_t doorbell_neighborhood(void)
{
    char boot[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f) {
        if (!fgets(boot, sizeof boot, f))
            boot[0] = 0;
        fclose(f);
    }
    uint64_t hash = splitmix_text(1, boot);
    hash = doorbell_hash_link(hash, "/proc/self/ns/pid");
    return doorbell_hash_link(hash, "/proc/self/ns/net");
}

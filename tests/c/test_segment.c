/* SPDX-License-Identifier: Apache-2.0 */
/* Memory shared between processes: only the intended processes can open it. */
#include <ftw.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "domain/domain.h"
#include "include/partialcoll.h"
#include "check.h"

enum { BYTES = 100000, COOKIE = 4711 };

static void check_refused(uint64_t pid, int fd, size_t bytes, uint64_t cookie,
                          const char *why)
{
    struct segment s;
    int rc = segment_open(pid, (uint64_t)fd, bytes, cookie, &s);
    EXPECT(rc == PCOLL_ENOMEM && !s.memory && s.fd == -1, "taken: %s", why);
    EXPECT(strstr(pcoll_last_error(), why), "%s: %s", why, pcoll_last_error());
}

static void test_sharing(void)
{
    struct segment made, opened;
    EXPECT_OK(segment_create(BYTES, BYTES, COOKIE, &made));
    EXPECT_OK(
        segment_open((uint64_t)getpid(), (uint64_t)made.fd, BYTES, COOKIE, &opened));
    EXPECT_OK(segment_reserve(&opened, 10, BYTES - 10));
    EXPECT((uintptr_t)made.memory % 64 == 0, "not aligned");
    for (size_t i = 0; i < BYTES; i++)
        EXPECT(((char *)made.memory)[i] == 0, "byte %zu is not 0", i);
    strcpy((char *)made.memory + BYTES - 6, "hello");
    EXPECT(!strcmp((char *)opened.memory + BYTES - 6, "hello"), "not shared");

    /* A stale descriptor number may refer to another file, another job's memory, or one
     * of another size. */
    uint64_t pid = (uint64_t)getpid();
    check_refused(pid, made.fd, BYTES, COOKIE + 1, "is another one's");
    check_refused(pid, made.fd, BYTES + 1, COOKIE, "is not ours");
    check_refused(pid, 99999, BYTES, COOKIE, "No such file");
    int sealed = made.fd;
    segment_sealed(&made);
    check_refused(pid, sealed, BYTES, COOKIE, "No such file");
    segment_close(&made);
    EXPECT(!strcmp((char *)opened.memory + BYTES - 6, "hello"), "gone with its maker");
    segment_close(&opened);
}

static long page_faults(void)
{
    struct rusage usage;
    EXPECT(getrusage(RUSAGE_SELF, &usage) == 0, "no usage");
    return usage.ru_minflt;
}

/* A round that writes to reserved memory causes no page faults. */
static void test_reserved_memory_is_mapped(void)
{
    enum { MANY = 4096 * 1024, POPULATE_WRITE = 23 };
    struct segment s;
    EXPECT_OK(segment_create(MANY, MANY, COOKIE, &s));
    bool can = madvise(s.memory, 1, POPULATE_WRITE) == 0; /* since Linux 5.14 */
    EXPECT_OK(segment_reserve(&s, 100, MANY - 100));
    long before = page_faults();
    memset(s.memory, 1, MANY);
    long faults = page_faults() - before;
    EXPECT(!can || faults < 512, "%ld page faults", faults);
    segment_close(&s);
}

static void test_too_large(void)
{
    struct segment s;
    EXPECT(segment_create((size_t)1 << 60, (size_t)1 << 60, COOKIE, &s) == PCOLL_ENOMEM,
           "an exabyte");
    EXPECT(strstr(pcoll_last_error(), "1152921504606846976 bytes of shared memory"),
           "%s", pcoll_last_error());
    EXPECT(!s.memory && s.fd == -1, "left open");
}

/* Write a file of a simulated system. */
static void write_file(const char *folder, const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    EXPECT(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

static void make_group(const char *mount, const char *group, const char *const *files)
{
    char path[100];
    snprintf(path, sizeof path, "%s%s", mount, group);
    EXPECT(mkdir(path, 0700) == 0, "%s", path);
    for (; *files; files += 2)
        write_file(path, files[0], files[1]);
}

static void expect_left(const char *mount, const char *line, uint64_t left)
{
    char groups[100];
    snprintf(groups, sizeof groups, "%s/own", mount);
    write_file(mount, "own", line);
    uint64_t found = memory_left_in_groups(groups, mount);
    EXPECT(found == left, "%s: %llu", line, (unsigned long long)found);
}

static int delete(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)s, (void)kind, (void)at;
    return remove(path);
}

/* Find the smallest limit of the cgroups around this process, in both versions. Cached
 * files count as free, since they can be evicted. */
static void test_left_in_groups(void)
{
    char mount[] = "/tmp/partialcoll-test-XXXXXX";
    EXPECT(mkdtemp(mount), "no folder");
    make_group(mount, "/job",
               (const char *[]){"memory.max", "1000\n", "memory.current", "1000\n",
                                "memory.stat",
                                "anon 1\ninactive_file 700\nactive_file 9\n", NULL});
    make_group(mount, "/job/step",
               (const char *[]){"memory.max", "max\n", "memory.current", "10\n", NULL});
    make_group(mount, "/job/over",
               (const char *[]){"memory.max", "10\n", "memory.current", "12\n", NULL});
    make_group(mount, "/memory",
               (const char *[]){"memory.limit_in_bytes", "500\n",
                                "memory.usage_in_bytes", "100\n", "memory.stat",
                                "inactive_file 1\ntotal_inactive_file 3\n", NULL});
    make_group(mount, "/memory/a", (const char *[]){NULL});
    expect_left(mount, "0::/job/step\n", 700);
    expect_left(mount, "0::/job/over\n", 0);
    expect_left(mount, "4:cpu,memory:/a\n0::/job\n", 403);
    expect_left(mount, "4:memory:/\n", 403);
    expect_left(mount, "5:cpuset:/job\n0::/\n\nx\n", UINT64_MAX);
    expect_left(mount, "0::/job/gone\n", 700);
    EXPECT(memory_left_in_groups("/nowhere", mount) == UINT64_MAX, "of no file");
    EXPECT(memory_left() > 0, "nothing is left");
    EXPECT(nftw(mount, delete, 5, FTW_DEPTH | FTW_PHYS) == 0, "left behind");
}

static int ended;

static void end(void *memory, size_t bytes)
{
    EXPECT(bytes == 100 && *(char *)memory == 7, "another block");
    ended++;
}

static void test_held(void)
{
    static char block[100] = {7}, other[100] = {7};
    memory_dispose(block, sizeof block, end);
    EXPECT(ended == 1, "no one holds it");
    EXPECT_OK(pcoll_memory_hold(block + 99));
    EXPECT_OK(pcoll_memory_hold(block + 99));
    EXPECT_OK(pcoll_memory_hold(block));
    memory_dispose(block, sizeof block, end);
    memory_dispose(other, sizeof other, end);
    EXPECT(ended == 2, "only the other one goes: %d", ended);
    pcoll_memory_release(block + 99);
    pcoll_memory_release(block);
    EXPECT(ended == 2, "gone while one is held: %d", ended);
    pcoll_memory_release(block + 99);
    EXPECT(ended == 3, "kept without a holder");
    EXPECT_OK(pcoll_memory_hold(block));
    pcoll_memory_release(block);
    EXPECT(ended == 3, "ended twice: %d", ended);
}

/* A view of the segment is used after the segment was closed. */
static void test_held_segment(void)
{
    struct segment s;
    EXPECT_OK(segment_create(BYTES, BYTES, COOKIE, &s));
    char *view = (char *)s.memory + BYTES - 1;
    EXPECT_OK(pcoll_memory_hold(view));
    segment_close(&s);
    *view = 1;
    pcoll_memory_release(view);
}

int main(void)
{
    test_held();
    test_held_segment();
    test_sharing();
    test_reserved_memory_is_mapped();
    test_too_large();
    test_left_in_groups();
    printf("segments: all tests passed\n");
    return 0;
}

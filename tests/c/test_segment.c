/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes share: opened by those it is for, and by nobody else. */
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/held_memory.h"
#include "domain/segment.h"
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
    EXPECT_OK(segment_create(BYTES, COOKIE, &made));
    EXPECT_OK(
        segment_open((uint64_t)getpid(), (uint64_t)made.fd, BYTES, COOKIE, &opened));
    EXPECT_OK(segment_reserve(&opened, 10, BYTES - 10));
    EXPECT((uintptr_t)made.memory % 64 == 0, "not aligned");
    for (size_t i = 0; i < BYTES; i++)
        EXPECT(((char *)made.memory)[i] == 0, "byte %zu is not 0", i);
    strcpy((char *)made.memory + BYTES - 6, "hello");
    EXPECT(!strcmp((char *)opened.memory + BYTES - 6, "hello"), "not shared");

    /* What a stale number may lead to: another file, another job's, one of other size.
     */
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

static void test_too_large(void)
{
    struct segment s;
    EXPECT(segment_create((size_t)1 << 60, COOKIE, &s) == PCOLL_ENOMEM, "an exabyte");
    EXPECT(strstr(pcoll_last_error(), "1152921504606846976 bytes of shared memory"),
           "%s", pcoll_last_error());
    EXPECT(!s.memory && s.fd == -1, "left open");
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
    EXPECT(ended == 1, "nobody holds it");
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
    EXPECT(ended == 3, "kept for nobody");
    EXPECT_OK(pcoll_memory_hold(block));
    pcoll_memory_release(block);
    EXPECT(ended == 3, "ended twice: %d", ended);
}

/* A view of it is used after it was closed. */
static void test_held_segment(void)
{
    struct segment s;
    EXPECT_OK(segment_create(BYTES, COOKIE, &s));
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
    test_too_large();
    printf("segments: all tests passed\n");
    return 0;
}

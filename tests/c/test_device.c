/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between host and device on the fake driver (tests/fake_cuda), which is found by the
 * variable PARTIALCOLL_CUDA_LIBRARY. Each test runs in its own process, because settings and the
 * state of the driver last for the life of a process.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "fake_device.h"
#include "device/lane.h"

enum { PAGE = 4096, MOST = 40 * PAGE };

/* The application: a device, its context, a stream, memory. */
struct user {
    cuda_context context;
    cuda_stream stream;
    uint64_t memory;
    int device;
    char *host;
};

static void enter(const struct user *u)
{
    INVARIANT("contexts are as before", cuda.context_push(u->context) == CUDA_SUCCESS,
              "the driver has too many contexts");
}

static void leave(const struct user *u)
{
    cuda_context context;
    EXPECT(cuda.context_pop(&context) == CUDA_SUCCESS, "no context to leave");
    INVARIANT("contexts are as before", context == u->context, "another is current");
}

static struct user make_user(int device)
{
    struct user u = {.device = device};
    fake_device_start();
    EXPECT(cuda.primary_retain(&u.context, device) == CUDA_SUCCESS, "no device");
    enter(&u);
    EXPECT(cuda.stream_create(&u.stream, 0) == CUDA_SUCCESS, "no stream");
    EXPECT(memory_take(&u.memory, MOST) == CUDA_SUCCESS, "no memory");
    u.host =
        mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(cuda.host_register(u.host, MOST, 0) == CUDA_SUCCESS, "not registered");
    leave(&u);
    return u;
}

static void end_user(const struct user *u)
{
    enter(u);
    EXPECT(cuda.host_unregister(u->host) == CUDA_SUCCESS, "not registered");
    munmap(u->host, MOST);
    EXPECT(memory_free(u->memory) == CUDA_SUCCESS, "not freed");
    EXPECT(cuda.stream_destroy(u->stream) == CUDA_SUCCESS, "not destroyed");
    leave(u);
    EXPECT(cuda.primary_release(u->device) == CUDA_SUCCESS, "not released");
}

static void fill(char *bytes, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (char)((seed = seed * 1103515245u + 12345u) >> 24);
}

static void wait_for(pcoll_mirror *l)
{
    int rc;
    while ((rc = pcoll_mirror_wait(l, 100)) == PCOLL_EAGAIN)
        ;
    INVARIANT("copies end", rc == PCOLL_OK, "%d: %s", rc, pcoll_last_error());
}

static void begin(pcoll_mirror *l, enum lane_direction direction,
                  const pcoll_piece *pieces, int count, uint64_t stream)
{
    int rc = lane_begin(l, direction, pieces, count, stream);
    INVARIANT("copies begin", rc == PCOLL_OK, "%d: %s", rc, pcoll_last_error());
}

static void expect_nothing_wrong(uint64_t live)
{
    struct fake_cuda_counts c;
    get_counts(&c);
    EXPECT(c.complaints == 0, "%d complaints", (int)c.complaints);
    EXPECT(c.live == live, "%d left, expected %d", (int)c.live, (int)live);
}

/* The data of a late kernel arrives completely, at any size and offset. The bytes cross
 * the bus once. */
static void test_to_host(void)
{
    static char wanted[MOST];
    struct user u = make_user(1);
    pcoll_mirror *l;
    uint64_t bytes = 0;
    EXPECT_OK(pcoll_mirror_create(1, &l));
    for (unsigned i = 0; i < 30; i++) {
        size_t from = i % 7 * 3, first = 1 + i * i * 97 % (MOST / 2);
        size_t second = i % 4 ? i * 1001 : 0;
        pcoll_piece pieces[] = {
            {u.host + from, u.memory + from, first},
            {u.host + MOST - second, u.memory + MOST - second, second}};
        fill(wanted, MOST, i);
        memset(u.host, 0, MOST);
        enter(&u);
        late_write(number(u.stream), u.memory, wanted, MOST, i % 3 * 500);
        begin(l, LANE_TO_HOST, pieces, 2, number(u.stream));
        leave(&u);
        wait_for(l);
        INVARIANT("written data arrives",
                  !memcmp(u.host + from, wanted + from, first) &&
                      !memcmp(u.host + MOST - second, wanted + MOST - second, second),
                  "round %u", i);
        bytes += first + second;
    }
    struct fake_cuda_counts c;
    get_counts(&c);
    EXPECT(c.to_host == bytes, "%d bytes", (int)c.to_host);
    EXPECT(c.registrations == 1, "%d registrations", (int)c.registrations);
    pcoll_mirror_free(&l);
    end_user(&u);
    expect_nothing_wrong(0);
}

/* After lane_order, the application's stream reads the data that was passed, even if
 * the host memory is overwritten once lane_poll reports completion. */
static void test_to_device(void)
{
    static char given[MOST], found[MOST];
    struct user u = make_user(0);
    pcoll_mirror *l;
    EXPECT_OK(pcoll_mirror_create(0, &l));
    for (unsigned i = 0; i < 30; i++) {
        size_t count = 1 + i * i * 101 % MOST;
        pcoll_piece piece = {u.host, u.memory, count};
        fill(given, MOST, 100 + i);
        memcpy(u.host, given, MOST);
        memset(found, 0, MOST);
        enter(&u);
        /* A late kernel that still reads the result of the last round. */
        late_write(number(u.stream), u.memory, found, MOST, i % 3 * 500);
        begin(l, LANE_TO_DEVICE, &piece, 1, number(u.stream));
        EXPECT_OK(lane_order(l, number(u.stream)));
        late_read(number(u.stream), u.memory, found, count, 0);
        leave(&u);
        wait_for(l);
        memset(u.host, 0x55, MOST);
        enter(&u);
        EXPECT(stream_sync(number(u.stream)) == CUDA_SUCCESS, "no end");
        leave(&u);
        INVARIANT("a stream sees copied data", !memcmp(found, given, count), "round %u",
                  i);
    }
    pcoll_mirror_free(&l);
    end_user(&u);
    expect_nothing_wrong(0);
}

/* Each direction has two streams. A copy completes only when both do. */
static void test_one_slow_stream(void)
{
    static char wanted[MOST], found[MOST];
    struct user u = make_user(0);
    pcoll_mirror *to_host, *to_device;
    slow_streams(10000);
    EXPECT_OK(pcoll_mirror_create(0, &to_host));
    EXPECT_OK(pcoll_mirror_create(0, &to_device));
    slow_streams(0);
    pcoll_piece piece = {u.host, u.memory, MOST};
    for (unsigned i = 0; i < 2; i++) {
        fill(wanted, MOST, 7 + i);
        enter(&u);
        late_write(number(u.stream), u.memory, wanted, MOST, 0);
        begin(to_host, LANE_TO_HOST, &piece, 1, number(u.stream));
        leave(&u);
        wait_for(to_host);
        INVARIANT("written data arrives", !memcmp(u.host, wanted, MOST), "round %u", i);
        fill(u.host, MOST, 9 + i);
        memcpy(wanted, u.host, MOST);
        enter(&u);
        begin(to_device, LANE_TO_DEVICE, &piece, 1, number(u.stream));
        EXPECT_OK(lane_order(to_device, number(u.stream)));
        late_read(number(u.stream), u.memory, found, MOST, 0);
        EXPECT(stream_sync(number(u.stream)) == CUDA_SUCCESS, "no end");
        leave(&u);
        INVARIANT("a stream sees copied data", !memcmp(found, wanted, MOST), "round %u",
                  i);
        wait_for(to_device);
    }
    pcoll_mirror_free(&to_host);
    pcoll_mirror_free(&to_device);
    end_user(&u);
    expect_nothing_wrong(0);
}

/* Two mirrors on each of two devices at the same time, started from one thread. */
static void test_several(void)
{
    enum { LANES = 4 };
    struct user u[LANES];
    pcoll_mirror *l[LANES];
    static char wanted[LANES][MOST];
    for (int i = 0; i < LANES; i++) {
        u[i] = make_user(i % 2);
        EXPECT_OK(pcoll_mirror_create(i % 2, &l[i]));
        fill(wanted[i], MOST, (unsigned)i);
    }
    for (int i = 0; i < LANES; i++) {
        pcoll_piece piece = {u[i].host, u[i].memory, MOST};
        enter(&u[i]);
        stream_hold(number(u[i].stream));
        late_write(number(u[i].stream), u[i].memory, wanted[i], MOST, 0);
        leave(&u[i]);
        begin(l[i], LANE_TO_HOST, &piece, 1, number(u[i].stream));
        INVARIANT("one copy at a time",
                  lane_begin(l[i], LANE_TO_HOST, &piece, 1, number(u[i].stream)) ==
                      PCOLL_ESTATE,
                  "begun twice");
    }
    streams_release();
    for (int i = 0; i < LANES; i++) {
        wait_for(l[i]);
        INVARIANT("written data arrives", !memcmp(u[i].host, wanted[i], MOST),
                  "lane %d", i);
        pcoll_mirror_free(&l[i]);
        end_user(&u[i]);
    }
    expect_nothing_wrong(0);
}

static void refused(int rc, int expected, const char *why)
{
    INVARIANT("invalid input is refused", rc == expected, "%d instead of %d: %s", rc,
              expected, pcoll_last_error());
    EXPECT(strstr(pcoll_last_error(), why), "%s", pcoll_last_error());
}

/* Refuse a stream of another device, a stream that records a graph, and missing
 * devices. The mirror stays unchanged. */
static void test_bad_input(void)
{
    struct user u = make_user(0), other = make_user(1);
    pcoll_mirror *l;
    pcoll_piece piece = {u.host, u.memory, 100};
    refused(pcoll_mirror_create(2, &l), PCOLL_EINVAL, "expected 0 to 1, got 2");
    refused(pcoll_mirror_create(-1, &l), PCOLL_EINVAL, "got -1");
    EXPECT_OK(pcoll_mirror_create(0, &l));
    refused(lane_begin(l, LANE_TO_HOST, &piece, 1, number(other.stream)), PCOLL_EINVAL,
            "another device");
    refused(lane_order(l, number(other.stream)), PCOLL_EINVAL, "another device");
    enter(&u);
    capture(number(u.stream), 1);
    refused(lane_begin(l, LANE_TO_HOST, &piece, 1, number(u.stream)), PCOLL_EINVAL,
            "CUDA graph");
    capture(number(u.stream), 0);
    leave(&u);
    begin(l, LANE_TO_HOST, &piece, 1, 0);
    wait_for(l);
    EXPECT_OK(lane_order(l, 0));
    pcoll_mirror_free(&l);
    end_user(&other);
    end_user(&u);
    expect_nothing_wrong(0);
}

static void test_registering(void)
{
    struct user u = make_user(0);
    pcoll_mirror *l;
    EXPECT_OK(pcoll_mirror_create(0, &l));
    refused(pcoll_mirror_pin(l, u.host + 100, 10), PCOLL_ESTATE, "ALREADY_REGISTERED");
    enter(&u);
    EXPECT(cuda.host_unregister(u.host) == CUDA_SUCCESS, "not registered");
    leave(&u);
    EXPECT_OK(pcoll_mirror_pin(l, u.host, MOST));
    pcoll_mirror_free(&l);
    enter(&u);
    EXPECT(cuda.host_register(u.host, MOST, 0) == CUDA_SUCCESS, "still registered");
    leave(&u);
    end_user(&u);
    expect_nothing_wrong(0);
}

static void test_places(void)
{
    struct user u = make_user(1);
    int32_t device;
    char here;
    EXPECT_OK(pcoll_device_of((uintptr_t)&here, &device));
    EXPECT(device == -1, "the stack is on device %d", device);
    EXPECT_OK(pcoll_device_of((uintptr_t)u.host, &device));
    EXPECT(device == -1, "registered memory is on device %d", device);
    const uint64_t memory = u.memory;
    EXPECT_OK(pcoll_device_of(u.memory + MOST - 1, &device));
    EXPECT(device == 1, "it is on device %d", device);
    EXPECT_OK(place_check(memory + 10, MOST - 10, 1));
    EXPECT_OK(place_check(0, 0, 1));
    refused(place_check(memory + 10, MOST - 9, 1), PCOLL_EINVAL,
            "163830 are allocated");
    refused(place_check(memory + 10, MOST, 1), PCOLL_EINVAL, "163830 are allocated");
    refused(place_check(memory, 1, 0), PCOLL_EINVAL, "got device 1");
    refused(place_check((uintptr_t)&here, 1, 1), PCOLL_EINVAL, "it was none");
    end_user(&u);
    refused(place_check(memory, 1, 1), PCOLL_EINVAL, "has been freed");
    expect_nothing_wrong(0);
}

/* Managed memory belongs to the device for which it was allocated, whatever location
 * the driver reports. */
static void test_managed(void)
{
    struct user u = make_user(1);
    int32_t device;
    uint64_t address;
    enter(&u);
    EXPECT(managed_take(&address, MOST, 1) == CUDA_SUCCESS, "no memory");
    leave(&u);
    const uint64_t memory = address;
    for (int i = 0; i < 20; i++) {
        EXPECT_OK(pcoll_device_of(address, &device));
        INVARIANT("memory is known", device == 1, "it is on device %d", device);
        INVARIANT("memory is known", place_check(memory, MOST, 1) == PCOLL_OK, "%s",
                  pcoll_last_error());
    }
    refused(place_check(memory, 1, 0), PCOLL_EINVAL, "got device 1");
    EXPECT(memory_free(address) == CUDA_SUCCESS, "not freed");
    refused(place_check(memory, 1, 1), PCOLL_EINVAL, "has been freed");
    end_user(&u);
    expect_nothing_wrong(0);
}

/* Freeing memory during a copy makes this copy and later ones fail, without a hang. */
static void test_freed_under_way(void)
{
    struct user u = make_user(0);
    pcoll_mirror *l;
    pcoll_piece piece = {u.host, u.memory, MOST};
    int rc;
    EXPECT_OK(pcoll_mirror_create(0, &l));
    enter(&u);
    EXPECT(stream_hold(number(u.stream)) == CUDA_SUCCESS, "it is not busy");
    begin(l, LANE_TO_HOST, &piece, 1, number(u.stream));
    EXPECT(memory_free(u.memory) == CUDA_SUCCESS, "not freed");
    streams_release();
    leave(&u);
    while ((rc = lane_poll(l, LANE_TO_HOST)) == PCOLL_EAGAIN)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    refused(rc, PCOLL_ESTATE, "CUDA_ERROR_ILLEGAL_ADDRESS");
    refused(lane_poll(l, LANE_TO_HOST), PCOLL_ESTATE, "CUDA");
    EXPECT(lane_begin(l, LANE_TO_HOST, &piece, 1, 0) == PCOLL_ESTATE, "begun");
    pcoll_mirror_free(&l);
    _exit(0);
}

static void await_mirror(pcoll_mirror *m)
{
    int rc;
    while ((rc = pcoll_mirror_wait(m, 100)) == PCOLL_EAGAIN)
        ;
    INVARIANT("a mirror's copies end", rc == PCOLL_OK, "%d: %s", rc,
              pcoll_last_error());
}

/* A pull copies the data of a late kernel, and a late kernel reads pushed data. No copy
 * begins while another is in progress, and pinned memory is released. */
static void test_mirror(void)
{
    static char given[MOST], found[MOST];
    struct user u = make_user(1);
    char *host =
        mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pcoll_mirror *m = NULL;
    EXPECT_OK(pcoll_mirror_create(1, &m));
    EXPECT_OK(pcoll_mirror_pin(m, host, 2 * PAGE));
    EXPECT_OK(pcoll_mirror_pin(m, host + 2 * PAGE, MOST - 2 * PAGE));
    uint64_t stream = number(u.stream);
    for (unsigned i = 0; i < 10; i++) {
        pcoll_piece pieces[] = {{host + i, u.memory + i, PAGE},
                                {host + MOST - PAGE, u.memory + MOST - PAGE, PAGE}};
        fill(given, MOST, i);
        enter(&u);
        stream_hold(stream);
        late_write(stream, u.memory, given, MOST, 0);
        EXPECT_OK(pcoll_mirror_pull(m, pieces, 2, stream));
        leave(&u);
        EXPECT(pcoll_mirror_wait(m, 0) == PCOLL_EAGAIN, "over at once");
        refused(pcoll_mirror_push(m, pieces, 2, stream), PCOLL_ESTATE, "not over");
        streams_release();
        await_mirror(m);
        INVARIANT("written data is pulled",
                  !memcmp(host + i, given + i, PAGE) &&
                      !memcmp(host + MOST - PAGE, given + MOST - PAGE, PAGE),
                  "round %u", i);
        fill(host, MOST, i + 100);
        EXPECT_OK(pcoll_mirror_push(m, pieces, 1, stream));
        enter(&u);
        late_read(stream, u.memory, found, MOST, 0);
        leave(&u);
        await_mirror(m);
        memset(host, 0, MOST);
        enter(&u);
        stream_sync(stream);
        leave(&u);
        fill(given, MOST, i + 100);
        INVARIANT("pushed data is read", !memcmp(found + i, given + i, PAGE),
                  "round %u", i);
    }
    pcoll_piece beyond = {host, u.memory + MOST, 1};
    refused(pcoll_mirror_pull(m, &beyond, 1, stream), PCOLL_EINVAL, "memory");
    refused(pcoll_mirror_pull(m, &beyond, 0, stream), PCOLL_EINVAL, "count");
    refused(pcoll_mirror_pin(m, NULL, 1), PCOLL_EINVAL, "memory");
    refused(pcoll_mirror_wait(NULL, 0), PCOLL_EINVAL, "mirror");
    uint64_t begin, bytes;
    EXPECT_OK(pcoll_device_allocation(u.memory + 77, &begin, &bytes));
    EXPECT(begin == u.memory && bytes == MOST, "%d bytes", (int)bytes);
    refused(pcoll_device_allocation(8, &begin, &bytes), PCOLL_EINVAL, "freed");
    EXPECT_OK(pcoll_mirror_free(&m));
    EXPECT_OK(pcoll_mirror_free(&m));
    refused(pcoll_mirror_create(7, &m), PCOLL_EINVAL, "expected 0 to 1");
    munmap(host, MOST);
    end_user(&u);
    expect_nothing_wrong(0);
}

static void test_the_host_may_not_look(void)
{
    struct user u = make_user(0);
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        /* The sanitizer would report it and exit with another status. */
        _exit(*(volatile char *)(uintptr_t)u.memory); /* NOLINT */
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT(!WIFEXITED(status) || WEXITSTATUS(status) == 1, "status %x", status);
    end_user(&u);
}

static void test_forked(void)
{
    fake_device_start();
    pid_t child = fork();
    if (child == 0) {
        refused(cuda_start(), PCOLL_ESTATE, "start it with spawn");
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT(status == 0, "status %x", status);
}

/* No driver, an old driver, or no devices: an error message, and no crash. */
static void test_no_driver(void)
{
    pcoll_mirror *l;
    setenv("PARTIALCOLL_CUDA_LIBRARY", "/nonexistent/libcuda.so", 1);
    refused(cuda_start(), PCOLL_ESTATE, "looked for /nonexistent/libcuda.so");
    refused(pcoll_mirror_create(0, &l), PCOLL_ESTATE, "no CUDA driver");
}

static void test_no_functions(void)
{
    setenv("PARTIALCOLL_CUDA_LIBRARY", "libm.so.6", 1);
    refused(cuda_start(), PCOLL_ESTATE, "it has no cuInit");
}

static void test_old_driver(void)
{
    setenv("FAKE_CUDA_VERSION", "10020", 1);
    refused(cuda_start(), PCOLL_ESTATE, "for CUDA 10.2, expected 11.0");
}

static void test_no_devices(void)
{
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    refused(cuda_start(), PCOLL_ESTATE, "CUDA_ERROR_NO_DEVICE");
}

static void in_a_process(void (*test)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        test();
        exit(0);
    }
    waitpid(child, &status, 0);
    if (status)
        exit(1);
}

int main(void)
{
    fake_device_name();
    void (*tests[])(void) = {
        test_to_host,
        test_to_device,
        test_one_slow_stream,
        test_several,
        test_bad_input,
        test_places,
        test_managed,
        test_registering,
        test_forked,
        test_no_driver,
        test_the_host_may_not_look,
        test_freed_under_way,
        test_old_driver,
        test_no_devices,
        test_no_functions,
        test_mirror,
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        in_a_process(tests[i]);
    printf("device: all tests passed\n");
    return 0;
}

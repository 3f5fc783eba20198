/* SPDX-License-Identifier: Apache-2.0 */
/* A program of a CUDA-aware MPI. Buffers of some ranks are on the fake device of
 * tests/fake_cuda, which ends a program that reads its memory. CALL names the function
 * of its calls. */
#include <dlfcn.h>
#include <stdint.h>

#include "say.h"
#ifdef CALL
#include "partialcoll.h"
#else
#define CALL MPI_Allreduce
#endif

enum { COUNT = 3000 };

static void *driver;
static double here[COUNT], there[COUNT];

/* The single place of all calls. */
static void __attribute__((noinline)) sum(const void *send, void *recv)
{
    CHECK(CALL(send, recv, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
}

static void *find(const char *name)
{
    void *function = dlsym(driver, name);
    CHECK(function != NULL);
    return function;
}

static uint64_t take(void)
{
    int (*allocate)(uint64_t *, size_t);
    uint64_t address;
    *(void **)&allocate = find("cuMemAlloc_v2");
    CHECK(allocate(&address, sizeof here) == 0);
    return address;
}

static void write_to(uint64_t address, double value)
{
    int (*write)(uint64_t, uint64_t, const void *, size_t, unsigned);
    *(void **)&write = find("fake_cuda_write");
    for (int i = 0; i < COUNT; i++)
        there[i] = value + i;
    CHECK(write(0, address, there, sizeof there, 0) == 0);
}

static void expect_at(uint64_t address, double value, int times)
{
    int (*read)(uint64_t, uint64_t, void *, size_t, unsigned);
    int (*synchronize)(uint64_t);
    *(void **)&read = find("fake_cuda_read");
    *(void **)&synchronize = find("cuStreamSynchronize");
    CHECK(read(0, address, there, sizeof there, 0) == 0);
    CHECK(synchronize(0) == 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(there[i] == value + (double)i * times);
}

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* Before the driver is loaded, and on ranks that never load it. */
static void test_host(double step)
{
    static double result[COUNT];
    for (int i = 0; i < COUNT; i++)
        here[i] = rank + step + i;
    sum(here, result);
    for (int i = 0; i < COUNT; i++)
        CHECK(result[i] == size * (size - 1) / 2.0 + size * (step + i));
}

static void load(void)
{
    int (*retain)(void **, int), (*push)(void *), (*init)(unsigned);
    void *context;
    driver = dlopen(getenv("PARTIALCOLL_CUDA_LIBRARY"), RTLD_NOW);
    CHECK(driver != NULL);
    *(void **)&init = find("cuInit");
    *(void **)&retain = find("cuDevicePrimaryCtxRetain");
    *(void **)&push = find("cuCtxPushCurrent_v2");
    CHECK(init(0) == 0 && retain(&context, 1) == 0 && push(context) == 0);
}

static void test_device(double step)
{
    static uint64_t a, b;
    double total = size * (size - 1) / 2.0 + size * step;
    if (!a) {
        a = take();
        b = take();
    }
    write_to(a, rank + step);
    sum(pointer(a), pointer(b));
    expect_at(b, total, size);
    sum(MPI_IN_PLACE, pointer(a));
    expect_at(a, total, size);
    write_to(a, rank + step);
    sum(pointer(a), here);
    for (int i = 0; i < COUNT; i++)
        CHECK(here[i] == total + (double)i * size);
    for (int i = 0; i < COUNT; i++)
        here[i] = rank + step + i;
    sum(here, pointer(b));
    expect_at(b, total, size);
}

/* The same calls of a rank without a device. */
static void test_beside(double step)
{
    static double result[COUNT];
    test_host(step);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < COUNT; i++)
            here[i] = rank + step + i;
        sum(turn ? here : MPI_IN_PLACE, turn ? result : here);
    }
}

#if MPI_VERSION >= 4 || defined(OPEN_MPI)
static void test_persistent(int on_device)
{
    static double from[COUNT], to[COUNT];
    MPI_Request request;
    uint64_t a = on_device ? take() : (uintptr_t)from;
    uint64_t b = on_device ? take() : (uintptr_t)to;
    MPI_Allreduce_init(pointer(a), pointer(b), COUNT, MPI_DOUBLE, MPI_SUM,
                       MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    for (int step = 0; step < 3; step++) {
        if (on_device)
            write_to(a, rank + step);
        for (int i = 0; i < COUNT; i++)
            from[i] = rank + step + i;
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        double total = size * (size - 1) / 2.0 + size * step;
        if (on_device)
            expect_at(b, total, size);
        else
            CHECK(to[COUNT - 1] == total + (COUNT - 1.0) * size);
    }
    MPI_Request_free(&request);
}
#endif

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int on_device = rank % 2 == 0;
    for (int step = 0; step < 3; step++)
        test_host(step);
    if (on_device)
        load();
    for (int step = 0; step < 4; step++)
        (on_device ? test_device : test_beside)(step);
#if MPI_VERSION >= 4 || defined(OPEN_MPI)
    if (argc > 1)
        test_persistent(on_device);
#endif
    for (int step = 0; step < 3; step++)
        test_host(step);
    SAY("device\n");
    MPI_Finalize();
    return 0;
}

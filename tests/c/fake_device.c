/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_device.h. */
#include "fake_device.h"

#include <dlfcn.h>
#include <string.h>

#include "check.h"

int (*memory_take)(uint64_t *, size_t);
int (*managed_take)(uint64_t *, size_t, unsigned);
int (*memory_free)(uint64_t);
int (*stream_sync)(uint64_t);
int (*late_write)(uint64_t, uint64_t, const void *, size_t, unsigned);
int (*late_read)(uint64_t, uint64_t, void *, size_t, unsigned);
int (*stream_hold)(uint64_t);
void (*streams_release)(void);
void (*streams_settle)(void);
void (*capture)(uint64_t, int);
void (*slow_streams)(unsigned);
void (*get_counts)(struct fake_cuda_counts *);

static void find(void *library, const char *name, void *place)
{
    void *function = dlsym(library, name);
    EXPECT(function, "%s", name);
    memcpy(place, &function, sizeof function);
}

void fake_device_name(void)
{
    setenv("PARTIALCOLL_CUDA_LIBRARY", "build/c/libfake_cuda.so", 0);
}

const struct cuda *fake_device_start(void)
{
    const struct cuda *d;
    EXPECT_OK(cuda_get(&d));
    void *fake = dlopen(getenv("PARTIALCOLL_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    find(fake, "cuMemAlloc_v2", &memory_take);
    find(fake, "cuMemAllocManaged", &managed_take);
    find(fake, "cuMemFree_v2", &memory_free);
    find(fake, "cuStreamSynchronize", &stream_sync);
    find(fake, "fake_cuda_write", &late_write);
    find(fake, "fake_cuda_read", &late_read);
    find(fake, "fake_cuda_hold", &stream_hold);
    find(fake, "fake_cuda_release", &streams_release);
    find(fake, "fake_cuda_settle", &streams_settle);
    find(fake, "fake_cuda_capture", &capture);
    find(fake, "fake_cuda_slow", &slow_streams);
    find(fake, "fake_cuda_counts", &get_counts);
    return d;
}

uint64_t number(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

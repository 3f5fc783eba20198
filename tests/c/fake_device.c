/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_device.h. */
#include "fake_device.h"

#include <dlfcn.h>
#include <string.h>

#include "check.h"

#define FAKE_DEFINED(name, member, parameters, result) result(*member) parameters;
FAKE_FUNCTIONS(FAKE_DEFINED)

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

void fake_device_start(void)
{
    EXPECT_OK(cuda_start());
    void *fake = dlopen(getenv("PARTIALCOLL_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
#define FAKE_FOUND(name, member, parameters, result) find(fake, name, &member);
    FAKE_FUNCTIONS(FAKE_FOUND)
}

uint64_t number(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda.h. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/error.h"

/* The oldest whose functions all of these are: CUDA 11. */
static int const oldest = 11000;

static struct cuda table;
static char refusal[400]; /* "": the table is filled */
static pid_t owner;
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct cuda_entry {
    size_t place;
    const char *name;
};

#define ENTRY(member, name) {offsetof(struct cuda, member), name}
static const struct cuda_entry entries[] = {
    ENTRY(init, "cuInit"),
    ENTRY(version, "cuDriverGetVersion"),
    ENTRY(error_name, "cuGetErrorName"),
    ENTRY(error_string, "cuGetErrorString"),
    ENTRY(device_count, "cuDeviceGetCount"),
    ENTRY(primary_retain, "cuDevicePrimaryCtxRetain"),
    ENTRY(primary_release, "cuDevicePrimaryCtxRelease_v2"),
    ENTRY(context_push, "cuCtxPushCurrent_v2"),
    ENTRY(context_pop, "cuCtxPopCurrent_v2"),
    ENTRY(pointer_attributes, "cuPointerGetAttributes"),
    ENTRY(host_register, "cuMemHostRegister_v2"),
    ENTRY(host_unregister, "cuMemHostUnregister"),
    ENTRY(copy_to_host, "cuMemcpyDtoHAsync_v2"),
    ENTRY(copy_to_device, "cuMemcpyHtoDAsync_v2"),
    ENTRY(stream_create, "cuStreamCreate"),
    ENTRY(stream_destroy, "cuStreamDestroy_v2"),
    ENTRY(stream_wait, "cuStreamWaitEvent"),
    ENTRY(stream_context, "cuStreamGetCtx"),
    ENTRY(stream_capturing, "cuStreamIsCapturing"),
    ENTRY(event_create, "cuEventCreate"),
    ENTRY(event_destroy, "cuEventDestroy_v2"),
    ENTRY(event_record, "cuEventRecord"),
    ENTRY(event_query, "cuEventQuery"),
};

static void cuda_refuse(const char *format, const char *first, const char *second)
{
    snprintf(refusal, sizeof refusal, format, first, second);
}

/* All functions, or a refusal that names the first that is not there. */
static bool cuda_find_functions(void *library, const char *file)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *function = dlsym(library, entries[i].name);
        if (!function) {
            cuda_refuse("the CUDA driver %s is too old: it has no %s", file,
                        entries[i].name);
            return false;
        }
        memcpy((char *)&table + entries[i].place, &function, sizeof function);
    }
    return true;
}

static bool cuda_is_recent(const char *file)
{
    char number[16];
    int version = 0;
    cuda_result result = table.version(&version);
    snprintf(number, sizeof number, "%d.%d", version / 1000, version % 1000 / 10);
    if (result == CUDA_SUCCESS && version < oldest)
        cuda_refuse(
            "the CUDA driver %s is too old: it is for CUDA %s, expected 11.0 or "
            "newer",
            file, number);
    return result != CUDA_SUCCESS || version >= oldest;
}

static const char *cuda_file_of_driver(void)
{
    const char *named = environment_get("PARTIALCOLL_CUDA_LIBRARY");
    return named ? named : "libcuda.so.1";
}

static int cuda_count_loaded(struct dl_phdr_info *info, size_t size, void *count)
{
    (void)size;
    *(unsigned long long *)count = info->dlpi_adds;
    return 1; /* the same for each */
}

bool cuda_is_loaded(void)
{
    static _Atomic bool loaded;
    static _Atomic unsigned long long then; /* libraries that had been loaded */
    unsigned long long now = 0;
    if (atomic_load(&loaded))
        return true;
    dl_iterate_phdr(cuda_count_loaded, &now);
    if (now == atomic_load(&then))
        return false;
    void *library = dlopen(cuda_file_of_driver(), RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        dlclose(library); /* somebody else's stays */
    atomic_store(&loaded, library != NULL);
    atomic_store(&then, now);
    return library != NULL;
}

static void cuda_open_library(void)
{
    const char *file = cuda_file_of_driver();
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    owner = getpid();
    if (!library) {
        const char *why = dlerror();
        cuda_refuse("there is no CUDA driver here, looked for %s: %s", file,
                    why ? why : "it cannot be opened");
        return;
    }
    if (!cuda_find_functions(library, file) || !cuda_is_recent(file))
        return;
    const char *name = "?";
    cuda_result result = table.init(0);
    if (result != CUDA_SUCCESS && table.error_name(result, &name) != CUDA_SUCCESS)
        name = "an error without a name";
    if (result != CUDA_SUCCESS)
        cuda_refuse("the CUDA driver %s does not start: %s", file, name);
}

int cuda_get(const struct cuda **cuda)
{
    pthread_once(&once, cuda_open_library);
    if (refusal[0])
        return fail(PCOLL_ESTATE, "%s", refusal);
    if (owner != getpid())
        return fail(PCOLL_ESTATE,
                    "this process was forked from one that had used CUDA, which does "
                    "not survive that: start it with spawn, or fork before the first "
                    "use");
    CHECK(table.event_query);
    *cuda = &table;
    return PCOLL_OK;
}

int cuda_check(const struct cuda *cuda, cuda_result result, const char *what)
{
    const char *name = NULL, *text = NULL;
    if (result == CUDA_SUCCESS)
        return PCOLL_OK;
    if (cuda->error_name(result, &name) != CUDA_SUCCESS || !name)
        name = "an unknown error";
    if (cuda->error_string(result, &text) != CUDA_SUCCESS || !text)
        text = "";
    return fail(result == CUDA_OUT_OF_MEMORY ? PCOLL_ENOMEM : PCOLL_ESTATE,
                "CUDA: %s failed with %s (%s)", what, name, text);
}

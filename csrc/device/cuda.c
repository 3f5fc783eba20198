/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda.h. */
#include "device/cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/error.h"

/* The oldest version that has all these functions: CUDA 11. */
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

/* Look up all functions, or record which one is missing. */
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
    return 1; /* stop: it is the same for each library */
}

bool cuda_is_loaded(void)
{
    static _Atomic bool loaded;
    static _Atomic unsigned long long then; /* libraries loaded at the last check */
    unsigned long long now = 0;
    if (atomic_load(&loaded))
        return true;
    dl_iterate_phdr(cuda_count_loaded, &now);
    if (now == atomic_load(&then))
        return false;
    void *library = dlopen(cuda_file_of_driver(), RTLD_LAZY | RTLD_NOLOAD);
    if (library)
        dlclose(library); /* the program's own reference stays */
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

/* Places. */

/* Attributes of a pointer, by their numbers in the driver's ABI. */
enum {
    MEMORY_TYPE = 2,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    RANGE_START = 11,
    RANGE_SIZE = 12,
};
enum { TYPE_DEVICE = 2 };

struct place_answer {
    unsigned type, managed;
    int device;
    cuda_address start;
    size_t size;
};

/* Ask the driver. All answers are 0 for memory that it does not know. */
static int place_ask(const void *address, struct place_answer *a)
{
    const struct cuda *d;
    int which[] = {MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE};
    void *values[] = {&a->type, &a->managed, &a->device, &a->start, &a->size};
    *a = (struct place_answer){.device = PLACE_HOST};
    return cuda_get(&d)
               ?: cuda_check(d,
                             d->pointer_attributes(sizeof which / sizeof *which, which,
                                                   values, (uintptr_t)address),
                             "asking where an address lies");
}

int place_find(const void *address, struct place *place)
{
    struct place_answer a;
    int rc = place_ask(address, &a);
    if (rc == PCOLL_OK)
        *place = (struct place){
            .device = a.type == TYPE_DEVICE || a.managed ? a.device : PLACE_HOST};
    return rc;
}

int pcoll_device_of(uint64_t address, int32_t *device)
{
    struct place place;
    int rc = fail_if_null(device)
                 ?: place_find((const void *)(uintptr_t)address, &place); /* NOLINT */
    if (rc == PCOLL_OK)
        *device = place.device;
    return rc;
}

int pcoll_device_count(int32_t *devices, int32_t *driver)
{
    const struct cuda *d;
    return fail_if_null(devices, driver)
               ?: cuda_get(&d)
               ?: cuda_check(d, d->device_count(devices), "counting the devices")
               ?: cuda_check(d, d->version(driver), "asking for the driver's version");
}

int pcoll_device_in_use(void)
{
    const struct cuda *d;
    return cuda_is_loaded() && cuda_get(&d) == PCOLL_OK;
}

int pcoll_device_allocation(uint64_t address, uint64_t *begin, uint64_t *bytes)
{
    struct place_answer a;
    int rc =
        fail_if_null(begin, bytes)
            ?: place_ask((const void *)(uintptr_t)address, &a); /* NOLINT: an address */
    if (rc != PCOLL_OK)
        return rc;
    if (!a.size)
        return fail(PCOLL_EINVAL, "memory at %#llx: it has been freed, or was none",
                    (unsigned long long)address);
    *begin = a.start;
    *bytes = a.size;
    return PCOLL_OK;
}

int place_check(const void *address, size_t bytes, int device)
{
    CHECK(device >= 0);
    struct place_answer a;
    int rc = place_ask(address, &a);
    if (rc != PCOLL_OK || !bytes)
        return rc;
    if (a.type != TYPE_DEVICE && !a.managed)
        return fail(PCOLL_EINVAL,
                    "memory of device %d at %p: it has been freed, or it was none",
                    device, address);
    if (a.device != device)
        return fail(PCOLL_EINVAL,
                    "memory at %p: expected device %d, for which this was made, got "
                    "device %d",
                    address, device, a.device);
    uintptr_t behind = (uintptr_t)address + bytes;
    return behind <= a.start + a.size
               ? PCOLL_OK
               : fail(
                     PCOLL_EINVAL,
                     "memory of device %d at %p: expected %zu bytes, %zu are allocated",
                     device, address, bytes,
                     (size_t)(a.start + a.size) - (size_t)(uintptr_t)address);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See lane.h. */
#include "device/lane.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"

/* The driver. */

/* The oldest version that has all these functions: CUDA 11. */
static int const oldest = 11000;

struct cuda cuda;
static char refusal[400]; /* "": the table is filled */
static pid_t owner;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define CUDA_ENTRY(member, name, parameters) {offsetof(struct cuda, member), name},
static const struct {
    size_t place;
    const char *name;
} entries[] = {CUDA_FUNCTIONS(CUDA_ENTRY)};

#define cuda_refuse(...) ((void)snprintf(refusal, sizeof refusal, __VA_ARGS__))

/* Look up all functions and the version, or record what is missing. */
static bool cuda_find_functions(void *library, const char *file)
{
    int version = 0;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *function = dlsym(library, entries[i].name);
        if (!function) {
            cuda_refuse("the CUDA driver %s is too old: it has no %s", file,
                        entries[i].name);
            return false;
        }
        memcpy((char *)&cuda + entries[i].place, &function, sizeof function);
    }
    if (cuda.version(&version) != CUDA_SUCCESS || version >= oldest)
        return true;
    cuda_refuse("the CUDA driver %s is too old: it is for CUDA %d.%d, expected 11.0 or "
                "newer",
                file, version / 1000, version % 1000 / 10);
    return false;
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

/* Return whether the process has loaded the library. Checks again after it has loaded another
 * library. */
static bool cuda_is_loaded(void)
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
    const char *file = cuda_file_of_driver(), *name = NULL;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    owner = getpid();
    if (!library)
        cuda_refuse("there is no CUDA driver here, looked for %s: %s", file, dlerror());
    if (!library || !cuda_find_functions(library, file))
        return;
    cuda_result result = cuda.init(0);
    if (result == CUDA_SUCCESS)
        return;
    if (cuda.error_name(result, &name) != CUDA_SUCCESS)
        name = "an error without a name";
    cuda_refuse("the CUDA driver %s does not start: %s", file, name);
}

int cuda_start(void)
{
    pthread_once(&once, cuda_open_library);
    if (refusal[0])
        return fail(PCOLL_ESTATE, "%s", refusal);
    if (owner != getpid())
        return fail(PCOLL_ESTATE,
                    "this process was forked from one that had used CUDA, which does "
                    "not survive that: start it with spawn, or fork before the first "
                    "use");
    return PCOLL_OK;
}

/* Lanes. */

enum { STREAMS = 2, NON_BLOCKING = 1, NO_TIMING = 2, PORTABLE = 1 };

/* The time between two polls of copies that a thread waits for. */
static const struct timespec backoff = {.tv_nsec = 50000};

/* A chunk is large enough to use the whole bandwidth of the bus. With two streams one chunk is set
 * up while another is copied. */
#ifndef PCOLL_TEST_COPY_BYTES
#define PCOLL_TEST_COPY_BYTES (2 << 20)
#endif
static size_t const chunk_bytes = PCOLL_TEST_COPY_BYTES;

struct lane {
    int device;
    enum lane_direction direction;
    cuda_context context;
    cuda_stream stream[STREAMS];
    cuda_event given;         /* recorded in the user's stream before the copies */
    cuda_event over[STREAMS]; /* recorded after the copies that were begun last */
    bool under_way;
    int failure;
};

/* Return PCOLL_OK or PCOLL_ESTATE: `what` has failed, with the driver's message. */
static int cuda_check(cuda_result result, const char *what)
{
    const char *name = NULL, *text = NULL;
    if (result == CUDA_SUCCESS)
        return PCOLL_OK;
    if (cuda.error_name(result, &name) != CUDA_SUCCESS || !name)
        name = "an unknown error";
    if (cuda.error_string(result, &text) != CUDA_SUCCESS || !text)
        text = "";
    return fail(result == CUDA_OUT_OF_MEMORY ? PCOLL_ENOMEM : PCOLL_ESTATE,
                "CUDA: %s failed with %s (%s)", what, name, text);
}

static cuda_stream lane_stream_of(uint64_t number)
{
    return (cuda_stream)(uintptr_t)number; /* NOLINT: a handle of the driver */
}

static int lane_enter(const struct lane *l)
{
    return cuda_check(cuda.context_push(l->context), "entering a device's context");
}

/* Make the caller's context current again, whatever has failed before. */
static int lane_leave(int rc)
{
    cuda_context own;
    cuda_result result = cuda.context_pop(&own);
    return rc ?: cuda_check(result, "leaving a context");
}

static int lane_make_streams(struct lane *l)
{
    cuda_result result = cuda.event_create(&l->given, NO_TIMING);
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++) {
        result = cuda.stream_create(&l->stream[i], NON_BLOCKING);
        if (result == CUDA_SUCCESS)
            result = cuda.event_create(&l->over[i], NO_TIMING);
    }
    return cuda_check(result, "making a stream");
}

int lane_create(int device, enum lane_direction direction, struct lane **out)
{
    int count = 0;
    struct lane *l = *out = calloc(1, sizeof *l);
    int rc = l ? cuda_start() : fail(PCOLL_ENOMEM, "no memory for a lane");
    rc = rc ?: cuda_check(cuda.device_count(&count), "counting the devices");
    if (rc == PCOLL_OK && (device < 0 || device >= count))
        rc = fail(PCOLL_EINVAL, "device: expected 0 to %d, got %d", count - 1, device);
    if (rc == PCOLL_OK) {
        *l = (struct lane){.device = device, .direction = direction};
        rc = cuda_check(cuda.primary_retain(&l->context, device),
                        "taking a device's context")
                 ?: lane_enter(l)
                 ?: lane_leave(lane_make_streams(l));
    }
    if (rc != PCOLL_OK)
        lane_destroy(out);
    return rc;
}

void lane_settle(struct lane *l)
{
    while (lane_poll(l) == PCOLL_EAGAIN)
        nanosleep(&backoff, NULL);
}

void lane_destroy(struct lane **at)
{
    struct lane *l = *at;
    if (l && l->context) {
        lane_settle(l);
        if (lane_enter(l) == PCOLL_OK) {
            for (int i = 0; i < STREAMS; i++) {
                if (l->over[i])
                    cuda.event_destroy(l->over[i]);
                if (l->stream[i])
                    cuda.stream_destroy(l->stream[i]);
            }
            if (l->given)
                cuda.event_destroy(l->given);
            (void)lane_leave(PCOLL_OK);
        }
        cuda.primary_release(l->device);
    }
    free(l);
    *at = NULL;
}

/* Can the copies be ordered with the work of this stream? */
static int lane_check_stream(const struct lane *l, cuda_stream stream)
{
    cuda_context context = NULL;
    int capturing = 0;
    int rc = cuda_check(cuda.stream_context(stream, &context),
                        "asking a stream for its device");
    if (rc == PCOLL_OK && context != l->context)
        return fail(PCOLL_EINVAL,
                    "stream: expected one of device %d, whose memory is used, got one "
                    "of another device or context",
                    l->device);
    rc = rc
             ?: cuda_check(cuda.stream_capturing(stream, &capturing),
                           "asking a stream whether it records a graph");
    if (rc != PCOLL_OK || !capturing)
        return rc;
    return fail(PCOLL_EINVAL,
                "stream: it records a CUDA graph, and communication cannot be a part "
                "of one; call this outside of the capture");
}

static int lane_record_and_wait(const struct lane *l, cuda_stream stream)
{
    cuda_result result = cuda.event_record(l->given, stream);
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++)
        result = cuda.stream_wait(l->stream[i], l->given, 0);
    return cuda_check(result, "waiting for a stream of the user's");
}

/* Distribute the chunks of all pieces over the streams in turn. */
static int lane_begin_copies(const struct lane *l, const pcoll_piece *pieces, int count)
{
    cuda_result result = CUDA_SUCCESS;
    unsigned turn = 0;
    for (int i = 0; i < count; i++) {
        const pcoll_piece *p = &pieces[i];
        for (size_t from = 0; from < p->bytes && result == CUDA_SUCCESS; turn++) {
            size_t left = p->bytes - from;
            size_t bytes = left < chunk_bytes ? left : chunk_bytes;
            char *host = (char *)p->host + from;
            cuda_stream stream = l->stream[turn % STREAMS];
            result = l->direction == LANE_TO_HOST
                         ? cuda.copy_to_host(host, p->device + from, bytes, stream)
                         : cuda.copy_to_device(p->device + from, host, bytes, stream);
            from += bytes;
        }
    }
    return cuda_check(result, "beginning a copy");
}

int lane_begin(struct lane *l, const pcoll_piece *pieces, int count, uint64_t stream)
{
    CHECK(count >= 0);
    int rc = lane_poll(l);
    if (rc == PCOLL_EAGAIN)
        return fail(PCOLL_ESTATE, "the last copies are not over");
    if (rc != PCOLL_OK || (rc = lane_enter(l)) != PCOLL_OK)
        return rc;
    rc = lane_check_stream(l, lane_stream_of(stream))
             ?: lane_record_and_wait(l, lane_stream_of(stream));
    if (rc == PCOLL_OK) {
        rc = lane_begin_copies(l, pieces, count);
        cuda_result result = CUDA_SUCCESS; /* Even if only some copies were begun: */
        for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++)
            result = cuda.event_record(l->over[i], l->stream[i]);
        int ends = cuda_check(result, "noting the end of a copy");
        l->under_way = ends == PCOLL_OK;
        l->failure = rc = rc ?: ends;
    }
    return lane_leave(rc);
}

int lane_poll(struct lane *l)
{
    if (!l->under_way)
        return l->failure;
    int rc = lane_enter(l);
    if (rc != PCOLL_OK)
        return rc;
    cuda_result result = CUDA_SUCCESS;
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++)
        result = cuda.event_query(l->over[i]);
    if (result == CUDA_NOT_READY)
        return lane_leave(PCOLL_EAGAIN);
    l->under_way = false;
    int failed = cuda_check(result, "a copy");
    l->failure = l->failure ?: failed;
    return lane_leave(l->failure);
}

int lane_order(struct lane *l, uint64_t stream)
{
    int rc = lane_enter(l);
    if (rc != PCOLL_OK)
        return rc;
    rc = lane_check_stream(l, lane_stream_of(stream));
    cuda_result result = CUDA_SUCCESS;
    for (int i = 0; i < STREAMS && rc == PCOLL_OK && result == CUDA_SUCCESS; i++)
        result = cuda.stream_wait(lane_stream_of(stream), l->over[i], 0);
    if (rc == PCOLL_OK)
        rc = cuda_check(result, "having a stream of the user's wait");
    return lane_leave(rc);
}

int lane_register(struct lane *l, void *memory, size_t bytes)
{
    CHECK(memory && bytes);
    return lane_enter(l)
               ?: lane_leave(cuda_check(cuda.host_register(memory, bytes, PORTABLE),
                                        "pinning memory"));
}

int lane_unregister(struct lane *l, void *memory)
{
    lane_settle(l);
    return lane_enter(l)
               ?: lane_leave(
                      cuda_check(cuda.host_unregister(memory), "letting memory go"));
}

/* Mirrors: see the public header. */

struct pcoll_mirror {
    int device;
    struct lane *to_host, *to_device;
    void **pinned;
    int pins;
};

int pcoll_mirror_create(int32_t device, pcoll_mirror **mirror)
{
    int rc = fail_if_null(mirror);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_mirror *m = calloc(1, sizeof *m);
    if (!m)
        return fail(PCOLL_ENOMEM, "no memory for a mirror");
    m->device = device;
    rc = lane_create(device, LANE_TO_HOST, &m->to_host)
             ?: lane_create(device, LANE_TO_DEVICE, &m->to_device);
    if (rc == PCOLL_OK)
        *mirror = m;
    else
        (void)pcoll_mirror_free(&m);
    return rc;
}

int pcoll_mirror_pin(pcoll_mirror *m, void *memory, uint64_t bytes)
{
    int rc = fail_if_null_as("mirror, memory", m, memory);
    if (rc != PCOLL_OK)
        return rc;
    if (!bytes)
        return fail(PCOLL_EINVAL, "bytes: expected at least 1, got 0");
    void **more = realloc(m->pinned, (size_t)(m->pins + 1) * sizeof *more);
    if (!more)
        return fail(PCOLL_ENOMEM, "no memory for a mirror");
    m->pinned = more;
    rc = lane_register(m->to_host, memory, bytes);
    if (rc == PCOLL_OK)
        m->pinned[m->pins++] = memory;
    return rc;
}

static int mirror_poll_both(pcoll_mirror *m)
{
    return lane_poll(m->to_device) ?: lane_poll(m->to_host);
}

static int mirror_begin(pcoll_mirror *m, struct lane *lane, const pcoll_piece *pieces,
                        int count, uint64_t stream)
{
    if (count < 1)
        return fail(PCOLL_EINVAL, "count: expected at least 1, got %d", count);
    int rc = mirror_poll_both(m);
    if (rc == PCOLL_EAGAIN)
        return fail(PCOLL_ESTATE, "the mirror's last copies are not over");
    for (int i = 0; i < count && rc == PCOLL_OK; i++)
        rc =
            place_check((const void *)(uintptr_t)pieces[i].device, /* NOLINT: address */
                        pieces[i].bytes, m->device);
    return rc ?: lane_begin(lane, pieces, count, stream);
}

int pcoll_mirror_pull(pcoll_mirror *m, const pcoll_piece *pieces, int32_t count,
                      uint64_t stream)
{
    return fail_if_null_as("mirror, pieces", m, pieces)
               ?: mirror_begin(m, m->to_host, pieces, count, stream);
}

int pcoll_mirror_push(pcoll_mirror *m, const pcoll_piece *pieces, int32_t count,
                      uint64_t stream)
{
    return fail_if_null_as("mirror, pieces", m, pieces)
               ?: mirror_begin(m, m->to_device, pieces, count, stream)
               ?: lane_order(m->to_device, stream);
}

int pcoll_mirror_wait(pcoll_mirror *m, int64_t timeout_us)
{
    int64_t until = clock_us() + timeout_us;
    int rc = fail_if_null_as("mirror", m) ?: mirror_poll_both(m);
    while (rc == PCOLL_EAGAIN && clock_us() < until) {
        nanosleep(&backoff, NULL);
        rc = mirror_poll_both(m);
    }
    return rc;
}

int pcoll_mirror_free(pcoll_mirror **at)
{
    if (!at || !*at)
        return PCOLL_OK;
    pcoll_mirror *m = *at;
    lane_destroy(&m->to_device);
    while (m->pins)
        (void)lane_unregister(m->to_host, m->pinned[--m->pins]);
    lane_destroy(&m->to_host);
    free(m->pinned);
    free(m);
    *at = NULL;
    return PCOLL_OK;
}

/* The place of an address: the host, or a device. The driver knows it. It is asked only in a
 * process that has opened it, or that was given an array which says that it is on a device. */

/* Attributes of a pointer, by their numbers in the driver's ABI. */
enum {
    MEMORY_TYPE = 2,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    RANGE_START = 11,
    RANGE_SIZE = 12,
};
enum { TYPE_DEVICE = 2, PLACE_HOST = -1 };

struct place_answer {
    unsigned type, managed;
    int device;
    cuda_address start;
    size_t size;
};

/* Ask the driver. All answers are 0 for memory that it does not know. */
static int place_ask(cuda_address address, struct place_answer *a)
{
    int which[] = {MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE};
    void *values[] = {&a->type, &a->managed, &a->device, &a->start, &a->size};
    *a = (struct place_answer){.device = PLACE_HOST};
    return cuda_start()
               ?: cuda_check(cuda.pointer_attributes(sizeof which / sizeof *which,
                                                     which, values, address),
                             "asking where an address lies");
}

int pcoll_device_of(uint64_t address, int32_t *device)
{
    struct place_answer a;
    int rc = fail_if_null(device) ?: place_ask(address, &a);
    if (rc == PCOLL_OK)
        *device = a.type == TYPE_DEVICE || a.managed ? a.device : PLACE_HOST;
    return rc;
}

int pcoll_device_count(int32_t *devices, int32_t *driver)
{
    return fail_if_null(devices, driver)
               ?: cuda_start()
               ?: cuda_check(cuda.device_count(devices), "counting the devices")
               ?: cuda_check(cuda.version(driver), "asking for the driver's version");
}

int pcoll_device_in_use(void)
{
    return cuda_is_loaded() && cuda_start() == PCOLL_OK;
}

int pcoll_device_allocation(uint64_t address, uint64_t *begin, uint64_t *bytes)
{
    struct place_answer a;
    int rc = fail_if_null(begin, bytes) ?: place_ask(address, &a);
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
    int rc = place_ask((uintptr_t)address, &a);
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

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

/* Mirrors. */

enum { STREAMS = 2, NON_BLOCKING = 1, NO_TIMING = 2, PORTABLE = 1 };

/* The time between two polls of copies that a thread waits for. */
static const struct timespec backoff = {.tv_nsec = 50000};

/* A chunk is large enough to use the whole bandwidth of the bus. With two streams one chunk is set
 * up while another is copied. */
#ifndef PCOLL_TEST_COPY_BYTES
#define PCOLL_TEST_COPY_BYTES (2 << 20)
#endif
static size_t const chunk_bytes = PCOLL_TEST_COPY_BYTES;

/* The copies in one direction. */
struct lane_way {
    cuda_stream stream[STREAMS];
    cuda_event given;         /* recorded in the user's stream before the copies */
    cuda_event over[STREAMS]; /* recorded after the copies that were begun last */
    bool under_way;
    int failure;
};

struct pcoll_mirror {
    int device;
    cuda_context context;
    struct lane_way way[LANE_WAYS];
    void **pinned;
    int pins;
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

static int lane_enter(const pcoll_mirror *m)
{
    return cuda_check(cuda.context_push(m->context), "entering a device's context");
}

/* Make the caller's context current again, whatever has failed before. */
static int lane_leave(int rc)
{
    cuda_context own;
    cuda_result result = cuda.context_pop(&own);
    return rc ?: cuda_check(result, "leaving a context");
}

static int lane_poll_both(pcoll_mirror *m)
{
    return lane_poll(m, LANE_TO_DEVICE) ?: lane_poll(m, LANE_TO_HOST);
}

static int lane_make_streams(struct lane_way *w)
{
    cuda_result result = cuda.event_create(&w->given, NO_TIMING);
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++) {
        result = cuda.stream_create(&w->stream[i], NON_BLOCKING);
        if (result == CUDA_SUCCESS)
            result = cuda.event_create(&w->over[i], NO_TIMING);
    }
    return cuda_check(result, "making a stream");
}

int pcoll_mirror_create(int32_t device, pcoll_mirror **mirror)
{
    int count = 0;
    int rc = fail_if_null(mirror);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_mirror *m = *mirror = calloc(1, sizeof *m);
    rc = m ? cuda_start() : fail(PCOLL_ENOMEM, "no memory for a mirror");
    rc = rc ?: cuda_check(cuda.device_count(&count), "counting the devices");
    if (rc == PCOLL_OK && (device < 0 || device >= count))
        rc = fail(PCOLL_EINVAL, "device: expected 0 to %d, got %d", count - 1, device);
    if (rc == PCOLL_OK) {
        m->device = device;
        rc = cuda_check(cuda.primary_retain(&m->context, device),
                        "taking a device's context")
                 ?: lane_enter(m)
                 ?: lane_leave(lane_make_streams(&m->way[LANE_TO_HOST])
                                   ?: lane_make_streams(&m->way[LANE_TO_DEVICE]));
    }
    if (rc != PCOLL_OK)
        (void)pcoll_mirror_free(mirror);
    return rc;
}

static void lane_end(struct lane_way *w)
{
    for (int i = 0; i < STREAMS; i++) {
        if (w->over[i])
            cuda.event_destroy(w->over[i]);
        if (w->stream[i])
            cuda.stream_destroy(w->stream[i]);
    }
    if (w->given)
        cuda.event_destroy(w->given);
}

int pcoll_mirror_free(pcoll_mirror **at)
{
    pcoll_mirror *m = at ? *at : NULL;
    if (!m)
        return PCOLL_OK;
    while (lane_poll(m, LANE_TO_DEVICE) == PCOLL_EAGAIN ||
           lane_poll(m, LANE_TO_HOST) == PCOLL_EAGAIN)
        nanosleep(&backoff, NULL);
    if (m->context && lane_enter(m) == PCOLL_OK) {
        while (m->pins)
            cuda.host_unregister(m->pinned[--m->pins]);
        lane_end(&m->way[LANE_TO_HOST]);
        lane_end(&m->way[LANE_TO_DEVICE]);
        (void)lane_leave(PCOLL_OK);
    }
    if (m->context)
        cuda.primary_release(m->device);
    free(m->pinned);
    free(m);
    *at = NULL;
    return PCOLL_OK;
}

/* Check that the copies can be ordered with the work of this stream. */
static int lane_check_stream(const pcoll_mirror *m, cuda_stream stream)
{
    cuda_context context = NULL;
    int capturing = 0;
    int rc = cuda_check(cuda.stream_context(stream, &context),
                        "asking a stream for its device");
    if (rc == PCOLL_OK && context != m->context)
        return fail(PCOLL_EINVAL,
                    "stream: expected one of device %d, whose memory is used, got one "
                    "of another device or context",
                    m->device);
    rc = rc
             ?: cuda_check(cuda.stream_capturing(stream, &capturing),
                           "asking a stream whether it records a graph");
    if (rc != PCOLL_OK || !capturing)
        return rc;
    return fail(PCOLL_EINVAL,
                "stream: it records a CUDA graph, and communication cannot be a part "
                "of one; call this outside of the capture");
}

static int lane_record_and_wait(const struct lane_way *w, cuda_stream stream)
{
    cuda_result result = cuda.event_record(w->given, stream);
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++)
        result = cuda.stream_wait(w->stream[i], w->given, 0);
    return cuda_check(result, "waiting for a stream of the user's");
}

/* Distribute the chunks of all pieces over the streams in turn. */
static int lane_begin_copies(const pcoll_mirror *m, enum lane_direction direction,
                             const pcoll_piece *pieces, int count)
{
    cuda_result result = CUDA_SUCCESS;
    unsigned turn = 0;
    for (int i = 0; i < count; i++) {
        const pcoll_piece *p = &pieces[i];
        for (size_t from = 0; from < p->bytes && result == CUDA_SUCCESS; turn++) {
            size_t left = p->bytes - from;
            size_t bytes = left < chunk_bytes ? left : chunk_bytes;
            char *host = (char *)p->host + from;
            cuda_stream stream = m->way[direction].stream[turn % STREAMS];
            result = direction == LANE_TO_HOST
                         ? cuda.copy_to_host(host, p->device + from, bytes, stream)
                         : cuda.copy_to_device(p->device + from, host, bytes, stream);
            from += bytes;
        }
    }
    return cuda_check(result, "beginning a copy");
}

int lane_begin(pcoll_mirror *m, enum lane_direction direction,
               const pcoll_piece *pieces, int count, uint64_t stream)
{
    CHECK(count >= 0);
    struct lane_way *w = &m->way[direction];
    int rc = lane_poll(m, direction);
    if (rc == PCOLL_EAGAIN)
        return fail(PCOLL_ESTATE, "the last copies are not over");
    for (int i = 0; i < count && rc == PCOLL_OK; i++)
        rc = place_check(pieces[i].device, pieces[i].bytes, m->device);
    if (rc != PCOLL_OK || (rc = lane_enter(m)) != PCOLL_OK)
        return rc;
    rc = lane_check_stream(m, lane_stream_of(stream))
             ?: lane_record_and_wait(w, lane_stream_of(stream));
    if (rc == PCOLL_OK) {
        rc = lane_begin_copies(m, direction, pieces, count);
        cuda_result result = CUDA_SUCCESS; /* Even if only some copies were begun: */
        for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++)
            result = cuda.event_record(w->over[i], w->stream[i]);
        int ends = cuda_check(result, "noting the end of a copy");
        w->under_way = ends == PCOLL_OK;
        w->failure = rc = rc ?: ends;
    }
    return lane_leave(rc);
}

int lane_poll(pcoll_mirror *m, enum lane_direction direction)
{
    struct lane_way *w = &m->way[direction];
    if (!w->under_way)
        return w->failure;
    int rc = lane_enter(m);
    if (rc != PCOLL_OK)
        return rc;
    cuda_result result = CUDA_SUCCESS;
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++)
        result = cuda.event_query(w->over[i]);
    if (result == CUDA_NOT_READY)
        return lane_leave(PCOLL_EAGAIN);
    w->under_way = false;
    int failed = cuda_check(result, "a copy");
    w->failure = w->failure ?: failed;
    return lane_leave(w->failure);
}

int lane_order(pcoll_mirror *m, uint64_t stream)
{
    int rc = lane_enter(m);
    if (rc != PCOLL_OK)
        return rc;
    rc = lane_check_stream(m, lane_stream_of(stream));
    cuda_result result = CUDA_SUCCESS;
    for (int i = 0; i < STREAMS && rc == PCOLL_OK && result == CUDA_SUCCESS; i++)
        result =
            cuda.stream_wait(lane_stream_of(stream), m->way[LANE_TO_DEVICE].over[i], 0);
    if (rc == PCOLL_OK)
        rc = cuda_check(result, "having a stream of the user's wait");
    return lane_leave(rc);
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
    rc = lane_enter(m)
             ?: lane_leave(cuda_check(cuda.host_register(memory, bytes, PORTABLE),
                                      "pinning memory"));
    if (rc == PCOLL_OK)
        m->pinned[m->pins++] = memory;
    return rc;
}

static int mirror_begin(pcoll_mirror *m, enum lane_direction direction,
                        const pcoll_piece *pieces, int count, uint64_t stream)
{
    int rc = fail_if_null_as("mirror, pieces", m, pieces);
    if (rc != PCOLL_OK)
        return rc;
    if (count < 1)
        return fail(PCOLL_EINVAL, "count: expected at least 1, got %d", count);
    rc = lane_poll_both(m);
    if (rc == PCOLL_EAGAIN)
        return fail(PCOLL_ESTATE, "the mirror's last copies are not over");
    return rc ?: lane_begin(m, direction, pieces, count, stream);
}

int pcoll_mirror_pull(pcoll_mirror *m, const pcoll_piece *pieces, int32_t count,
                      uint64_t stream)
{
    return mirror_begin(m, LANE_TO_HOST, pieces, count, stream);
}

int pcoll_mirror_push(pcoll_mirror *m, const pcoll_piece *pieces, int32_t count,
                      uint64_t stream)
{
    return mirror_begin(m, LANE_TO_DEVICE, pieces, count, stream)
               ?: lane_order(m, stream);
}

int pcoll_mirror_wait(pcoll_mirror *m, int64_t timeout_us)
{
    int64_t until = clock_us() + timeout_us;
    int rc = fail_if_null_as("mirror", m) ?: lane_poll_both(m);
    while (rc == PCOLL_EAGAIN && clock_us() < until) {
        nanosleep(&backoff, NULL);
        rc = lane_poll_both(m);
    }
    return rc;
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

int place_check(uint64_t address, size_t bytes, int device)
{
    CHECK(device >= 0);
    struct place_answer a;
    int rc = place_ask(address, &a);
    if (rc != PCOLL_OK || !bytes)
        return rc;
    if (a.type != TYPE_DEVICE && !a.managed)
        return fail(PCOLL_EINVAL,
                    "memory of device %d at %#llx: it has been freed, or it was none",
                    device, (unsigned long long)address);
    if (a.device != device)
        return fail(PCOLL_EINVAL,
                    "memory at %#llx: expected device %d, for which this was made, got "
                    "device %d",
                    (unsigned long long)address, device, a.device);
    cuda_address behind = address + bytes;
    return behind <= a.start + a.size ? PCOLL_OK
                                      : fail(PCOLL_EINVAL,
                                             "memory of device %d at %#llx: expected "
                                             "%zu bytes, %zu are allocated",
                                             device, (unsigned long long)address, bytes,
                                             (size_t)(a.start + a.size - address));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver without a device, hostile on purpose: errors that a real driver tolerates most
 * of the time, or on most machines, fail here every time.
 *
 *   - Device memory is mapped for the program without any access: a host access is fatal.
 *     (The fake has a second mapping.)
 *   - A copy happens late, step by step, in a thread of the fake, with the bytes present at
 *     that time. Steps of different streams come in any order. An event is complete some
 *     time after the operations that it marks.
 *   - Asynchronous copies need registered host memory, all of it in one registration.
 *     Memory freed during a copy causes a complaint and a sticky error.
 *   - Managed memory is like other memory of a device, except for its reported location,
 *     which may be the host as well as the device.
 *   - A call that needs a current context fails without one, and with that of another
 *     device.
 *   - Resources left at the end of the process cause a complaint.
 *
 * FAKE_CUDA_DEVICES (2), FAKE_CUDA_SEED, FAKE_CUDA_VERSION (13000), FAKE_CUDA_LATE_US: the
 * longest delay before a step (100).
 */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
};
enum { MOST_DEVICES = 8, STEP = 4096, DEPTH = 16 };

struct event {
    uint64_t recorded, complete;
    int64_t visible_at; /* of the last complete record */
    struct event *next;
};

enum kind { TO_HOST, TO_DEVICE, WAIT, RECORD, WRITE, READ, HOLD };

struct op {
    enum kind kind;
    uint64_t device; /* address */
    char *host;
    size_t bytes, done;
    struct event *event;
    uint64_t generation;
    int64_t not_before;
    bool owned; /* the fake owns `host` */
    struct op *next;
};

struct stream {
    struct context *context;
    struct op *head, **tail;
    bool capturing, gone;
    unsigned slow_us; /* before each copy */
    struct stream *next;
};

struct context {
    int device, retained, sticky;
    struct stream standard; /* its default stream */
};

struct allocation {
    uint64_t address;
    char *own;
    size_t bytes, mapped;
    int device;
    bool managed;
    struct allocation *next;
};

struct registration {
    char *memory;
    size_t bytes;
    struct registration *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct context contexts[MOST_DEVICES];
static struct stream *streams;
static struct event *events;
static struct allocation *allocations;
static struct registration *registrations;
static struct fake_cuda_counts counts;
static uint64_t draws, released, made;
static unsigned slow_us;
static bool started;
static pid_t owner;
static _Thread_local struct context *stack[DEPTH];
static _Thread_local int depth;

static long setting(const char *name, long standard)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : standard;
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static uint64_t draw(uint64_t below)
{
    draws += 0x9e3779b97f4a7c15u;
    uint64_t x = draws;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return below ? (x ^ x >> 31) % below : 0;
}

static int64_t late(void)
{
    return (int64_t)draw((uint64_t)setting("FAKE_CUDA_LATE_US", 100) + 1);
}

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    static char last[200];
    char text[sizeof last];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (strcmp(text, last)) /* once */
        fprintf(stderr, "fake_cuda: %s\n", text);
    memcpy(last, text, sizeof last);
    counts.complaints++;
}

/* Memory. */

static struct allocation *allocation_of(uint64_t address, size_t bytes)
{
    struct allocation *a = allocations;
    while (a && !(a->address <= address && address + bytes <= a->address + a->bytes))
        a = a->next;
    return a;
}

static struct registration *registration_of(const char *host, size_t bytes)
{
    struct registration *r = registrations;
    while (r && !(r->memory <= host && host + bytes <= r->memory + r->bytes))
        r = r->next;
    return r;
}

static char *own(struct allocation *a, uint64_t address)
{
    return a->own + (address - a->address);
}

/* Streams: a thread executes one step of the first op of some stream at a time. */

static struct op *push(struct stream *s, struct op op)
{
    struct op *new = malloc(sizeof *new);
    *new = op;
    new->next = NULL;
    if (!new->not_before)
        new->not_before = now_us() + late();
    if (op.kind == TO_HOST || op.kind == TO_DEVICE)
        new->not_before += s->slow_us;
    *s->tail = new;
    s->tail = &new->next;
    pthread_cond_broadcast(&moved);
    return new;
}

static void pop(struct stream *s)
{
    struct op *gone = s->head;
    s->head = gone->next;
    if (!s->head)
        s->tail = &s->head;
    if (gone->owned)
        free(gone->host);
    free(gone);
    pthread_cond_broadcast(&moved);
}

static bool ready(const struct op *op, int64_t now)
{
    return now >= op->not_before &&
           (op->kind != WAIT || op->event->complete >= op->generation) &&
           (op->kind != HOLD || released >= op->generation);
}

/* One step of a copy, with the current bytes. */
static void move(struct stream *s, struct op *op)
{
    size_t left = op->bytes - op->done, step = left < STEP ? left : STEP;
    struct allocation *a = allocation_of(op->device + op->done, step);
    bool copies = op->kind == TO_HOST || op->kind == TO_DEVICE;
    if (!a || (copies && !registration_of(op->host + op->done, step))) {
        complain("a copy finds its %s gone", a ? "host memory" : "device memory");
        s->context->sticky = ILLEGAL_ADDRESS;
        op->done = op->bytes;
        return;
    }
    char *device = own(a, op->device + op->done), *host = op->host + op->done;
    if (op->kind == TO_HOST || op->kind == READ)
        memcpy(host, device, step);
    else
        memcpy(device, host, step);
    counts.to_host += op->kind == TO_HOST ? step : 0;
    counts.to_device += op->kind == TO_DEVICE ? step : 0;
    op->done += step;
    op->not_before = draw(4) ? 0 : now_us() + late();
}

static void carry_out(struct stream *s)
{
    struct op *op = s->head;
    if (op->kind == RECORD) {
        op->event->complete = op->generation;
        op->event->visible_at = now_us() + late();
    } else if (op->kind != WAIT && op->kind != HOLD)
        move(s, op);
    if (op->done == op->bytes) /* other ops have 0 bytes */
        pop(s);
}

/* Return a random stream that can continue, or NULL. */
static struct stream *choose(int64_t now, bool *idle)
{
    struct stream *chosen = NULL, *s;
    uint64_t able = 0;
    *idle = true;
    for (s = streams; s; s = s->next) {
        *idle = *idle && !s->head;
        if (s->head && ready(s->head, now) && draw(++able) == 0)
            chosen = s;
    }
    return chosen;
}

static void *engine(void *arg)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        bool idle;
        struct stream *s = choose(now_us(), &idle);
        if (s) {
            carry_out(s);
            continue;
        }
        if (idle) {
            pthread_cond_wait(&moved, &lock);
            continue;
        }
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        pthread_mutex_lock(&lock);
    }
    return arg;
}

/* The library. */

static int devices(void)
{
    long n = setting("FAKE_CUDA_DEVICES", 2);
    return n < 0 ? 0 : n > MOST_DEVICES ? MOST_DEVICES : (int)n;
}

static void begin(void)
{
    pthread_t thread;
    draws = (uint64_t)setting("FAKE_CUDA_SEED", getpid());
    owner = getpid();
    for (int i = 0; i < MOST_DEVICES; i++) {
        struct stream *s = &contexts[i].standard;
        contexts[i].device = i;
        s->context = &contexts[i];
        s->tail = &s->head;
        s->next = streams;
        streams = s;
    }
    pthread_create(&thread, NULL, engine, NULL);
    pthread_detach(thread);
    started = true;
}

static int usable(void)
{
    return started && owner == getpid() ? OK : NOT_INITIALIZED;
}

static struct context *current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

/* Return OK, or the reason why the current context cannot be used. */
static int check_context(void)
{
    if (usable() != OK)
        return NOT_INITIALIZED;
    return current() ? current()->sticky : INVALID_CONTEXT;
}

/* 0, 1 and 2 denote the default stream. */
static struct stream *stream_of(uint64_t number)
{
    struct stream *s = streams;
    if (number <= 2)
        return current() ? &current()->standard : NULL;
    while (s && (uint64_t)(uintptr_t)s != number)
        s = s->next;
    return s && !s->gone ? s : NULL;
}

static struct event *event_of(const void *handle)
{
    struct event *e = events;
    while (e && e != handle)
        e = e->next;
    return e;
}

#define LOCKED(expression)                                                             \
    pthread_mutex_lock(&lock);                                                         \
    int rc = (expression);                                                             \
    pthread_mutex_unlock(&lock);                                                       \
    return rc

API int cuInit(unsigned flags)
{
    pthread_mutex_lock(&lock);
    if (!started && flags == 0)
        begin();
    pthread_mutex_unlock(&lock);
    return flags ? INVALID_VALUE : devices() ? OK : 100; /* CUDA_ERROR_NO_DEVICE */
}

API int cuDriverGetVersion(int *version)
{
    *version = (int)setting("FAKE_CUDA_VERSION", 13000);
    return OK;
}

API int cuGetErrorName(int error, const char **name)
{
    static const struct {
        int error;
        const char *name;
    } names[] = {{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
                 {100, "CUDA_ERROR_NO_DEVICE"},
                 {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
                 {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
                 {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
                 {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
                 {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) {
            *name = names[i].name;
            return OK;
        }
    return INVALID_VALUE;
}

API int cuGetErrorString(int error, const char **text)
{
    *text = "as the fake has it";
    return error ? OK : INVALID_VALUE;
}

API int cuDeviceGetCount(int *count)
{
    *count = devices();
    return usable();
}

API int cuDevicePrimaryCtxRetain(struct context **context, int device)
{
    if (usable() != OK || device < 0 || device >= devices())
        return usable() != OK ? NOT_INITIALIZED : INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    contexts[device].retained++;
    counts.live++;
    *context = &contexts[device];
    pthread_mutex_unlock(&lock);
    return OK;
}

API int cuDevicePrimaryCtxRelease_v2(int device)
{
    pthread_mutex_lock(&lock);
    bool held = device >= 0 && device < devices() && contexts[device].retained > 0;
    if (held)
        contexts[device].retained--, counts.live--;
    else
        complain("a context is released once too often");
    pthread_mutex_unlock(&lock);
    return held ? OK : INVALID_CONTEXT;
}

API int cuCtxPushCurrent_v2(struct context *context)
{
    if (usable() != OK || !context || !context->retained || depth == DEPTH)
        return usable() != OK ? NOT_INITIALIZED : INVALID_CONTEXT;
    stack[depth++] = context;
    return OK;
}

API int cuCtxPopCurrent_v2(struct context **context)
{
    if (!depth)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return OK;
}

API int cuCtxGetCurrent(struct context **context)
{
    *context = current();
    return usable();
}

static int allocate(uint64_t *address, size_t bytes, bool managed)
{
    size_t mapped = (bytes + 4095) / 4096 * 4096;
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    bool made = bytes && fd >= 0 && ftruncate(fd, (off_t)mapped) == 0;
    void *seen = made ? mmap(NULL, mapped, PROT_NONE, MAP_SHARED, fd, 0) : MAP_FAILED;
    void *kept = made ? mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                      : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (seen == MAP_FAILED || kept == MAP_FAILED)
        return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    struct allocation *a = malloc(sizeof *a);
    *a = (struct allocation){.address = (uint64_t)(uintptr_t)seen,
                             .own = kept,
                             .bytes = bytes,
                             .mapped = mapped,
                             .device = current()->device,
                             .managed = managed,
                             .next = allocations};
    memset(kept, 0xfb, mapped); /* zeros must not be assumed */
    allocations = a;
    counts.live++;
    *address = a->address;
    return OK;
}

API int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    LOCKED(check_context() == OK ? allocate(address, bytes, false) : check_context());
}

API int cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags)
{
    if (flags != 1) /* of any stream */
        return INVALID_VALUE;
    LOCKED(check_context() == OK ? allocate(address, bytes, true) : check_context());
}

static int release(uint64_t address)
{
    struct allocation **a = &allocations;
    while (*a && (*a)->address != address)
        a = &(*a)->next;
    if (!*a) {
        complain("device memory is freed that is none");
        return INVALID_VALUE;
    }
    struct allocation *gone = *a;
    *a = gone->next;
    munmap(gone->own, gone->mapped);
    munmap((void *)(uintptr_t)gone->address, gone->mapped); /* NOLINT */
    free(gone);
    counts.live--;
    return OK;
}

API int cuMemFree_v2(uint64_t address)
{
    LOCKED(usable() == OK ? release(address) : NOT_INITIALIZED);
}

static void attribute(int which, void *value, const struct allocation *a,
                      const struct registration *r)
{
    if (which == 2)
        *(unsigned *)value = a && a->managed ? 1 + (unsigned)draw(2)
                             : a             ? 2
                             : r             ? 1
                                             : 0;
    else if (which == 8)
        *(unsigned *)value = a && a->managed;
    else if (which == 9)
        *(int *)value = a ? a->device : r ? 0 : -2;
    else if (which == 11)
        *(uint64_t *)value = a ? a->address : 0;
    else if (which == 12)
        *(size_t *)value = a ? a->bytes : 0;
}

API int cuPointerGetAttributes(unsigned count, const int *which, void **values,
                               uint64_t address)
{
    if (usable() != OK)
        return NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++)
        attribute(which[i], values[i], allocation_of(address, 1),
                  registration_of((char *)(uintptr_t)address, 1)); /* NOLINT */
    pthread_mutex_unlock(&lock);
    return OK;
}

static uint64_t page_of(const char *address)
{
    return (uint64_t)(uintptr_t)address / 4096;
}

/* By pages: two registrations must not share one. */
static int enroll(char *memory, size_t bytes)
{
    if (!memory || !bytes)
        return INVALID_VALUE;
    for (struct registration *r = registrations; r; r = r->next)
        if (page_of(memory) <= page_of(r->memory + r->bytes - 1) &&
            page_of(r->memory) <= page_of(memory + bytes - 1))
            return ALREADY_REGISTERED;
    struct registration *r = malloc(sizeof *r);
    *r = (struct registration){.memory = memory, .bytes = bytes, .next = registrations};
    registrations = r;
    counts.live++;
    counts.registrations++;
    return OK;
}

API int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    LOCKED(check_context() == OK ? enroll(memory, bytes) : check_context());
}

static int dismiss(const char *memory)
{
    struct registration **r = &registrations;
    while (*r && (*r)->memory != memory)
        r = &(*r)->next;
    if (!*r)
        return NOT_REGISTERED;
    struct registration *gone = *r;
    *r = gone->next;
    free(gone);
    counts.live--;
    return OK;
}

API int cuMemHostUnregister(void *memory)
{
    LOCKED(usable() == OK ? dismiss(memory) : NOT_INITIALIZED);
}

static int begin_copy(enum kind kind, uint64_t device, char *host, size_t bytes,
                      uint64_t stream)
{
    struct stream *s = stream_of(stream);
    int rc = check_context();
    if (rc != OK)
        return rc;
    if (!s || s->context != current())
        return INVALID_HANDLE;
    struct allocation *a = allocation_of(device, bytes);
    if (!a || a->device != current()->device) {
        complain("a copy of %zu bytes to or from what is not memory of device %d",
                 bytes, current()->device);
        return INVALID_VALUE;
    }
    if (!registration_of(host, bytes)) {
        complain("a copy of %zu bytes to or from host memory that is not registered",
                 bytes);
        return INVALID_VALUE;
    }
    counts.copies++;
    push(s, (struct op){.kind = kind, .device = device, .host = host, .bytes = bytes});
    return OK;
}

API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, uint64_t stream)
{
    LOCKED(begin_copy(TO_HOST, from, to, bytes, stream));
}

API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes,
                             uint64_t stream)
{
    LOCKED(
        begin_copy(TO_DEVICE, to, (char *)(uintptr_t)from, bytes, stream)); /* NOLINT */
}

API int cuStreamCreate(struct stream **stream, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    int rc = check_context();
    if (rc == OK) {
        struct stream *s = calloc(1, sizeof *s);
        s->context = current();
        s->tail = &s->head;
        s->slow_us = made++ % 2 ? slow_us : 0;
        s->next = streams;
        streams = *stream = s;
        counts.live++;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Submitted work is still executed. */
API int cuStreamDestroy_v2(struct stream *stream)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_of((uint64_t)(uintptr_t)stream);
    if (s)
        s->gone = true, counts.live--;
    pthread_mutex_unlock(&lock);
    return s ? OK : INVALID_HANDLE;
}

static int wait_event(uint64_t stream, const void *event)
{
    struct stream *s = stream_of(stream);
    struct event *e = event_of(event);
    if (check_context() != OK || !s || !e)
        return check_context() != OK ? check_context() : INVALID_HANDLE;
    if (e->recorded)
        push(s, (struct op){.kind = WAIT, .event = e, .generation = e->recorded});
    return OK;
}

API int cuStreamWaitEvent(uint64_t stream, void *event, unsigned flags)
{
    (void)flags;
    LOCKED(wait_event(stream, event));
}

API int cuStreamGetCtx(uint64_t stream, struct context **context)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_of(stream);
    int rc = check_context() != OK ? check_context() : s ? OK : INVALID_HANDLE;
    if (rc == OK)
        *context = s->context;
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuStreamIsCapturing(uint64_t stream, int *capturing)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_of(stream);
    int rc = check_context() != OK ? check_context() : s ? OK : INVALID_HANDLE;
    if (rc == OK)
        *capturing = s->capturing;
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuStreamSynchronize(uint64_t stream)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_of(stream);
    while (s && s->head)
        pthread_cond_wait(&moved, &lock);
    int rc = s ? s->context->sticky : INVALID_HANDLE;
    pthread_mutex_unlock(&lock);
    return rc;
}

API int cuEventCreate(struct event **event, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    int rc = check_context();
    if (rc == OK) {
        struct event *e = calloc(1, sizeof *e);
        e->next = events;
        events = *event = e;
        counts.live++;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static bool is_awaited(const struct event *e)
{
    for (struct stream *s = streams; s; s = s->next)
        for (struct op *op = s->head; op; op = op->next)
            if (op->event == e)
                return true;
    return false;
}

/* Operations that wait for it or complete it are done first. */
API int cuEventDestroy_v2(struct event *event)
{
    pthread_mutex_lock(&lock);
    struct event **e = &events;
    while (*e && *e != event)
        e = &(*e)->next;
    bool known = *e != NULL;
    if (known) {
        *e = event->next;
        counts.live--;
        while (is_awaited(event))
            pthread_cond_wait(&moved, &lock);
        free(event);
    }
    pthread_mutex_unlock(&lock);
    return known ? OK : INVALID_HANDLE;
}

static int record(struct event *e, uint64_t stream)
{
    struct stream *s = stream_of(stream);
    if (check_context() != OK || !s || !event_of(e))
        return check_context() != OK ? check_context() : INVALID_HANDLE;
    push(s, (struct op){.kind = RECORD, .event = e, .generation = ++e->recorded});
    return OK;
}

API int cuEventRecord(struct event *event, uint64_t stream)
{
    LOCKED(record(event, stream));
}

API int cuEventQuery(struct event *event)
{
    pthread_mutex_lock(&lock);
    struct event *e = event_of(event);
    int rc = check_context();
    counts.questions++;
    if (rc == OK)
        rc = !e                                                      ? INVALID_HANDLE
             : e->complete < e->recorded || now_us() < e->visible_at ? NOT_READY
                                                                     : OK;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Functions for tests. */

static int kernel(enum kind kind, uint64_t stream, uint64_t address, char *bytes,
                  size_t count, unsigned late_us)
{
    struct stream *s = stream_of(stream);
    if (!s || !allocation_of(address, count))
        return INVALID_VALUE;
    push(s, (struct op){.kind = kind,
                        .device = address,
                        .host = bytes,
                        .bytes = count,
                        .owned = kind == WRITE,
                        .not_before = now_us() + 1 + late_us});
    return OK;
}

API int fake_cuda_write(uint64_t stream, uint64_t address, const void *bytes,
                        size_t count, unsigned late_us)
{
    char *copy = malloc(count);
    memcpy(copy, bytes, count);
    LOCKED(kernel(WRITE, stream, address, copy, count, late_us));
}

API int fake_cuda_read(uint64_t stream, uint64_t address, void *bytes, size_t count,
                       unsigned late_us)
{
    LOCKED(kernel(READ, stream, address, bytes, count, late_us));
}

API int fake_cuda_hold(uint64_t stream)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_of(stream);
    if (s)
        push(s, (struct op){.kind = HOLD, .generation = released + 1});
    pthread_mutex_unlock(&lock);
    return s ? OK : INVALID_HANDLE;
}

API void fake_cuda_release(void)
{
    pthread_mutex_lock(&lock);
    released++;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

/* No stream can continue by itself: each waits for something else. */
static bool settled(int64_t now)
{
    for (const struct stream *s = streams; s; s = s->next)
        if (s->head && ready(s->head, INT64_MAX))
            return false;
    for (const struct event *e = events; e; e = e->next)
        if (now < e->visible_at)
            return false;
    return true;
}

API void fake_cuda_settle(void)
{
    pthread_mutex_lock(&lock);
    while (!settled(now_us())) {
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_slow(unsigned us)
{
    pthread_mutex_lock(&lock);
    slow_us = us;
    made = 0;
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_capture(uint64_t stream, int capturing)
{
    pthread_mutex_lock(&lock);
    stream_of(stream)->capturing = capturing;
    pthread_mutex_unlock(&lock);
}

API void fake_cuda_counts(struct fake_cuda_counts *into)
{
    pthread_mutex_lock(&lock);
    *into = counts;
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void end(void)
{
    if (started && owner == getpid() && counts.live)
        complain("%llu things are left: allocations, registrations, streams, events, "
                 "contexts",
                 (unsigned long long)counts.live);
}

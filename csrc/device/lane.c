/* SPDX-License-Identifier: Apache-2.0 */
/* See lane.h. */
#include "device/lane.h"

#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "include/partialcoll.h"
#include "device/cuda.h"

enum { STREAMS = 2, NON_BLOCKING = 1, NO_TIMING = 2, PORTABLE = 1 };

/* The time between two polls of copies that a thread waits for. */
static const struct timespec backoff = {.tv_nsec = 50000};

/* A chunk is large enough to use the whole bandwidth of the bus. With two streams one chunk is set
 * up while another is copied. */
#ifdef PCOLL_TEST_COPY_BYTES
static size_t const chunk_bytes = PCOLL_TEST_COPY_BYTES;
#else
static size_t const chunk_bytes = 2 << 20;
#endif

struct lane {
    const struct cuda *cuda;
    int device;
    enum lane_direction direction;
    cuda_context context;
    cuda_stream stream[STREAMS];
    cuda_event given;         /* recorded in the user's stream before the copies */
    cuda_event over[STREAMS]; /* recorded after the copies that were begun last */
    bool under_way;
    int failure;
};

static cuda_stream lane_stream_of(uint64_t number)
{
    return (cuda_stream)(uintptr_t)number; /* NOLINT: a handle of the driver */
}

static int lane_enter(const struct lane *l)
{
    return cuda_check(l->cuda, l->cuda->context_push(l->context),
                      "entering a device's context");
}

/* Make the caller's context current again, whatever has failed before. */
static int lane_leave(const struct lane *l, int rc)
{
    cuda_context own;
    cuda_result result = l->cuda->context_pop(&own);
    return rc == PCOLL_OK ? cuda_check(l->cuda, result, "leaving a context") : rc;
}

static int lane_make_streams(struct lane *l)
{
    const struct cuda *d = l->cuda;
    cuda_result result = d->event_create(&l->given, NO_TIMING);
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++) {
        result = d->stream_create(&l->stream[i], NON_BLOCKING);
        if (result == CUDA_SUCCESS)
            result = d->event_create(&l->over[i], NO_TIMING);
    }
    return cuda_check(d, result, "making a stream");
}

static void lane_end_streams(struct lane *l)
{
    const struct cuda *d = l->cuda;
    for (int i = 0; i < STREAMS; i++) {
        if (l->over[i])
            d->event_destroy(l->over[i]);
        if (l->stream[i])
            d->stream_destroy(l->stream[i]);
    }
    if (l->given)
        d->event_destroy(l->given);
}

static int lane_check_device(const struct cuda *d, int device)
{
    int count = 0;
    int rc = cuda_check(d, d->device_count(&count), "counting the devices");
    if (rc != PCOLL_OK || (device >= 0 && device < count))
        return rc;
    return fail(PCOLL_EINVAL, "device: expected 0 to %d, got %d", count - 1, device);
}

int lane_create(int device, enum lane_direction direction, struct lane **out)
{
    const struct cuda *d;
    int rc = cuda_get(&d) ?: lane_check_device(d, device);
    if (rc != PCOLL_OK)
        return rc;
    struct lane *l = calloc(1, sizeof *l);
    if (!l)
        return fail(PCOLL_ENOMEM, "no memory for a lane");
    *l = (struct lane){.cuda = d, .device = device, .direction = direction};
    rc = cuda_check(d, d->primary_retain(&l->context, device),
                    "taking a device's context");
    if (rc != PCOLL_OK) {
        free(l);
        return rc;
    }
    *out = l;
    rc = lane_enter(l) ?: lane_leave(l, lane_make_streams(l));
    if (rc != PCOLL_OK)
        lane_destroy(out);
    return rc;
}

void lane_settle(struct lane *l)
{
    while (lane_poll(l) == PCOLL_EAGAIN)
        nanosleep(&backoff, NULL);
}

void lane_destroy(struct lane **l)
{
    struct lane *gone = *l;
    lane_settle(gone);
    if (lane_enter(gone) == PCOLL_OK) {
        lane_end_streams(gone);
        (void)lane_leave(gone, PCOLL_OK);
    }
    gone->cuda->primary_release(gone->device);
    free(gone);
    *l = NULL;
}

/* Can the copies be ordered with the work of this stream? */
static int lane_check_stream(const struct lane *l, cuda_stream stream)
{
    cuda_context context = NULL;
    int capturing = 0;
    int rc = cuda_check(l->cuda, l->cuda->stream_context(stream, &context),
                        "asking a stream for its device");
    if (rc == PCOLL_OK && context != l->context)
        return fail(PCOLL_EINVAL,
                    "stream: expected one of device %d, whose memory is used, got one "
                    "of another device or context",
                    l->device);
    rc = rc
             ?: cuda_check(l->cuda, l->cuda->stream_capturing(stream, &capturing),
                           "asking a stream whether it records a graph");
    if (rc != PCOLL_OK || !capturing)
        return rc;
    return fail(PCOLL_EINVAL,
                "stream: it records a CUDA graph, and communication cannot be a part "
                "of one; call this outside of the capture");
}

static int lane_record_and_wait(const struct lane *l, cuda_stream stream)
{
    const struct cuda *d = l->cuda;
    cuda_result result = d->event_record(l->given, stream);
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++)
        result = d->stream_wait(l->stream[i], l->given, 0);
    return cuda_check(d, result, "waiting for a stream of the user's");
}

static cuda_result lane_copy(const struct lane *l, const struct lane_piece *p,
                             size_t from, size_t bytes, cuda_stream stream)
{
    char *host = (char *)p->host + from;
    return l->direction == LANE_TO_HOST
               ? l->cuda->copy_to_host(host, p->device + from, bytes, stream)
               : l->cuda->copy_to_device(p->device + from, host, bytes, stream);
}

/* Distribute the chunks of all pieces over the streams in turn. */
static int lane_begin_copies(const struct lane *l, const struct lane_piece *pieces,
                             int count)
{
    cuda_result result = CUDA_SUCCESS;
    unsigned turn = 0;
    for (int i = 0; i < count; i++) {
        const struct lane_piece *p = &pieces[i];
        for (size_t from = 0; from < p->bytes && result == CUDA_SUCCESS; turn++) {
            size_t left = p->bytes - from;
            size_t now = left < chunk_bytes ? left : chunk_bytes;
            result = lane_copy(l, p, from, now, l->stream[turn % STREAMS]);
            from += now;
        }
    }
    return cuda_check(l->cuda, result, "beginning a copy");
}

static int lane_record_ends(const struct lane *l)
{
    cuda_result result = CUDA_SUCCESS;
    for (int i = 0; i < STREAMS && result == CUDA_SUCCESS; i++)
        result = l->cuda->event_record(l->over[i], l->stream[i]);
    return cuda_check(l->cuda, result, "noting the end of a copy");
}

int lane_begin(struct lane *l, const struct lane_piece *pieces, int count,
               uint64_t stream)
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
        int ends = lane_record_ends(l); /* even if only some copies were begun */
        l->under_way = ends == PCOLL_OK;
        l->failure = rc = rc ?: ends;
    }
    return lane_leave(l, rc);
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
        result = l->cuda->event_query(l->over[i]);
    if (result == CUDA_NOT_READY)
        return lane_leave(l, PCOLL_EAGAIN);
    l->under_way = false;
    int failed = cuda_check(l->cuda, result, "a copy");
    l->failure = l->failure ?: failed;
    return lane_leave(l, l->failure);
}

int lane_order(struct lane *l, uint64_t stream)
{
    int rc = lane_enter(l);
    if (rc != PCOLL_OK)
        return rc;
    rc = lane_check_stream(l, lane_stream_of(stream));
    cuda_result result = CUDA_SUCCESS;
    for (int i = 0; i < STREAMS && rc == PCOLL_OK && result == CUDA_SUCCESS; i++)
        result = l->cuda->stream_wait(lane_stream_of(stream), l->over[i], 0);
    if (rc == PCOLL_OK)
        rc = cuda_check(l->cuda, result, "having a stream of the user's wait");
    return lane_leave(l, rc);
}

int lane_register(struct lane *l, void *memory, size_t bytes)
{
    CHECK(memory && bytes);
    return lane_enter(l)
               ?: lane_leave(l,
                             cuda_check(l->cuda,
                                        l->cuda->host_register(memory, bytes, PORTABLE),
                                        "pinning memory"));
}

int lane_unregister(struct lane *l, void *memory)
{
    CHECK(!l->under_way);
    return lane_enter(l)
               ?: lane_leave(l, cuda_check(l->cuda, l->cuda->host_unregister(memory),
                                           "letting memory go"));
}

/*
 * Mirrors: pinned host memory that mirrors device memory, for engines that work on the host only.
 * The owner pulls, works on the host memory, and pushes.
 *
 * One thread at a time. The owner must not access the host memory from a pull or a push until
 * pcoll_mirror_wait has succeeded: a copy to the device may read it late.
 */

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

/* Check the pieces, and convert them for a lane. */
static int mirror_check_pieces(const pcoll_mirror *m, const pcoll_piece *pieces,
                               int count, struct lane_piece *checked)
{
    int rc = PCOLL_OK;
    for (int i = 0; i < count && rc == PCOLL_OK; i++) {
        const pcoll_piece *p = &pieces[i];
        rc = place_check((const void *)(uintptr_t)p->device, /* NOLINT: an address */
                         p->bytes, m->device);
        checked[i] = (struct lane_piece){p->host, p->device, p->bytes};
    }
    return rc;
}

static int mirror_begin(pcoll_mirror *m, struct lane *lane, const pcoll_piece *pieces,
                        int count, uint64_t stream)
{
    if (count < 1)
        return fail(PCOLL_EINVAL, "count: expected at least 1, got %d", count);
    struct lane_piece checked[count];
    int rc = mirror_poll_both(m);
    if (rc == PCOLL_EAGAIN)
        return fail(PCOLL_ESTATE, "the mirror's last copies are not over");
    return rc ?: mirror_check_pieces(m, pieces, count, checked)
                     ?: lane_begin(lane, checked, count, stream);
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
    if (m->to_device)
        lane_destroy(&m->to_device);
    if (m->to_host)
        lane_settle(m->to_host);
    while (m->pins)
        (void)lane_unregister(m->to_host, m->pinned[--m->pins]);
    if (m->to_host)
        lane_destroy(&m->to_host);
    free(m->pinned);
    free(m);
    *at = NULL;
    return PCOLL_OK;
}

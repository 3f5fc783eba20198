/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mirrors: pinned memory of the host that stands for memory of a device, where an engine
 * works on the host alone. Who owns one pulls, works on its memory, and pushes.
 *
 * One thread at a time. The host's memory belongs to the copies from a pull or a push to
 * the end of pcoll_mirror_wait, else to the owner: a copy to the device reads it late.
 */
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "device/lane.h"
#include "device/place.h"
#include "include/partialcoll.h"

enum { NAP_US = 50 };

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
    rc = lane_create(device, LANE_TO_HOST, &m->to_host);
    if (rc == PCOLL_OK)
        rc = lane_create(device, LANE_TO_DEVICE, &m->to_device);
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
    int rc = lane_poll(m->to_device);
    return rc == PCOLL_OK ? lane_poll(m->to_host) : rc;
}

/* Where the pieces are to be, as a lane takes them. */
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
    if (rc == PCOLL_OK)
        rc = mirror_check_pieces(m, pieces, count, checked);
    return rc == PCOLL_OK ? lane_begin(lane, checked, count, stream) : rc;
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
    int rc = fail_if_null_as("mirror, pieces", m, pieces)
                 ?: mirror_begin(m, m->to_device, pieces, count, stream);
    return rc == PCOLL_OK ? lane_order(m->to_device, stream) : rc;
}

int pcoll_mirror_wait(pcoll_mirror *m, int64_t timeout_us)
{
    int64_t until = clock_us() + timeout_us;
    int rc = fail_if_null_as("mirror", m) ?: mirror_poll_both(m);
    while (rc == PCOLL_EAGAIN && clock_us() < until) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_US * 1000}, NULL);
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

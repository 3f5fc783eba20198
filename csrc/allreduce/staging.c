/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between a device and the slots of the library; see staging.h. */
#include "allreduce/staging.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "device/lane.h"
#include "domain/node.h"

enum state { ARRIVED, COPYING, HELD };

/* A copy is polled again after an eighth of the time that it has taken, within these limits. */
enum { SOONEST_US = 20, LATEST_US = 500, PATIENCE_SHARE = 8 };

struct staging {
    _Atomic int state;
    _Atomic int failure; /* Its message is written first. */
    struct reason reason;
    bool entered; /* The application holds the member. Used by the application only. */
    int64_t began_us;
    pcoll_mirror *mirror;
    pcoll_piece *pieces; /* One for each buffer. NULL: the memory of the domain is not
                            pinned yet. */
    char *block;         /* A result converted to the application's form. */
};

static bool staging_has_another_form(const struct payload *p)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].narrow)
            return true;
    return false;
}

uint64_t staging_bytes(const struct payload *p)
{
    return staging_has_another_form(p) ? p->bytes : 0;
}

int staging_create(int device, struct staging **out)
{
    CHECK(device >= 0);
    struct staging *s = calloc(1, sizeof *s);
    if (!s)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    *out = s;
    int rc = pcoll_mirror_create(device, &s->mirror);
    if (rc != PCOLL_OK)
        staging_destroy(out);
    return rc;
}

void staging_destroy(struct staging **at)
{
    struct staging *s = *at;
    if (!s)
        return;
    (void)pcoll_mirror_free(&s->mirror);
    free(s->block);
    free(s->pieces);
    free(s);
    *at = NULL;
}

/* Pin the memory of the domain, at the first use. */
static int staging_prepare(struct staging *s, struct domain *d)
{
    if (s->pieces)
        return PCOLL_OK;
    pcoll_piece *pieces = calloc((size_t)d->shape->payload.parts, sizeof *pieces);
    if (!pieces)
        return fail(PCOLL_ENOMEM, "no memory for a handle");
    int rc = pcoll_mirror_pin(s->mirror, d->hooks.memory, d->bytes);
    if (rc == PCOLL_OK)
        s->pieces = pieces;
    else
        free(pieces);
    return rc;
}

/* Return the bytes of a buffer in the application's form. */
static size_t staging_part_bytes(const struct payload_part *p)
{
    return p->widen ? p->count * sizeof(uint16_t) : p->bytes;
}

/* Copy the buffers to or from the block: begin to copy those on the device, which must exist, and
 * copy those on the host at once. */
static int staging_copy(struct staging *s, enum lane_direction direction,
                        const struct payload *p, char *block,
                        const pcoll_place *buffers, uint64_t stream)
{
    int count = 0;
    for (int i = 0; i < p->parts; i++) {
        const struct payload_part *part = &p->part[i];
        if (buffers[i].on_host)
            continue;
        s->pieces[count++] = (pcoll_piece){.host = block + part->offset,
                                           .device = buffers[i].address,
                                           .bytes = staging_part_bytes(part)};
    }
    int rc = lane_begin(s->mirror, direction, s->pieces, count, stream);
    for (int i = 0; i < p->parts && rc == PCOLL_OK; i++) {
        const struct payload_part *part = &p->part[i];
        if (!buffers[i].on_host || !part->bytes)
            continue;
        char *at = block + part->offset;
        char *buffer = (char *)(uintptr_t)buffers[i].address; /* NOLINT: an address */
        bool to_host = direction == LANE_TO_HOST;
        memcpy(to_host ? at : buffer, to_host ? buffer : at, staging_part_bytes(part));
    }
    return rc;
}

int staging_begin(struct staging *s, struct domain *d, const pcoll_place *buffers,
                  uint64_t stream)
{
    CHECK(atomic_load(&s->state) == ARRIVED || s->entered);
    char *slot = node_send_slot(d);
    CHECK(slot);
    int rc =
        staging_prepare(s, d)
            ?: staging_copy(s, LANE_TO_HOST, &d->shape->payload, slot, buffers, stream);
    if (rc != PCOLL_OK)
        return rc;
    s->began_us = clock_us();
    atomic_store(&s->state, COPYING);
    return PCOLL_OK;
}

/* Make room for a result that has to be converted to the application's form. */
static int staging_make_block(struct staging *s, size_t bytes)
{
    if (s->block)
        return PCOLL_OK;
    char *block = memory_allocate(bytes, true);
    if (!block)
        return fail(PCOLL_ENOMEM, "no memory for the %zu bytes of a result", bytes);
    memset(block, 0, bytes);
    int rc = pcoll_mirror_pin(s->mirror, block, bytes ? bytes : 1);
    if (rc == PCOLL_OK)
        s->block = block;
    else
        free(block);
    return rc;
}

/* Find the last result in the application's form: in place, or a copy. */
static int staging_find_result(struct staging *s, struct domain *d, char **block)
{
    struct member m;
    node_snapshot(d, &m);
    if (!m.delivered)
        return fail(PCOLL_ESTATE, "no result has been delivered yet");
    struct round_header *h = node_result(d, m.delivered - 1);
    const struct payload *p = &d->shape->payload;
    bool null = round_is_null(h, d->shape->ranks);
    *block = message_payload(h);
    if (!null && !staging_has_another_form(p))
        return PCOLL_OK;
    int rc = staging_make_block(s, p->bytes);
    if (rc != PCOLL_OK)
        return rc;
    void *parts[p->parts];
    for (int i = 0; i < p->parts; i++)
        parts[i] = s->block + p->part[i].offset;
    if (null)
        payload_identity(p, parts);
    else
        payload_unpack(p, parts, *block);
    *block = s->block;
    return PCOLL_OK;
}

int staging_fetch(struct staging *s, struct domain *d, const pcoll_place *buffers,
                  uint64_t stream)
{
    char *block;
    return lane_poll(s->mirror, LANE_TO_DEVICE)
                 ?: staging_prepare(s, d)
                 ?: staging_find_result(s, d, &block)
                 ?: staging_copy(s, LANE_TO_DEVICE, &d->shape->payload, block, buffers,
                                 stream)
                 ?: lane_order(s->mirror, stream);
}

bool staging_landed(struct staging *s)
{
    CHECK(staging_arrived(s));
    return lane_poll(s->mirror, LANE_TO_DEVICE) != PCOLL_EAGAIN;
}

bool staging_arrived(const struct staging *s)
{
    return atomic_load(&s->state) == ARRIVED;
}

int staging_failure(const struct staging *s)
{
    int rc = atomic_load(&s->failure);
    return rc == PCOLL_OK ? rc : fail(rc, "%s", s->reason.text);
}

static void staging_keep_failure(struct staging *s, int rc)
{
    fail_reason(&s->reason);
    atomic_store(&s->failure, rc);
}

/* HELD by this thread: make the deposit, if no copy is under way. PCOLL_EAGAIN: one is. */
static int staging_arrive(struct staging *s, struct domain *d,
                          enum deposit_outcome *outcome)
{
    CHECK(atomic_load(&s->state) == HELD);
    int rc = lane_poll(s->mirror, LANE_TO_HOST)
                 ?: lane_poll(s->mirror, LANE_TO_DEVICE)
                 ?: d->ops->deposit(d, NULL, outcome);
    if (rc != PCOLL_OK && rc != PCOLL_EAGAIN)
        staging_keep_failure(s, rc);
    atomic_store(&s->state, rc == PCOLL_EAGAIN ? COPYING : ARRIVED);
    return rc;
}

static bool staging_take_hold(struct staging *s)
{
    int copying = COPYING;
    return atomic_compare_exchange_strong(&s->state, &copying, HELD);
}

bool staging_try(struct staging *s, struct domain *d, bool *made,
                 enum deposit_outcome *outcome)
{
    *made = !staging_arrived(s) && staging_take_hold(s) &&
            staging_arrive(s, d, outcome) == PCOLL_OK;
    return staging_arrived(s);
}

int64_t staging_next_poll(const struct staging *s)
{
    int64_t now = clock_us(), wait = (now - s->began_us) / PATIENCE_SHARE;
    wait = wait < SOONEST_US ? SOONEST_US : wait;
    return 1000 * (now + (wait < LATEST_US ? wait : LATEST_US));
}

void staging_hold(struct staging *s)
{
    CHECK(!s->entered);
    lock_waits(LOCK_STAGING);
    while (atomic_load(&s->state) != ARRIVED && !(s->entered = staging_take_hold(s)))
        nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
    if (s->entered)
        lock_held(LOCK_STAGING);
}

void staging_release(struct staging *s)
{
    if (!s->entered)
        return;
    s->entered = false;
    lock_released(LOCK_STAGING);
    CHECK(atomic_load(&s->state) == HELD);
    atomic_store(&s->state, COPYING);
}

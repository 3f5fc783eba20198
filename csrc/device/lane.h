/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: copies between the memory of one device and registered host memory, in one
 * direction, on two streams of its own. The user's streams are told what to wait for and
 * are never waited for: no call here blocks, and none synchronizes a device.
 *
 * What is copied to the host was written by the user's stream before lane_begin; what is
 * copied to the device may be read by what the user's stream is given after lane_order.
 * The bytes may be touched on the host only before lane_begin and after lane_poll has
 * said PCOLL_OK.
 *
 * One thread at a time. A lane keeps its device's primary context for its life, and
 * leaves the calling thread's current context as it was.
 */
#ifndef PCOLL_DEVICE_LANE_H
#define PCOLL_DEVICE_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lane;

enum lane_direction { LANE_TO_HOST, LANE_TO_DEVICE };

struct lane_piece {
    void *host; /* within memory that lane_register has been given */
    uint64_t device;
    size_t bytes;
};

/* PCOLL_ESTATE (no driver), PCOLL_EINVAL (no such device), PCOLL_ENOMEM. */
int lane_create(int device, enum lane_direction direction, struct lane **out);
/* Waits for copies that are under way: memory must not go before. */
void lane_destroy(struct lane **l);

/* Begin copying all pieces, after everything that `stream` of the user's has been given
 * so far (a CUstream; 0: the default one). PCOLL_EINVAL: the stream is of another device
 * or records a graph; PCOLL_ESTATE: the last copies are not over. */
int lane_begin(struct lane *l, const struct lane_piece *pieces, int count,
               uint64_t stream);
/* PCOLL_OK: nothing is under way; PCOLL_EAGAIN: something is; or what it failed with,
 * after which the lane is of no use. */
int lane_poll(struct lane *l);
/* What `stream` is given from now on happens after the copies that were begun last. */
int lane_order(struct lane *l, uint64_t stream);

/* Wait until nothing is under way. */
void lane_settle(struct lane *l);

/* Memory of the host that copies go to and come from: pinned, for all devices. Whole
 * pages, none of them twice. No copy may be under way when it is let go. */
int lane_register(struct lane *l, void *memory, size_t bytes);
int lane_unregister(struct lane *l, void *memory);

#endif

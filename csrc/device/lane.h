/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: copies between the memory of one device and registered host memory, in one
 * direction, on two streams of its own. The user's streams wait for the lane's streams where
 * needed, but no call here waits for a user's stream, and none synchronizes a device.
 *
 * A copy to the host contains what the user's stream has written before lane_begin. Work that
 * the user's stream is given after lane_order reads the result of a copy to the device. The
 * host may access the bytes only before lane_begin, and after lane_poll has returned PCOLL_OK.
 *
 * One thread at a time. A lane keeps its device's primary context while it exists, and leaves
 * the calling thread's current context unchanged.
 */
#ifndef PCOLL_DEVICE_LANE_H
#define PCOLL_DEVICE_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lane;

enum lane_direction { LANE_TO_HOST, LANE_TO_DEVICE };

struct lane_piece {
    void *host; /* in memory that was registered by lane_register */
    uint64_t device;
    size_t bytes;
};

/* Create a lane. PCOLL_ESTATE (no driver), PCOLL_EINVAL (no such device), PCOLL_ENOMEM. */
int lane_create(int device, enum lane_direction direction, struct lane **out);
/* Wait for copies in progress, and destroy the lane. */
void lane_destroy(struct lane **l);

/* Begin to copy all pieces after the work that the user's `stream` has been given so far (a
 * CUstream; 0: the default one). PCOLL_EINVAL: the stream is of another device or records a
 * graph. PCOLL_ESTATE: the last copies are not complete. */
int lane_begin(struct lane *l, const struct lane_piece *pieces, int count,
               uint64_t stream);
/* Return PCOLL_OK (no copies are in progress), PCOLL_EAGAIN (copies are in progress) or their
 * error, after which the lane cannot be used. */
int lane_poll(struct lane *l);
/* Make later work of `stream` wait for the copies that were begun last. */
int lane_order(struct lane *l, uint64_t stream);

/* Wait until no copies are in progress. */
void lane_settle(struct lane *l);

/* Pin memory of the host for copies, for all devices: whole pages, each at most once. No copies may
 * be in progress when it is unregistered. */
int lane_register(struct lane *l, void *memory, size_t bytes);
int lane_unregister(struct lane *l, void *memory);

#endif

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
#pragma once

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

/*
 * CUDA's driver: the functions of libcuda that the library uses, in one table. The library is
 * not linked but opened when the process first uses device memory (PARTIALCOLL_CUDA_LIBRARY
 * names another file than libcuda.so.1), so hosts without a driver are not affected. Only copy
 * engines are used: no kernels, and no function that waits for a whole device.
 *
 * The table is filled once per process and stays valid. Any thread may get it.
 */

/* Types of the driver's ABI. */
typedef int cuda_result;
typedef uint64_t cuda_address;
typedef struct cuda_context *cuda_context;
typedef struct cuda_stream *cuda_stream;
typedef struct cuda_event *cuda_event;

enum {
    CUDA_SUCCESS = 0,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_READY = 600,
};

struct cuda {
    cuda_result (*init)(unsigned flags);
    cuda_result (*version)(int *version);
    cuda_result (*error_name)(cuda_result error, const char **name);
    cuda_result (*error_string)(cuda_result error, const char **text);
    cuda_result (*device_count)(int *count);
    cuda_result (*primary_retain)(cuda_context *context, int device);
    cuda_result (*primary_release)(int device);
    cuda_result (*context_push)(cuda_context context);
    cuda_result (*context_pop)(cuda_context *context);
    cuda_result (*pointer_attributes)(unsigned count, int *which, void **values,
                                      cuda_address address);
    cuda_result (*host_register)(void *memory, size_t bytes, unsigned flags);
    cuda_result (*host_unregister)(void *memory);
    cuda_result (*copy_to_host)(void *to, cuda_address from, size_t bytes,
                                cuda_stream stream);
    cuda_result (*copy_to_device)(cuda_address to, const void *from, size_t bytes,
                                  cuda_stream stream);
    cuda_result (*stream_create)(cuda_stream *stream, unsigned flags);
    cuda_result (*stream_destroy)(cuda_stream stream);
    cuda_result (*stream_wait)(cuda_stream stream, cuda_event event, unsigned flags);
    cuda_result (*stream_context)(cuda_stream stream, cuda_context *context);
    cuda_result (*stream_capturing)(cuda_stream stream, int *capturing);
    cuda_result (*event_create)(cuda_event *event, unsigned flags);
    cuda_result (*event_destroy)(cuda_event event);
    cuda_result (*event_record)(cuda_event event, cuda_stream stream);
    cuda_result (*event_query)(cuda_event event);
};

/* Get the table. PCOLL_ESTATE: there is no driver, it is too old, or this process was forked from
 * one that has used CUDA; the message says which. */
int cuda_get(const struct cuda **cuda);

/* Return whether the process has loaded the library. Checks again after it has loaded another
 * library. */
bool cuda_is_loaded(void);

/* Return PCOLL_OK or PCOLL_ESTATE: `what` has failed, with the driver's message. */
int cuda_check(const struct cuda *cuda, cuda_result result, const char *what);

/*
 * The place of an address: the host, or a device. The driver knows it. It is asked only in a
 * process that has opened it, or that was given an array which says that it is on a device.
 */

enum { PLACE_HOST = -1 };

struct place {
    int device; /* number; PLACE_HOST: the driver does not know the address */
};

/* Find the place of an address. PCOLL_ESTATE: there is no driver. */
int place_find(const void *address, struct place *place);

/* Check that `bytes` bytes from this address are allocated on this device. PCOLL_EINVAL. */
int place_check(const void *address, size_t bytes, int device);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mirror (see the public header) copies between the memory of one device and pinned host memory,
 * in each direction on two streams of its own. The user's streams wait for the mirror's where
 * needed; no call here waits for a user's stream, and none synchronizes a device.
 *
 * A copy to the host contains what the user's stream has written before lane_begin. Work that the
 * user's stream is given after lane_order reads the result of a copy to the device. The host may
 * access the bytes only before lane_begin, and after lane_poll has returned PCOLL_OK.
 *
 * One thread at a time. A mirror keeps its device's primary context while it exists, and leaves the
 * calling thread's current context unchanged. pcoll_mirror_free waits for copies in progress.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "include/partialcoll.h"

enum lane_direction { LANE_TO_HOST, LANE_TO_DEVICE, LANE_WAYS };

/* Begin to copy all pieces after the work that the user's `stream` has been given so far (a
 * CUstream; 0: the default one). PCOLL_EINVAL: a piece is not memory of the device, or the stream
 * is of another device or records a graph. PCOLL_ESTATE: the last copies in this direction are not
 * complete. */
int lane_begin(pcoll_mirror *m, enum lane_direction direction,
               const pcoll_piece *pieces, int count, uint64_t stream);
/* Return PCOLL_OK (no copies in this direction are in progress), PCOLL_EAGAIN (copies are in
 * progress) or their error, after which no copy in this direction can begin. */
int lane_poll(pcoll_mirror *m, enum lane_direction direction);
/* Make later work of `stream` wait for the copies to the device that were begun last. */
int lane_order(pcoll_mirror *m, uint64_t stream);

/* CUDA's driver: the functions of libcuda that are used, in one table, which is filled when the
 * process first uses device memory (PARTIALCOLL_CUDA_LIBRARY names another file than libcuda.so.1).
 * Only copy engines are used: no kernels, and no function that waits for a whole device. */

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

/* The functions by their names in the table and in the library, with their parameters. */
#define CUDA_FUNCTIONS(F)                                                              \
    F(init, "cuInit", (unsigned flags))                                                \
    F(version, "cuDriverGetVersion", (int *version))                                   \
    F(error_name, "cuGetErrorName", (cuda_result error, const char **name))            \
    F(error_string, "cuGetErrorString", (cuda_result error, const char **text))        \
    F(device_count, "cuDeviceGetCount", (int *count))                                  \
    F(primary_retain, "cuDevicePrimaryCtxRetain",                                      \
      (cuda_context * context, int device))                                            \
    F(primary_release, "cuDevicePrimaryCtxRelease_v2", (int device))                   \
    F(context_push, "cuCtxPushCurrent_v2", (cuda_context context))                     \
    F(context_pop, "cuCtxPopCurrent_v2", (cuda_context * context))                     \
    F(pointer_attributes, "cuPointerGetAttributes",                                    \
      (unsigned count, int *which, void **values, cuda_address address))               \
    F(host_register, "cuMemHostRegister_v2",                                           \
      (void *memory, size_t bytes, unsigned flags))                                    \
    F(host_unregister, "cuMemHostUnregister", (void *memory))                          \
    F(copy_to_host, "cuMemcpyDtoHAsync_v2",                                            \
      (void *to, cuda_address from, size_t bytes, cuda_stream stream))                 \
    F(copy_to_device, "cuMemcpyHtoDAsync_v2",                                          \
      (cuda_address to, const void *from, size_t bytes, cuda_stream stream))           \
    F(stream_create, "cuStreamCreate", (cuda_stream * stream, unsigned flags))         \
    F(stream_destroy, "cuStreamDestroy_v2", (cuda_stream stream))                      \
    F(stream_wait, "cuStreamWaitEvent",                                                \
      (cuda_stream stream, cuda_event event, unsigned flags))                          \
    F(stream_context, "cuStreamGetCtx", (cuda_stream stream, cuda_context * context))  \
    F(stream_capturing, "cuStreamIsCapturing", (cuda_stream stream, int *capturing))   \
    F(event_create, "cuEventCreate", (cuda_event * event, unsigned flags))             \
    F(event_destroy, "cuEventDestroy_v2", (cuda_event event))                          \
    F(event_record, "cuEventRecord", (cuda_event event, cuda_stream stream))           \
    F(event_query, "cuEventQuery", (cuda_event event))

#define CUDA_MEMBER(member, name, parameters) cuda_result(*member) parameters;
extern struct cuda {
    CUDA_FUNCTIONS(CUDA_MEMBER)
} cuda;

/* Fill the table. PCOLL_ESTATE: there is no driver, it is too old, or this process was forked from
 * one that has used CUDA; the message says which. */
int cuda_start(void);

/* Check that `bytes` bytes from this address are allocated on this device. PCOLL_EINVAL. */
int place_check(uint64_t address, size_t bytes, int device);

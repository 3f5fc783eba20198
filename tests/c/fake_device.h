/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the fake device (tests/fake_cuda) that the core does not use. */
#pragma once

#include "../fake_cuda/fake_cuda.h"
#include "device/lane.h"

#define FAKE_FUNCTIONS(F)                                                              \
    F("cuMemAlloc_v2", memory_take, (uint64_t *address, size_t bytes), int)            \
    F("cuMemAllocManaged", managed_take,                                               \
      (uint64_t *address, size_t bytes, unsigned flags), int)                          \
    F("cuMemFree_v2", memory_free, (uint64_t address), int)                            \
    F("cuStreamSynchronize", stream_sync, (uint64_t stream), int)                      \
    F("fake_cuda_write", late_write,                                                   \
      (uint64_t stream, uint64_t address, const void *bytes, size_t count,             \
       unsigned late_us),                                                              \
      int)                                                                             \
    F("fake_cuda_read", late_read,                                                     \
      (uint64_t stream, uint64_t address, void *bytes, size_t count,                   \
       unsigned late_us),                                                              \
      int)                                                                             \
    F("fake_cuda_hold", stream_hold, (uint64_t stream), int)                           \
    F("fake_cuda_release", streams_release, (void), void)                              \
    F("fake_cuda_settle", streams_settle, (void), void)                                \
    F("fake_cuda_capture", capture, (uint64_t stream, int capturing), void)            \
    F("fake_cuda_slow", slow_streams, (unsigned us), void)                             \
    F("fake_cuda_counts", get_counts, (struct fake_cuda_counts * counts), void)
#define FAKE_DECLARED(name, member, parameters, result)                                \
    extern result(*member) parameters;
FAKE_FUNCTIONS(FAKE_DECLARED)

/* Set the path of the fake driver if it is not set, before the driver is loaded. */
void fake_device_name(void);
/* Start the driver and find these functions. */
void fake_device_start(void);
/* Return the number of a stream or address. */
uint64_t number(const void *handle);

/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device (tests/fake_cuda) in C tests: its functions that the core does not use. */
#ifndef PCOLL_TESTS_FAKE_DEVICE_H
#define PCOLL_TESTS_FAKE_DEVICE_H

#include "../fake_cuda/fake_cuda.h"
#include "device/lane.h"

extern int (*memory_take)(uint64_t *address, size_t bytes);
extern int (*managed_take)(uint64_t *address, size_t bytes, unsigned flags);
extern int (*memory_free)(uint64_t address);
extern int (*stream_sync)(uint64_t stream);
extern int (*late_write)(uint64_t stream, uint64_t address, const void *bytes,
                         size_t count, unsigned late_us);
extern int (*late_read)(uint64_t stream, uint64_t address, void *bytes, size_t count,
                        unsigned late_us);
extern int (*stream_hold)(uint64_t stream);
extern void (*streams_release)(void);
extern void (*streams_settle)(void);
extern void (*capture)(uint64_t stream, int capturing);
extern void (*slow_streams)(unsigned us);
extern void (*get_counts)(struct fake_cuda_counts *counts);

/* Before anything asks for a driver: which file it is, where nobody has said so. */
void fake_device_name(void);
/* The driver, as the core has it; finds these functions. */
const struct cuda *fake_device_start(void);
/* Of a stream, or an address. */
uint64_t number(const void *handle);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests do to the fake device that a program cannot do to a real one.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Of the process, so far. */
struct fake_cuda_counts {
    uint64_t to_host, to_device; /* bytes that copies have brought across */
    uint64_t copies;             /* calls */
    uint64_t registrations;      /* calls */
    uint64_t complaints;         /* what was wrong; each is said on standard error */
    uint64_t live;      /* allocations, registrations, streams, events, contexts */
    uint64_t questions; /* whether an event is over */
};
void fake_cuda_counts(struct fake_cuda_counts *counts);

/* A kernel that runs so late in a stream and then writes these bytes, which are copied
 * now; one that brings what it finds there to the host. 0, or the driver's error. */
int fake_cuda_write(uint64_t stream, uint64_t address, const void *bytes, size_t count,
                    unsigned late_us);
int fake_cuda_read(uint64_t stream, uint64_t address, void *bytes, size_t count,
                   unsigned late_us);
/* A kernel that runs until fake_cuda_release has been called once more. */
int fake_cuda_hold(uint64_t stream);
void fake_cuda_release(void);
/* Until all has been done, and told, that need not wait for a kernel that is held. */
void fake_cuda_settle(void);
/* Of the streams that are made from now on every second one is so slow before each copy. */
void fake_cuda_slow(unsigned us);
/* From now on the stream records a graph, or no longer. */
void fake_cuda_capture(uint64_t stream, int capturing);

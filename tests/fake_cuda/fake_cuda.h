/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of tests on the fake device that no program can do to a real one.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Counters of the process. */
struct fake_cuda_counts {
    uint64_t to_host, to_device; /* bytes that copies have transferred */
    uint64_t copies;             /* calls */
    uint64_t registrations;      /* calls */
    uint64_t complaints;         /* errors; each is printed to standard error */
    uint64_t live;      /* allocations, registrations, streams, events, contexts */
    uint64_t questions; /* queries whether an event is complete */
};
void fake_cuda_counts(struct fake_cuda_counts *counts);

/* Start a kernel that runs this late in a stream and then writes these bytes, which are
 * copied now; or one that copies its memory to the host. Return 0, or the driver's
 * error. */
int fake_cuda_write(uint64_t stream, uint64_t address, const void *bytes, size_t count,
                    unsigned late_us);
int fake_cuda_read(uint64_t stream, uint64_t address, void *bytes, size_t count,
                   unsigned late_us);
/* Start a kernel that runs until fake_cuda_release has been called once more. */
int fake_cuda_hold(uint64_t stream);
void fake_cuda_release(void);
/* Wait until everything that does not depend on a held kernel is done and reported. */
void fake_cuda_settle(void);
/* Delay each copy in every second stream created from now on. */
void fake_cuda_slow(unsigned us);
/* Start or stop recording a graph in the stream. */
void fake_cuda_capture(uint64_t stream, int capturing);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying much: past the cache, if what is written will not be read before it would
 * have fallen out of it. A plain copy then reads every line that it is going to
 * overwrite, and takes the cache from others. Measured, two cores, 16 MiB: 11 GB/s with
 * memcpy, 22 GB/s with streaming stores; 1 MiB, in the cache: 46 and 27.
 */
#ifndef PCOLL_KERNELS_COPY_H
#define PCOLL_KERNELS_COPY_H

#include <stddef.h>

/* As memcpy; what it has written is visible to others like all other stores. */
void copy_past_cache(void *out, const void *in, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of 16 bits cut into planes: a plane holds `width` bits of every word. It is
 * laid out for loops that vectorize whatever the width: the words are 16 rows of as
 * many lanes as it takes, and each lane packs its own 16 words into `width` of them,
 * the first in the lowest bits. So a plane has 16 times lanes times width bits, in
 * units of 16 bits in the processor's byte order.
 */
#ifndef PCOLL_KERNELS_CODEC_PLANES_H
#define PCOLL_KERNELS_CODEC_PLANES_H

#include <stddef.h>
#include <stdint.h>

enum { PLANE_ROWS = 16, PLANE_MAX_LANES = 64 };

/* Of a plane for so many words. */
static inline size_t plane_lanes(size_t count)
{
    return (count + PLANE_ROWS - 1) / PLANE_ROWS;
}

static inline size_t plane_bytes(size_t count, int width)
{
    return plane_lanes(count) * (size_t)width * sizeof(uint16_t);
}

/* Write bits [shift, shift + width) of each word; there are 16 x lanes words. width is
 * 0 to 16; plane needs no alignment. */
void plane_pack(void *plane, const uint16_t *words, size_t lanes, int shift, int width);

/* words |= the plane's bits, shifted back to where they were. */
void plane_unpack(uint16_t *words, const void *plane, size_t lanes, int shift,
                  int width);

#endif

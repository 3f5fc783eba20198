/* SPDX-License-Identifier: Apache-2.0 */
/* See planes.h. Rows are what the loops over lanes see as constants. */
#include "kernels/codec/planes.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/loops.h"

/* Row `row` begins in this word of its lane, at this bit of it. */
struct plane_place {
    size_t word;
    int bit;
};

static struct plane_place plane_place_of(int row, int width)
{
    return (struct plane_place){(size_t)(row * width) / 16, row * width % 16};
}

CLONES_V4 static void plane_put_row(uint16_t *restrict packed,
                                    const uint16_t *restrict words, size_t lanes,
                                    int shift, int bit, uint16_t mask)
{
    for (size_t i = 0; i < lanes; i++)
        packed[i] |= (uint16_t)((words[i] >> shift & mask) << bit);
}

/* What did not fit into the word before. */
CLONES_V4 static void plane_put_rest(uint16_t *restrict packed,
                                     const uint16_t *restrict words, size_t lanes,
                                     int shift, int done, uint16_t mask)
{
    for (size_t i = 0; i < lanes; i++)
        packed[i] |= (uint16_t)((words[i] >> shift & mask) >> done);
}

CLONES_V4 static void plane_take_row(uint16_t *restrict words,
                                     const uint16_t *restrict packed, size_t lanes,
                                     int shift, int bit, uint16_t mask)
{
    for (size_t i = 0; i < lanes; i++)
        words[i] |= (uint16_t)((packed[i] >> bit & mask) << shift);
}

CLONES_V4 static void plane_take_rest(uint16_t *restrict words,
                                      const uint16_t *restrict packed, size_t lanes,
                                      int shift, int done, uint16_t mask)
{
    for (size_t i = 0; i < lanes; i++)
        words[i] |= (uint16_t)((packed[i] << done & mask) << shift);
}

/*
 * The usual planes, of 4, 8 or 16 bits: 16 / width rows of words make one row of the
 * plane, and no word is divided. Shifts by constants, so that gcc takes 16-bit lanes.
 */
static inline void plane_put_whole(uint16_t *restrict plane,
                                   const uint16_t *restrict words, size_t lanes,
                                   const int shift, const int width)
{
    const int rows = 16 / width;
    for (int word = 0; word < width; word++, words += (size_t)rows * lanes)
        for (size_t i = 0; i < lanes; i++) {
            uint16_t sum = 0;
            for (int row = 0; row < rows; row++) {
                uint16_t cut = (uint16_t)(words[(size_t)row * lanes + i] >> shift);
                cut &= (uint16_t)((1u << width) - 1);
                sum |= (uint16_t)(cut << row * width);
            }
            *plane++ = sum;
        }
}

static inline void plane_take_whole(uint16_t *restrict words,
                                    const uint16_t *restrict plane, size_t lanes,
                                    const int shift, const int width)
{
    const int rows = 16 / width;
    for (int word = 0; word < width; word++, plane += lanes)
        for (int row = 0; row < rows; row++)
            for (size_t i = 0; i < lanes; i++) {
                uint16_t cut = (uint16_t)(plane[i] >> row * width);
                cut &= (uint16_t)((1u << width) - 1);
                *words++ |= (uint16_t)(cut << shift);
            }
}

/* Return whether the plane is one of the usual ones, and do it then. */
#define PLANE_USUAL(name, whole)                                                       \
    CLONES_V4 static bool name(uint16_t *to, const uint16_t *from, size_t lanes,       \
                               int shift, int width)                                   \
    {                                                                                  \
        if (width == 16)                                                               \
            whole(to, from, lanes, 0, 16);                                             \
        else if (width == 8 && shift == 0)                                             \
            whole(to, from, lanes, 0, 8);                                              \
        else if (width == 8 && shift == 8)                                             \
            whole(to, from, lanes, 8, 8);                                              \
        else if (width == 4 && shift == 0)                                             \
            whole(to, from, lanes, 0, 4);                                              \
        else                                                                           \
            return false;                                                              \
        return true;                                                                   \
    }

PLANE_USUAL(plane_put_usual, plane_put_whole)
PLANE_USUAL(plane_take_usual, plane_take_whole)

void plane_pack(void *plane, const uint16_t *words, size_t lanes, int shift, int width)
{
    uint16_t packed[PLANE_ROWS * PLANE_MAX_LANES];
    uint16_t mask = (uint16_t)((1u << width) - 1);
    size_t bytes = plane_bytes(lanes * PLANE_ROWS, width);
    if (plane_put_usual(packed, words, lanes, shift, width)) {
        memcpy(plane, packed, bytes);
        return;
    }
    memset(packed, 0, bytes);
    for (int row = 0; row < PLANE_ROWS && width; row++) {
        struct plane_place at = plane_place_of(row, width);
        const uint16_t *from = words + (size_t)row * lanes;
        uint16_t *to = packed + at.word * lanes;
        plane_put_row(to, from, lanes, shift, at.bit, mask);
        if (at.bit + width > 16)
            plane_put_rest(to + lanes, from, lanes, shift, 16 - at.bit, mask);
    }
    memcpy(plane, packed, bytes);
}

void plane_unpack(uint16_t *words, const void *plane, size_t lanes, int shift,
                  int width)
{
    uint16_t packed[PLANE_ROWS * PLANE_MAX_LANES];
    uint16_t mask = (uint16_t)((1u << width) - 1);
    memcpy(packed, plane, plane_bytes(lanes * PLANE_ROWS, width));
    if (plane_take_usual(words, packed, lanes, shift, width))
        return;
    for (int row = 0; row < PLANE_ROWS && width; row++) {
        struct plane_place at = plane_place_of(row, width);
        const uint16_t *from = packed + at.word * lanes;
        uint16_t *to = words + (size_t)row * lanes;
        plane_take_row(to, from, lanes, shift, at.bit, mask);
        if (at.bit + width > 16)
            plane_take_rest(to, from + lanes, lanes, shift, 16 - at.bit, mask);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rotation of quantize.h: signs, then the Walsh-Hadamard transform in place, log2
 * of the size stages of sums and differences at distances 1, 2, 4, ... Its matrix is
 * symmetric and orthogonal, so it undoes itself. Each element goes through the same
 * additions in the same order, whichever loop below computes a stage.
 */
#include <string.h>

#include "base/random.h"
#include "kernels/loops.h"
#include "kernels/codec/quantize.h"

enum { ROTATE_TILE = 64 };

/* out may be in. A sign is the top bit of a product, which depends on all bits of the
 * other. */
CLONES static void rotate_signs(float *out, const float *in, uint32_t count,
                                uint64_t seed)
{
    uint64_t key = splitmix_at(seed, 1);
    uint32_t first = (uint32_t)key, second = (uint32_t)(key >> 32) | 1;
    INDEPENDENT
    for (uint32_t i = 0; i < count; i++) {
        uint32_t h = i * 0x9e3779b9u + first, bits;
        h = (h ^ h >> 15) * second;
        h = (h ^ h >> 16) * 0x7feb352du;
        memcpy(&bits, in + i, sizeof bits);
        bits ^= h & 0x80000000u;
        memcpy(out + i, &bits, sizeof bits);
    }
}

/* One stage. */
static inline void rotate_stage(float *x, size_t count, size_t stride)
{
    for (size_t begin = 0; begin < count; begin += 2 * stride) {
        float *restrict a = x + begin, *restrict b = a + stride;
        for (size_t i = 0; i < stride; i++) {
            float sum = a[i] + b[i], difference = a[i] - b[i];
            a[i] = sum;
            b[i] = difference;
        }
    }
}

/* Two stages, at distances `stride` and 2 `stride`. */
static inline void rotate_two_stages(float *x, size_t count, size_t stride)
{
    for (size_t begin = 0; begin < count; begin += 4 * stride) {
        float *restrict at = x + begin;
        for (size_t i = 0; i < stride; i++) {
            float a = at[i], b = at[i + stride];
            float c = at[i + 2 * stride], d = at[i + 3 * stride];
            float ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
            at[i] = ab + cd;
            at[i + stride] = a_b + c_d;
            at[i + 2 * stride] = ab - cd;
            at[i + 3 * stride] = a_b - c_d;
        }
    }
}

/* Two stages of neighbors: the bits of an index move down by two places, and the two
 * that were combined come to the top. So the next call combines the next two bits, and
 * three calls put a tile back in order. Loops over neighbors vectorize in this form. */
static inline void rotate_neighbors(float *restrict out, const float *restrict in)
{
    enum { QUARTER = ROTATE_TILE / 4 };
    for (size_t i = 0; i < QUARTER; i++) {
        float a = in[4 * i], b = in[4 * i + 1], c = in[4 * i + 2], d = in[4 * i + 3];
        float ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
        out[i] = ab + cd;
        out[i + QUARTER] = a_b + c_d;
        out[i + 2 * QUARTER] = ab - cd;
        out[i + 3 * QUARTER] = a_b - c_d;
    }
}

/* 1 / sqrt(count) for a power of two, correctly rounded. */
static float rotate_norm(size_t count)
{
    float factor = 1;
    for (; count >= 4; count /= 4)
        factor /= 2;
    return count == 2 ? factor * 0x1.6a09e6p-1f : factor;
}

/* The transform of a power of two. */
CLONES_V4 static void rotate_part(float *x, size_t count)
{
    float once[ROTATE_TILE], twice[ROTATE_TILE];
    size_t stride = 1;
    if (count >= ROTATE_TILE) {
        for (size_t begin = 0; begin < count; begin += ROTATE_TILE) {
            rotate_neighbors(once, x + begin);
            rotate_neighbors(twice, once);
            rotate_neighbors(x + begin, twice);
        }
        stride = ROTATE_TILE;
    }
    for (; 4 * stride <= count; stride *= 4)
        rotate_two_stages(x, count, stride);
    if (stride < count)
        rotate_stage(x, count, stride);
    float norm = rotate_norm(count);
    for (size_t i = 0; i < count; i++)
        x[i] *= norm;
}

/* Part by part, each the largest power of two that is left. */
static void rotate_parts(float *x, size_t count)
{
    for (size_t part = LATTICE_BLOCK; part; part /= 2)
        if (count & part) {
            rotate_part(x, part);
            x += part;
        }
}

void lattice_rotate(float *out, const float *in, size_t count, uint64_t seed)
{
    rotate_signs(out, in, (uint32_t)count, seed);
    rotate_parts(out, count);
}

void lattice_rotate_back(float *x, size_t count, uint64_t seed)
{
    rotate_parts(x, count);
    rotate_signs(x, x, (uint32_t)count, seed);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rotation of quantize.h: signs, then the Walsh-Hadamard transform in place, log2
 * of the size stages of sums and differences. Its matrix is symmetric and orthogonal,
 * so it undoes itself.
 */
#include <string.h>

#include "base/random.h"
#include "kernels/loops.h"
#include "kernels/codec/quantize.h"

/* A sign is the top bit of a product, which depends on all bits of the other. */
CLONES static void change_signs(float *x, uint32_t count, uint64_t seed)
{
    uint64_t key = splitmix_at(seed, 1);
    uint32_t first = (uint32_t)key, second = (uint32_t)(key >> 32) | 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t h = i * 0x9e3779b9u + first, bits;
        h = (h ^ h >> 15) * second;
        h = (h ^ h >> 16) * 0x7feb352du;
        memcpy(&bits, x + i, sizeof bits);
        bits ^= h & 0x80000000u;
        memcpy(x + i, &bits, sizeof bits);
    }
}

CLONES static void stage(float *x, size_t count, size_t stride)
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

/* The first four stages: within 16 neighbors, as a column of a small matrix, so that
 * the loops run over 16 columns at once. */
CLONES static void first_stages(float *x, size_t count)
{
    float t[16][16];
    for (size_t begin = 0; begin + 256 <= count; begin += 256) {
        float *tile = x + begin;
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++)
                t[j][i] = tile[16 * i + j];
        for (int stride = 1; stride < 16; stride *= 2)
            for (int row = 0; row < 16; row++)
                if (!(row & stride))
                    for (int i = 0; i < 16; i++) {
                        float a = t[row][i], b = t[row + stride][i];
                        t[row][i] = a + b;
                        t[row + stride][i] = a - b;
                    }
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++)
                tile[16 * i + j] = t[j][i];
    }
}

CLONES static void scale(float *x, size_t count, float factor)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= factor;
}

/* 1 / sqrt(count) for a power of two, correctly rounded. */
static float norm_of(size_t count)
{
    float factor = 1;
    for (; count >= 4; count /= 4)
        factor /= 2;
    return count == 2 ? factor * 0x1.6a09e6p-1f : factor;
}

static void hadamard(float *x, size_t count)
{
    size_t done = count >= 256 ? 16 : 1;
    if (done > 1)
        first_stages(x, count);
    for (size_t stride = done; stride < count; stride *= 2)
        stage(x, count, stride);
    scale(x, count, norm_of(count));
}

/* Part by part, each the largest power of two that is left. */
static void hadamards(float *x, size_t count)
{
    for (size_t part = LATTICE_BLOCK; part; part /= 2)
        if (count & part) {
            hadamard(x, part);
            x += part;
        }
}

void lattice_rotate(float *x, size_t count, uint64_t seed)
{
    change_signs(x, (uint32_t)count, seed);
    hadamards(x, count);
}

void lattice_rotate_back(float *x, size_t count, uint64_t seed)
{
    hadamards(x, count);
    change_signs(x, (uint32_t)count, seed);
}

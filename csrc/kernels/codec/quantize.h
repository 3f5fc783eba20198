/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lattice quantization against a key (Davies et al.; SwarmSGD, section 2): what is lost
 * depends on how far the reader's key is from the vector, not on how long the vector
 * is.
 *
 * One block: count <= LATTICE_BLOCK elements of float32 with a step s of their own.
 * With u uniform in [0, 1), drawn for each element from (seed, index), and q = 2^bits:
 *
 *   encode    z = round(x / s + u), of which z mod q is written
 *   decode    z = the integer congruent to that nearest to key / s + u
 *             out = (z - u) s
 *
 * Right whenever |x - key| < s (q - 1) / 2 for every element, by lattice_step. Then out
 * is x to within s / 2, and to within rounding of floats: |out - x| <= s / 2 + 2^-21
 * max|x|, and its mean over the seeds is x.
 *
 * Nested: z mod 2^16 is written as two planes, the low `bits` and the 16 - bits above
 * them. A reader whose key turns out to be too far for the low plane adds the high one
 * and decodes with q = 2^16; step, seed and hash stay.
 *
 * Wrong decodes are detected. The hash is a function of seed, step, count and bits plus
 * the sum of (z_i + k_i)(z_j + k_j) over pairs i, j of elements, mod 2^64: each factor
 * mod 2^32, z whole (not mod q), k_i 32 bits of the generator. That is the hash NH of
 * UMAC (Black et al. 1999): two different blocks z have the same one with probability
 * 2^-32 at most if the k_i are uniform and independent, whatever the difference is. So
 * that errors are multiples of q does not matter, as it would to a sum mod 2^32. Ours
 * are pseudo-random, so it is measured as well: no miss in the millions of trials of
 * the tests. The same holds for flipped bits of a plane; those that fill its last words
 * have to be 0.
 *
 * The same bits on every processor: IEEE operations in the order written, none fused.
 * Rounding is to the nearest even, the mode that C starts in.
 *
 * Pure: no allocation, no I/O. Pointers to planes need no alignment.
 */
#ifndef PCOLL_KERNELS_CODEC_QUANTIZE_H
#define PCOLL_KERNELS_CODEC_QUANTIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LATTICE_BLOCK = 1024, LATTICE_LEAST_BITS = 2, LATTICE_MAX_BITS = 16 };

/* Bytes of the planes of a block; 0 for the high one with 16 bits. Elements go in units
 * of 16, so a block of any other count is rounded up. */
size_t lattice_low_bytes(size_t count, int bits);
size_t lattice_high_bytes(size_t count, int bits);

/* The seed of a block of a message: blocks have to differ in it. */
uint64_t lattice_block_seed(uint64_t seed, uint64_t block);

/* max|x - key| and max|x| in one pass; key NULL: 0. NaN or infinite if any element, or
 * a difference, is; 0 for no elements. */
void lattice_distance(const float *x, const float *key, size_t count, float *distance,
                      float *magnitude);

/*
 * The least step with which keys up to `distance` away (max norm) decode for certain,
 * for elements up to `magnitude`; never below magnitude / 2^20, eight spacings of
 * floats or more, so that |z| stays below 2^22, nor below 2^-100. 0 if both are 0: such
 * a block is 0 everywhere and decodes to 0 with every key. NaN: cannot be encoded, send
 * it raw. That is so if either is not finite, or so large (about 2^126, rotated
 * LATTICE_ROTATED_MAX) that the arithmetic would leave the range of float: the rotation
 * back adds up as many elements as a block has before it scales.
 */
#define LATTICE_ROTATED_MAX (0x1p127 / LATTICE_BLOCK)
float lattice_step(float distance, float magnitude, int bits, bool rotated);

/* Write the low plane, and the high one unless it is NULL; the hash. x is finite, and
 * step is what lattice_step gives for its magnitude, or larger. */
uint64_t lattice_encode(const float *x, size_t count, float step, uint64_t seed,
                        int bits, void *low, void *high);

/* Decode with the low plane, and the high one unless it is NULL. False: the key is too
 * far (or no number), or what is read is not what was written; out means nothing then.
 * out may be key; key NULL: 0. Any bytes at all are safe to hand in. */
bool lattice_decode(float *out, const float *key, size_t count, float step,
                    uint64_t seed, int bits, const void *low, const void *high,
                    uint64_t hash);

/*
 * Rotation of a block: signs from the seed, then Hadamard, orthonormal. Spreads an
 * outlier over the block. Where count is no power of two, the parts of it that are
 * (1000: 512, 256, 128, 64, 32, 8) are rotated one by one. The inverse undoes it up to
 * rounding, in place. out may be in.
 */
void lattice_rotate(float *out, const float *in, size_t count, uint64_t seed);
void lattice_rotate_back(float *x, size_t count, uint64_t seed);

/*
 * Words of 16 bits cut into planes: a plane holds `width` bits of every word. It is
 * laid out for loops that vectorize whatever the width: the words are 16 rows of as
 * many lanes as it takes, and each lane packs its own 16 words into `width` of them,
 * the first in the lowest bits. So a plane has 16 times lanes times width bits, in
 * units of 16 bits in the processor's byte order.
 */

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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lattice quantization against a key (Davies et al.; SwarmSGD, section 2). The error depends
 * on the distance of the reader's key from the vector, not on the length of the vector.
 *
 * A block is count <= LATTICE_BLOCK elements of float32 with a step s. u is uniform in
 * [0, 1) and drawn for each element from (seed, index); q = 2^bits:
 *
 *   encode    z = round(x / s + u); z mod q is written
 *   decode    z = the integer congruent to that which is nearest to key / s + u
 *             out = (z - u) s
 *
 * The decoder finds the right z if |x - key| < s (q - 1) / 2 for every element, which
 * lattice_step ensures. Then |out - x| <= s / 2 + 2^-21 max|x| (the second term is rounding),
 * and the mean of out over the seeds is x.
 *
 * Nested planes: z mod 2^16 is written as two planes, the low `bits` bits and the 16 - bits
 * bits above them. A reader whose key is too far for the low plane adds the high plane and
 * decodes with q = 2^16. Step, seed and hash are the same.
 *
 * Wrong decodes are detected by a hash. The hash is a function of seed, step, count and bits
 * plus the sum of (z_i + k_i)(z_j + k_j) over pairs i, j of elements, mod 2^64. Each factor is
 * taken mod 2^32, z is whole (not mod q), and k_i is 32 bits of the generator. This is the hash
 * NH of UMAC (Black et al. 1999): two different blocks z have the same hash with probability
 * at most 2^-32 if the k_i are uniform and independent, whatever the difference is. So the
 * errors may be multiples of q, which a sum mod 2^32 would not detect. The k_i here are only
 * pseudo-random; in the millions of trials of the tests no wrong decode was missed. The hash
 * detects flipped bits of a plane as well. Bits that pad a plane's last words must be 0.
 *
 * Every processor computes the same bits: IEEE operations in the order written, none fused.
 * Rounding is to the nearest even, the mode in which C starts.
 *
 * Pure: no allocation, no I/O. Pointers to planes need no alignment.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/reduce.h"

enum { LATTICE_BLOCK = 1024, LATTICE_LEAST_BITS = 2, LATTICE_MAX_BITS = 16 };

/* Conversions between the elements of a dtype and a block of float32. */
struct lattice_elements {
    size_t size; /* bytes of an element */
    convert_fn *widen, *narrow;
};
struct lattice_elements lattice_form_of(int dtype);
/* Return the elements of a block (NULL: 0) in the form in which it is encoded, rotated or not: in
 * `room`, or in place if they have that form. */
const float *lattice_load(int dtype, bool rotate, const void *elements, size_t count,
                          uint64_t seed, float *room);

/* Compute max|x - key| and max|x| in one pass; key NULL counts as 0. The result is NaN or
 * infinite if an element or a difference is, and 0 without elements. */
void lattice_distance(const float *x, const float *key, size_t count, float *distance,
                      float *magnitude);

/* Return the least step with which every key up to `distance` away (max norm) decodes, for
 * elements up to `magnitude`. The step is at least magnitude / 2^20 (eight spacings of floats or
 * more), so that |z| stays below 2^22, and at least 2^-100. 0 if both arguments are 0: the block
 * is 0 everywhere and decodes to 0 with every key. NaN if the block cannot be encoded and has to
 * be sent raw: an argument is not finite, or is so large (about 2^126, or LATTICE_ROTATED_MAX if
 * rotated) that the arithmetic would leave the range of float. The inverse rotation adds up all
 * elements of a block before it scales. */
#define LATTICE_ROTATED_MAX (0x1p127 / LATTICE_BLOCK)
float lattice_step(float distance, float magnitude, int bits, bool rotated);

/* Write the low plane, and the high plane unless it is NULL. Returns the hash. x must be finite,
 * and step at least that of lattice_step for the magnitude of x. */
uint64_t lattice_encode(const float *x, size_t count, float step, uint64_t seed,
                        int bits, void *low, void *high);

/* Decode with the low plane, and with the high plane unless it is NULL. Returns false if the key
 * is too far away (or not a number), or if the bytes are not those that were written; out is
 * undefined then. out may be key; key NULL counts as 0. Any bytes are safe. */
bool lattice_decode(float *out, const float *key, size_t count, float step,
                    uint64_t seed, int bits, const void *low, const void *high,
                    uint64_t hash);

/* Rotate a block: signs from the seed, then an orthonormal Hadamard transform, which spreads an
 * outlier over the block. If count is not a power of two, its binary parts (1000: 512, 256, 128,
 * 64, 32, 8) are rotated one by one. The inverse is exact up to rounding. out may be in. */
void lattice_rotate(float *out, const float *in, size_t count, uint64_t seed);
void lattice_rotate_back(float *out, const float *in, size_t count, uint64_t seed);

/*
 * Planes: `width` bits of every 16-bit word. The layout suits loops that vectorize for every
 * width. The words form 16 rows of `lanes` lanes, and each lane packs its 16 words into `width`
 * words, the first word in the lowest bits. So a plane has 16 x lanes x width bits, in units of
 * 16 bits in the processor's byte order.
 */

enum { PLANE_ROWS = 16, PLANE_MAX_LANES = 64 };

/* Return the number of lanes of a plane of `count` words. */
static inline size_t plane_lanes(size_t count)
{
    return (count + PLANE_ROWS - 1) / PLANE_ROWS;
}

/* The low plane of a block has `bits` bits, the high one LATTICE_MAX_BITS - bits. */
static inline size_t plane_bytes(size_t count, int width)
{
    return plane_lanes(count) * (size_t)width * sizeof(uint16_t);
}

/* Write bits [shift, shift + width) of each of 16 x lanes words; 0 <= width <= 16. */
void plane_pack(void *plane, const uint16_t *words, size_t lanes, int shift, int width);

/* Set the words from a plane (shift 0), or add the bits of another plane (|=). */
void plane_unpack(uint16_t *words, const void *plane, size_t lanes, int shift,
                  int width);

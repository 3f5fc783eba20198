/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See quantize.h. Each pass over a block is one loop without branches: the integers are
 * computed into 16-bit words on the stack, which planes.c cuts into planes.
 */
#include "kernels/codec/quantize.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "kernels/loops.h"
#include "kernels/codec/planes.h"

static inline float lattice_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t lattice_as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/*
 * Random numbers of (seed, index): 32-bit multiplications and shifts, as in murmur3's
 * finalizer, with keys before each half. The first half is what the hash is keyed with,
 * both give the dither.
 */
struct lattice_keys {
    uint32_t first, second;
};

static struct lattice_keys lattice_keys_of(uint64_t seed)
{
    uint64_t a = splitmix_at(seed, 0);
    return (struct lattice_keys){(uint32_t)a, (uint32_t)(a >> 32)};
}

/* Of an index: lattice_counter_of, which loops count up by `golden`, without multiplying. */
static const uint32_t golden = 0x9e3779b9u;

static inline uint32_t lattice_counter_of(uint32_t index, struct lattice_keys k)
{
    return index * golden + k.first;
}

static inline uint32_t lattice_first_half(uint32_t counter)
{
    uint32_t h = (counter ^ counter >> 16) * 0x7feb352du;
    return h ^ h >> 15;
}

/* Uniform in [1, 2), a multiple of 2^-23: what does for [0, 1) does for it as well. */
static inline float lattice_dither_of(uint32_t half, struct lattice_keys k)
{
    return lattice_as_float(0x3f800000u | ((half ^ k.second) * 0x846ca68bu) >> 9);
}

/* To the nearest integer, ties to even, mod 2^32, for |value| < 2^22; any number at all
 * for others. No conversion: that of a NaN or of a large number is undefined. */
static inline uint32_t lattice_round(float value)
{
    const float unit = 0x1.8p23f; /* here floats are one apart */
    return lattice_as_bits(value + unit) - lattice_as_bits(unit);
}

/* Sizes. */

size_t lattice_low_bytes(size_t count, int bits)
{
    return plane_bytes(count, bits);
}

size_t lattice_high_bytes(size_t count, int bits)
{
    return plane_bytes(count, LATTICE_MAX_BITS - bits);
}

uint64_t lattice_block_seed(uint64_t seed, uint64_t block)
{
    return splitmix_at(seed, block);
}

/* Distances. */

/* Floats without sign are ordered as their bits are, and NaN is above all. */
CLONES_V4 static uint32_t lattice_largest(const float *x, size_t count)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t size = lattice_as_bits(x[i]) & 0x7fffffff;
        most = size > most ? size : most;
    }
    return most;
}

CLONES_V4 static uint32_t lattice_furthest(const float *x, const float *key,
                                           size_t count, uint32_t *magnitude)
{
    uint32_t most = 0, far = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t size = lattice_as_bits(x[i]) & 0x7fffffff;
        uint32_t away = lattice_as_bits(x[i] - key[i]) & 0x7fffffff;
        most = size > most ? size : most;
        far = away > far ? away : far;
    }
    *magnitude = most;
    return far;
}

void lattice_distance(const float *x, const float *key, size_t count, float *distance,
                      float *magnitude)
{
    uint32_t most;
    uint32_t far;
    if (key)
        far = lattice_furthest(x, key, count, &most);
    else
        far = most = lattice_largest(x, count);
    *distance = lattice_as_float(far);
    *magnitude = lattice_as_float(most);
}

/*
 * With D = |x - key| / s: decode is right if D + (error of the two quotients) <
 * (q-1)/2. A quotient plus dither is off by 3 roundings, 2^-24 each, of x / s (key /
 * s), whose sum is below 2 magnitude / s + D: 6 x 2^-24 magnitude / s is what 2^-21 is
 * for. The rest, and the rounding of distance and step themselves, is below 2^-20 of
 * the whole.
 */
float lattice_step(float distance, float magnitude, int bits, bool rotated)
{
    if (distance == 0 && magnitude == 0)
        return 0;
    double d = distance, m = magnitude;
    double step = 2 * (d + 0x1p-21 * m) / ((1 << bits) - 1) * (1 + 0x1p-20);
    step = fmax(step, fmax(0x1p-20 * m, 0x1p-100));
    /* Also where one of them is NaN, which fmax passes over. */
    double largest = rotated ? LATTICE_ROTATED_MAX : 0x1p127;
    bool fits = d >= 0 && m >= 0 && step <= largest / 4 && m + d + step <= largest;
    return fits ? (float)step : NAN;
}

/* Encode and decode. */

static uint64_t lattice_begin_hash(size_t count, float step, uint64_t seed, int bits)
{
    uint64_t shape =
        (uint64_t)count << 40 | (uint64_t)bits << 32 | lattice_as_bits(step);
    return splitmix_at(seed ^ shape, 2);
}

/* 1 / 0 would make NaNs; with 0 all that is encoded is the dither. */
static float lattice_inverse_of(float step)
{
    return step > 0 ? 1 / step : 0;
}

/* What does not depend on the element. */
struct lattice {
    float step, inverse;
    uint32_t q;
    struct lattice_keys k;
};

/*
 * The sum of products of the hash. Element i of the first half is multiplied with
 * element i of the second half. Two neighbors are one number of 64 bits, so that their
 * halves are multiplied without being moved; the order of the two does not matter. The
 * partner of an odd element is the number that would be next, with z = 0.
 */
CLONES_V4 static uint64_t lattice_hash_pairs(const uint32_t *keyed, uint32_t count)
{
    uint32_t pairs = count / 2, twos = pairs / 2;
    const uint32_t *second = keyed + pairs;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < twos; i++) {
        uint64_t a, b;
        memcpy(&a, keyed + 2 * i, sizeof a);
        memcpy(&b, second + 2 * i, sizeof b);
        sum += (a & UINT32_MAX) * (b & UINT32_MAX) + (a >> 32) * (b >> 32);
    }
    if (pairs % 2)
        sum += (uint64_t)keyed[pairs - 1] * second[pairs - 1];
    if (count % 2)
        sum += (uint64_t)keyed[count - 1] * keyed[count];
    return sum;
}

/* keyed[i] = z + k_i, and one more with z = 0. */
CLONES_V4 static void lattice_quantize(uint16_t *restrict words,
                                       uint32_t *restrict keyed,
                                       const float *restrict x, uint32_t count,
                                       const struct lattice *lattice)
{
    const struct lattice l = *lattice;
    uint32_t counter = lattice_counter_of(0, l.k);
    for (uint32_t i = 0; i < count; i++, counter += golden) {
        uint32_t half = lattice_first_half(counter);
        uint32_t z = lattice_round(x[i] * l.inverse + lattice_dither_of(half, l.k));
        words[i] = (uint16_t)z;
        keyed[i] = z + half;
    }
    keyed[count] = lattice_first_half(counter);
}

/*
 * The candidate z lies in [first, first + q), which is centered on key / s + u: z is
 * within q / 2 of it then. Rounded is key / s + u - 1/2, which is floor but for ties.
 */
CLONES_V4 static void lattice_reconstruct(float *out, uint32_t *restrict keyed,
                                          const float *key,
                                          const uint16_t *restrict words,
                                          uint32_t count, const struct lattice *lattice)
{
    const struct lattice l = *lattice;
    uint32_t counter = lattice_counter_of(0, l.k);
    INDEPENDENT
    for (uint32_t i = 0; i < count; i++) {
        uint32_t half = lattice_first_half(counter);
        float u = lattice_dither_of(half, l.k);
        uint32_t first = lattice_round(key[i] * l.inverse + (u - 0.5f)) + 1 - l.q / 2;
        uint32_t z = first + ((words[i] - first) & (l.q - 1));
        out[i] = ((float)(int32_t)z - u) * l.step;
        keyed[i] = z + half;
        counter += golden;
    }
    keyed[count] = lattice_first_half(counter);
}

uint64_t lattice_encode(const float *x, size_t count, float step, uint64_t seed,
                        int bits, void *low, void *high)
{
    uint16_t words[LATTICE_BLOCK];
    uint32_t keyed[LATTICE_BLOCK + 1];
    size_t lanes = plane_lanes(count);
    struct lattice l = {.inverse = lattice_inverse_of(step),
                        .k = lattice_keys_of(seed)};
    lattice_quantize(words, keyed, x, (uint32_t)count, &l);
    memset(words + count, 0, (lanes * PLANE_ROWS - count) * sizeof *words);
    plane_pack(low, words, lanes, 0, bits);
    if (high)
        plane_pack(high, words, lanes, bits, LATTICE_MAX_BITS - bits);
    return lattice_begin_hash(count, step, seed, bits) +
           lattice_hash_pairs(keyed, (uint32_t)count);
}

static bool lattice_all_zero(const uint16_t *words, size_t count)
{
    uint16_t any = 0;
    for (size_t i = 0; i < count; i++)
        any |= words[i];
    return !any;
}

bool lattice_decode(float *out, const float *key, size_t count, float step,
                    uint64_t seed, int bits, const void *low, const void *high,
                    uint64_t hash)
{
    static const float zeros[LATTICE_BLOCK];
    uint16_t words[LATTICE_BLOCK] = {0};
    size_t lanes = plane_lanes(count);
    plane_unpack(words, low, lanes, 0, bits);
    if (high)
        plane_unpack(words, high, lanes, bits, LATTICE_MAX_BITS - bits);
    struct lattice l = {.step = step,
                        .inverse = lattice_inverse_of(step),
                        .q = 1u << (high ? LATTICE_MAX_BITS : bits),
                        .k = lattice_keys_of(seed)};
    uint32_t keyed[LATTICE_BLOCK + 1];
    lattice_reconstruct(out, keyed, key ? key : zeros, words, (uint32_t)count, &l);
    uint64_t sum = lattice_hash_pairs(keyed, (uint32_t)count);
    if (step == 0)
        memset(out, 0, count * sizeof *out); /* no -0 */
    return lattice_begin_hash(count, step, seed, bits) + sum == hash &&
           lattice_all_zero(words + count, lanes * PLANE_ROWS - count);
}

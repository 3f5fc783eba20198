/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lattice quantization; see quantize.h. Each pass over a block is one loop without branches. The
 * integers are computed into 16-bit words on the stack, which are then cut into planes.
 */
#include "kernels/codec/quantize.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "kernels/loops.h"

/* Planes. The loops run over lanes; the row is constant in each loop. */

/* Move the bits of a row to or from the word in which it begins (_row), or those that did not fit
 * to or from the next one (_rest). */
#define PLANE_MOVE(name, moved)                                                        \
    CLONES_V4 static void name(uint16_t *restrict to, const uint16_t *restrict from,   \
                               size_t lanes, int shift, int bit, uint16_t mask)        \
    {                                                                                  \
        for (size_t i = 0; i < lanes; i++)                                             \
            to[i] |= (uint16_t)(moved);                                                \
    }
PLANE_MOVE(plane_put_row, (from[i] >> shift & mask) << bit)
PLANE_MOVE(plane_put_rest, (from[i] >> shift & mask) >> bit)
PLANE_MOVE(plane_take_row, (from[i] >> bit & mask) << shift)
PLANE_MOVE(plane_take_rest, (from[i] << bit & mask) << shift)

/* A word of a plane in a payload. */
typedef uint16_t plane_word __attribute__((aligned(1), may_alias));

/* The usual planes have 4, 8 or 16 bits: 16 / width rows of words make one row of the plane, and
 * no word is divided. Shifts are by constants, so that gcc uses 16-bit lanes. */
static inline void plane_put_whole(plane_word *restrict plane,
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
                                    const plane_word *restrict plane, size_t lanes,
                                    const int shift, const int width)
{
    const int rows = 16 / width;
    for (int word = 0; word < width; word++, plane += lanes)
        for (int row = 0; row < rows; row++)
            for (size_t i = 0; i < lanes; i++) {
                uint16_t cut = (uint16_t)(plane[i] >> row * width);
                cut &= (uint16_t)((1u << width) - 1);
                *words = (uint16_t)((shift ? *words : 0) | cut << shift);
                words++;
            }
}

/* Pack or unpack the plane if it is one of the usual ones. Returns whether it is. */
#define PLANE_USUAL(name, to_word, from_word, whole)                                   \
    CLONES_V4 static bool name(to_word *to, const from_word *from, size_t lanes,       \
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

PLANE_USUAL(plane_put_usual, plane_word, uint16_t, plane_put_whole)
PLANE_USUAL(plane_take_usual, uint16_t, plane_word, plane_take_whole)

void plane_pack(void *plane, const uint16_t *words, size_t lanes, int shift, int width)
{
    _Alignas(64) uint16_t packed[PLANE_ROWS * PLANE_MAX_LANES];
    uint16_t mask = (uint16_t)((1u << width) - 1);
    size_t bytes = plane_bytes(lanes * PLANE_ROWS, width);
    if (plane_put_usual(plane, words, lanes, shift, width))
        return;
    memset(packed, 0, bytes);
    for (int row = 0; row < PLANE_ROWS && width; row++) {
        int at = row * width, bit = at % 16;
        const uint16_t *from = words + (size_t)row * lanes;
        uint16_t *to = packed + (size_t)(at / 16) * lanes;
        plane_put_row(to, from, lanes, shift, bit, mask);
        if (bit + width > 16)
            plane_put_rest(to + lanes, from, lanes, shift, 16 - bit, mask);
    }
    memcpy(plane, packed, bytes);
}

void plane_unpack(uint16_t *words, const void *plane, size_t lanes, int shift,
                  int width)
{
    _Alignas(64) uint16_t packed[PLANE_ROWS * PLANE_MAX_LANES];
    uint16_t mask = (uint16_t)((1u << width) - 1);
    if (plane_take_usual(words, plane, lanes, shift, width))
        return;
    memcpy(packed, plane, plane_bytes(lanes * PLANE_ROWS, width));
    if (!shift)
        memset(words, 0, lanes * PLANE_ROWS * sizeof *words);
    for (int row = 0; row < PLANE_ROWS && width; row++) {
        int at = row * width, bit = at % 16;
        const uint16_t *from = packed + (size_t)(at / 16) * lanes;
        uint16_t *to = words + (size_t)row * lanes;
        plane_take_row(to, from, lanes, shift, bit, mask);
        if (bit + width > 16)
            plane_take_rest(to, from + lanes, lanes, shift, 16 - bit, mask);
    }
}

/* The lattice. */

/* Random numbers from (seed, index): two halves of 32-bit multiplications and shifts, as in
 * murmur3's finalizer, with a key before each half. The first half keys the hash; both halves
 * together give the dither. The counter of an index is the first key + index * golden. */
static const uint32_t golden = 0x9e3779b9u;

static inline uint32_t lattice_first_half(uint32_t counter)
{
    uint32_t h = (counter ^ counter >> 16) * 0x7feb352du;
    return h ^ h >> 15;
}

/* Return a number that is uniform in [1, 2), a multiple of 2^-23. The interval works as well as
 * [0, 1). */
static inline float lattice_dither_of(uint32_t half, uint32_t key)
{
    return float_of_bits(0x3f800000u | ((half ^ key) * 0x846ca68bu) >> 9);
}

/* Round to the nearest integer, ties to even, mod 2^32, if |value| < 2^22; otherwise return any
 * number. A conversion would be undefined for a NaN or a large number. */
static inline uint32_t lattice_round(float value)
{
    const float unit = 0x1.8p23f; /* here floats are one apart */
    return bits_of_float(value + unit) - bits_of_float(unit);
}

/* Distances. */

static const float zeros[LATTICE_BLOCK]; /* the key, if there is none */

/* Floats without sign are ordered like their bits, and NaN is the largest. */
CLONES_V4 static void lattice_furthest(const float *x, const float *key, size_t count,
                                       float *distance, float *magnitude)
{
    uint32_t most = 0, far = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t size = bits_of_float(x[i]) & 0x7fffffff;
        uint32_t away = bits_of_float(x[i] - key[i]) & 0x7fffffff;
        most = size > most ? size : most;
        far = away > far ? away : far;
    }
    *distance = float_of_bits(far);
    *magnitude = float_of_bits(most);
}

/* Return max|x|. */
CLONES_V4 static float lattice_largest(const float *x, size_t count)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t size = bits_of_float(x[i]) & 0x7fffffff;
        most = size > most ? size : most;
    }
    return float_of_bits(most);
}

void lattice_distance(const float *x, const float *key, size_t count, float *distance,
                      float *magnitude)
{
    if (key)
        lattice_furthest(x, key, count, distance, magnitude);
    else
        *distance = *magnitude = lattice_largest(x, count);
}

/* Let D = |x - key| / s. Decoding is right if D + (error of the two quotients) < (q - 1) / 2. A
 * quotient plus dither has an error of 3 roundings, 2^-24 each, of x / s (or key / s); the sum of
 * the two quotients is below 2 magnitude / s + D. The term with 2^-21 covers 6 x 2^-24 magnitude /
 * s. The rest, and the rounding of distance and step, is below 2^-20 of the whole. */
float lattice_step(float distance, float magnitude, int bits, bool rotated)
{
    if (distance == 0 && magnitude == 0)
        return 0;
    double d = distance, m = magnitude;
    double step = 2 * (d + 0x1p-21 * m) / ((1 << bits) - 1) * (1 + 0x1p-20);
    step = fmax(step, fmax(0x1p-20 * m, 0x1p-100));
    /* These comparisons are false for NaN, too, which fmax ignores. */
    double largest = rotated ? LATTICE_ROTATED_MAX : 0x1p127;
    bool fits = d >= 0 && m >= 0 && step <= largest / 4 && m + d + step <= largest;
    return fits ? (float)step : NAN;
}

/* Encode and decode. */

static uint64_t lattice_begin_hash(size_t count, float step, uint64_t seed, int bits)
{
    uint64_t shape = (uint64_t)count << 40 | (uint64_t)bits << 32 | bits_of_float(step);
    return splitmix_at(seed ^ shape, 2);
}

/* Values that do not depend on the element. */
struct lattice {
    float step, inverse;
    uint32_t q;
    uint32_t first, second; /* keys */
};

static struct lattice lattice_of(float step, int bits, uint64_t seed)
{
    uint64_t keys = splitmix_at(seed, 0);
    return (struct lattice){
        .step = step,
        .inverse = step > 0 ? 1 / step : 0, /* 1 / 0 would make NaNs */
        .q = 1u << bits,
        .first = (uint32_t)keys,
        .second = (uint32_t)(keys >> 32),
    };
}

/* Return the sum of products of the hash. Element i of the first half is multiplied by element i
 * of the second half. Two neighbors are loaded as one 64-bit number, so that their halves are
 * multiplied without moving them; their order does not matter. The last element of an odd count is
 * multiplied by the next number of the generator, with z = 0. */
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

/* Set keyed[i] to z + k_i, and one more element with z = 0. */
CLONES_V4 static void lattice_quantize(uint16_t *restrict words,
                                       uint32_t *restrict keyed,
                                       const float *restrict x, uint32_t count,
                                       const struct lattice *lattice)
{
    const struct lattice l = *lattice;
    uint32_t counter = l.first;
    for (uint32_t i = 0; i < count; i++, counter += golden) {
        uint32_t half = lattice_first_half(counter);
        uint32_t z =
            lattice_round(x[i] * l.inverse + lattice_dither_of(half, l.second));
        words[i] = (uint16_t)z;
        keyed[i] = z + half;
    }
    keyed[count] = lattice_first_half(counter);
}

/* The candidate z is in [first, first + q), which is centered on key / s + u, so z is within q / 2
 * of it. Rounding key / s + u - 1/2 is floor(key / s + u) except for ties. */
CLONES_V4 static void lattice_reconstruct(float *out, uint32_t *restrict keyed,
                                          const float *key,
                                          const uint16_t *restrict words,
                                          uint32_t count, const struct lattice *lattice)
{
    const struct lattice l = *lattice;
    uint32_t counter = l.first;
    INDEPENDENT
    for (uint32_t i = 0; i < count; i++) {
        uint32_t half = lattice_first_half(counter);
        float u = lattice_dither_of(half, l.second);
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
    _Alignas(64) uint16_t words[LATTICE_BLOCK];
    _Alignas(64) uint32_t keyed[LATTICE_BLOCK + 1];
    size_t lanes = plane_lanes(count);
    struct lattice l = lattice_of(step, bits, seed);
    lattice_quantize(words, keyed, x, (uint32_t)count, &l);
    memset(words + count, 0, (lanes * PLANE_ROWS - count) * sizeof *words);
    plane_pack(low, words, lanes, 0, bits);
    if (high)
        plane_pack(high, words, lanes, bits, LATTICE_MAX_BITS - bits);
    return lattice_begin_hash(count, step, seed, bits) +
           lattice_hash_pairs(keyed, (uint32_t)count);
}

bool lattice_decode(float *out, const float *key, size_t count, float step,
                    uint64_t seed, int bits, const void *low, const void *high,
                    uint64_t hash)
{
    _Alignas(64) uint16_t words[LATTICE_BLOCK];
    size_t lanes = plane_lanes(count);
    plane_unpack(words, low, lanes, 0, bits);
    if (high)
        plane_unpack(words, high, lanes, bits, LATTICE_MAX_BITS - bits);
    struct lattice l = lattice_of(step, high ? LATTICE_MAX_BITS : bits, seed);
    _Alignas(64) uint32_t keyed[LATTICE_BLOCK + 1];
    lattice_reconstruct(out, keyed, key ? key : zeros, words, (uint32_t)count, &l);
    uint64_t sum = lattice_hash_pairs(keyed, (uint32_t)count);
    if (step == 0)
        memset(out, 0, count * sizeof *out); /* no -0 */
    uint16_t padding = 0;
    for (size_t i = count; i < lanes * PLANE_ROWS; i++)
        padding |= words[i];
    return lattice_begin_hash(count, step, seed, bits) + sum == hash && !padding;
}

/*
 * The rotation: signs, then the Walsh-Hadamard transform, log2(size) stages of sums and differences
 * at distances 1, 2, 4, ... Its matrix is symmetric and orthogonal, so the transform is its own
 * inverse. Each element gets the same additions in the same order, whichever loop below computes
 * a stage.
 *
 * A whole block passes through memory twice: tile by tile for the stages within a tile, then for
 * the stages between tiles. The signs are computed in the first pass, or in the last one of the
 * inverse. With AVX-512 the arrays of a tile remain in registers.
 */

enum { ROTATE_LANES = 16, ROTATE_TILE = 128, ROTATE_ROWS = 8 };
_Static_assert(LATTICE_BLOCK == ROTATE_ROWS * ROTATE_TILE,
               "a block has ROTATE_ROWS tiles");
_Static_assert(ROTATE_TILE == ROTATE_ROWS * ROTATE_LANES,
               "a tile has ROTATE_ROWS rows");

/* Values that do not depend on the element. */
struct rotation {
    uint32_t first, second; /* keys of the signs */
    uint32_t keep, flip;    /* bits to flip in a number that is added, or subtracted */
};

/* The bits are read at run time. If the compiler knew them, it would drop the operations that flip
 * nothing, and neighbors would no longer get the same operations, as lanes of vectors must. */
static const volatile uint32_t rotate_bits[] = {0, 0x80000000u};

static struct rotation rotation_of(uint64_t seed)
{
    uint64_t keys = splitmix_at(seed, 1);
    return (struct rotation){
        .first = (uint32_t)keys,
        .second = (uint32_t)(keys >> 32) | 1,
        .keep = rotate_bits[0],
        .flip = rotate_bits[1],
    };
}

static inline float rotate_flip(float value, uint32_t bits)
{
    return float_of_bits(bits_of_float(value) ^ bits);
}

/* Give a number its sign. `counter` is the first key + index * golden. The sign is the top bit of a
 * product: it depends on all bits of the factor. */
static inline float rotate_sign(float value, uint32_t counter, uint32_t second)
{
    uint32_t h = (counter ^ counter >> 15) * second;
    h = (h ^ h >> 16) * 0x7feb352du;
    return rotate_flip(value, h & 0x80000000u);
}

/* Compute the stage of a tile at a distance below ROTATE_LANES. Element and partner are added; in
 * the upper one of the two, the element is subtracted from its partner. */
INLINE void rotate_lanes(float *restrict out, const float *restrict in,
                         const size_t distance, const struct rotation *rotation)
{
    const struct rotation r = *rotation;
    for (size_t i = 0; i < ROTATE_TILE; i += ROTATE_LANES) {
        UNROLLED
        for (size_t lane = 0; lane < ROTATE_LANES; lane++)
            out[i + lane] =
                in[i + (lane ^ distance)] +
                rotate_flip(in[i + lane], lane & distance ? r.flip : r.keep);
    }
}

/* Compute the three stages of a column, which has one element of each row. */
INLINE void rotate_column(float *row)
{
    for (size_t i = 0; i < ROTATE_ROWS; i += 4) {
        float a = row[i], b = row[i + 1], c = row[i + 2], d = row[i + 3];
        float ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
        row[i] = ab + cd;
        row[i + 1] = a_b + c_d;
        row[i + 2] = ab - cd;
        row[i + 3] = a_b - c_d;
    }
    for (size_t i = 0; i < 4; i++) {
        float sum = row[i] + row[i + 4], difference = row[i] - row[i + 4];
        row[i] = sum;
        row[i + 4] = difference;
    }
}

/* Compute the stages within a tile; `once` is overwritten. */
INLINE void rotate_tile(float *out, float *restrict once, const struct rotation *r)
{
    float twice[ROTATE_TILE];
    rotate_lanes(twice, once, 1, r);
    rotate_lanes(once, twice, 2, r);
    rotate_lanes(twice, once, 4, r);
    rotate_lanes(once, twice, 8, r);
    INDEPENDENT
    for (size_t i = 0; i < ROTATE_LANES; i++) {
        float row[ROTATE_ROWS];
        for (size_t k = 0; k < ROTATE_ROWS; k++)
            row[k] = once[k * ROTATE_LANES + i];
        rotate_column(row);
        for (size_t k = 0; k < ROTATE_ROWS; k++)
            out[k * ROTATE_LANES + i] = row[k];
    }
}

/* Rotate a whole block, or rotate it back. out may be in. */
INLINE void rotate_block(float *out, const float *in, const struct rotation *rotation,
                         const bool back)
{
    const struct rotation r = *rotation;
    for (size_t begin = 0; begin < LATTICE_BLOCK; begin += ROTATE_TILE) {
        float tile[ROTATE_TILE];
        uint32_t counter = r.first + (uint32_t)begin * golden;
        for (size_t i = 0; i < ROTATE_TILE; i++)
            tile[i] = back ? in[begin + i]
                           : rotate_sign(in[begin + i], counter + (uint32_t)i * golden,
                                         r.second);
        rotate_tile(out + begin, tile, &r);
    }
    INDEPENDENT
    for (size_t i = 0; i < ROTATE_TILE; i++) {
        float row[ROTATE_ROWS];
        for (size_t k = 0; k < ROTATE_ROWS; k++)
            row[k] = out[k * ROTATE_TILE + i];
        rotate_column(row);
        for (size_t k = 0; k < ROTATE_ROWS; k++) {
            uint32_t counter = r.first + (uint32_t)(k * ROTATE_TILE) * golden;
            float scaled = row[k] * 0x1p-5f;
            out[k * ROTATE_TILE + i] =
                back ? rotate_sign(scaled, counter + (uint32_t)i * golden, r.second)
                     : scaled;
        }
    }
}

CLONES_V4 static void rotate_whole(float *out, const float *in,
                                   const struct rotation *r)
{
    rotate_block(out, in, r, false);
}

CLONES_V4 static void rotate_whole_back(float *out, const float *in,
                                        const struct rotation *r)
{
    rotate_block(out, in, r, true);
}

/* The last block of a vector may be shorter. */

CLONES static void rotate_signs(float *out, const float *in, uint32_t count,
                                const struct rotation *rotation)
{
    const struct rotation r = *rotation;
    INDEPENDENT
    for (uint32_t i = 0; i < count; i++)
        out[i] = rotate_sign(in[i], r.first + i * golden, r.second);
}

/* Transform a block whose size is a power of two. */
CLONES_V4 static void rotate_part(float *x, size_t count, const struct rotation *r)
{
    size_t stride = count < ROTATE_TILE ? 1 : ROTATE_TILE;
    for (size_t begin = 0; begin + ROTATE_TILE <= count; begin += ROTATE_TILE) {
        float tile[ROTATE_TILE];
        memcpy(tile, x + begin, sizeof tile);
        rotate_tile(x + begin, tile, r);
    }
    for (; stride < count; stride *= 2)
        for (size_t begin = 0; begin < count; begin += 2 * stride) {
            float *restrict a = x + begin, *restrict b = a + stride;
            for (size_t i = 0; i < stride; i++) {
                float sum = a[i] + b[i], difference = a[i] - b[i];
                a[i] = sum;
                b[i] = difference;
            }
        }
    float norm = 1; /* becomes 1 / sqrt(count), correctly rounded */
    size_t rest = count;
    for (; rest >= 4; rest /= 4)
        norm /= 2;
    if (rest == 2)
        norm *= 0x1.6a09e6p-1f;
    for (size_t i = 0; i < count; i++)
        x[i] *= norm;
}

/* Transform part by part, each the largest power of two that is left. */
static void rotate_parts(float *x, size_t count, const struct rotation *r)
{
    for (size_t part = LATTICE_BLOCK / 2; part; part /= 2)
        if (count & part) {
            rotate_part(x, part, r);
            x += part;
        }
}

void lattice_rotate(float *out, const float *in, size_t count, uint64_t seed)
{
    struct rotation r = rotation_of(seed);
    if (count == LATTICE_BLOCK) {
        rotate_whole(out, in, &r);
        return;
    }
    rotate_signs(out, in, (uint32_t)count, &r);
    rotate_parts(out, count, &r);
}

void lattice_rotate_back(float *out, const float *in, size_t count, uint64_t seed)
{
    struct rotation r = rotation_of(seed);
    if (count == LATTICE_BLOCK) {
        rotate_whole_back(out, in, &r);
        return;
    }
    memmove(out, in, count * sizeof *out);
    rotate_parts(out, count, &r);
    rotate_signs(out, out, (uint32_t)count, &r);
}

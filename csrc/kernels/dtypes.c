/* SPDX-License-Identifier: Apache-2.0 */
/* The dtypes: loops and identities of each kind of dtype, and the table of all. */
#include <math.h>
#include <string.h>

#include "kernels/loops.h"

/* float32 and float64: SUM, PROD, MIN, MAX. NaN in MIN and MAX: see reduce.h. */

#define FLOAT_KERNELS(suffix, type)                                                    \
    KERNEL(sum_##suffix, type, x + y)                                                  \
    KERNEL(prod_##suffix, type, x *y)                                                  \
    KERNEL(min_##suffix, type, y < x ? y : x)                                          \
    KERNEL(max_##suffix, type, x < y ? y : x)                                          \
    IDENTITY(sum_identity_##suffix, type, 0)                                           \
    IDENTITY(prod_identity_##suffix, type, 1)                                          \
    IDENTITY(min_identity_##suffix, type, (type)INFINITY)                              \
    IDENTITY(max_identity_##suffix, type, (type) - INFINITY)

FLOAT_KERNELS(float32, float)
FLOAT_KERNELS(float64, double)

#define FLOAT_DTYPE(suffix, type)                                                      \
    {                                                                                  \
        .size = sizeof(type),                                                          \
        .reduce = {[PCOLL_SUM] = sum_##suffix,                                         \
                   [PCOLL_PROD] = prod_##suffix,                                       \
                   [PCOLL_MIN] = min_##suffix,                                         \
                   [PCOLL_MAX] = max_##suffix},                                        \
        .identity = {[PCOLL_SUM] = sum_identity_##suffix,                              \
                     [PCOLL_PROD] = prod_identity_##suffix,                            \
                     [PCOLL_MIN] = min_identity_##suffix,                              \
                     [PCOLL_MAX] = max_identity_##suffix},                             \
    }

static const struct dtype dtype_float32 = FLOAT_DTYPE(float32, float);
static const struct dtype dtype_float64 = FLOAT_DTYPE(float64, double);

/*
 * float16 (IEEE 754 binary16) and bfloat16: conversions to and from float32, in which they are
 * reduced. Bit arithmetic without branches vectorizes on every processor and does not depend on
 * its treatment of subnormal numbers. Rounding is to the nearest, ties to even. NaN stays NaN
 * (quiet), infinity stays infinity, and a number beyond the largest one becomes infinity.
 */

/* Masks instead of ?: because gcc makes a branch of a ?: that guards a float operation (which
 * might trap), and then does not vectorize. */
static inline uint32_t half_choose(int condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

/* The exponent bias of float32 is larger by 112. */
static const uint32_t rebias = 112u << 23;

static inline float float16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fff) << 13;
    uint32_t exponent = half & 0x7c00;
    /* Subnormal: 2^-14 (1 + m / 1024) - 2^-14, exact and without subnormals. */
    uint32_t small = bits_of_float(float_of_bits((113u << 23) + rest) - 0x1p-14f);
    uint32_t large = rest + rebias + half_choose(exponent == 0x7c00, rebias, 0);
    return float_of_bits(sign | half_choose(exponent != 0, large, small));
}

static inline uint16_t float_to_float16(float value)
{
    uint32_t bits = bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    /* Below 2^-14: the last place of 0.5 + size is that of a subnormal float16. */
    uint32_t small = bits_of_float(float_of_bits(size) + 0.5f) - bits_of_float(0.5f);
    uint32_t rounded = size - rebias + 0xfff + (size >> 13 & 1);
    uint32_t large = half_choose(size >= 0x47800000, 0x7c00, rounded >> 13);
    uint32_t nan = 0x7e00 | (size >> 13 & 0x3ff);
    uint32_t number = half_choose(size < 0x38800000, small, large);
    return (uint16_t)(sign | half_choose(size > 0x7f800000, nan, number));
}

static inline float bfloat16_to_float(uint16_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

static inline uint16_t float_to_bfloat16(float value)
{
    uint32_t bits = bits_of_float(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

#define CONVERSION(name, to, from, convert)                                            \
    CLONES static void name(void *out, const void *in, size_t count)                   \
    {                                                                                  \
        to *restrict o = out;                                                          \
        const from *restrict p = in;                                                   \
        for (size_t i = 0; i < count; i++)                                             \
            o[i] = convert(p[i]);                                                      \
    }

#define HALF_DTYPE(suffix)                                                             \
    {                                                                                  \
        .size = 2,                                                                     \
        .held = &dtype_float32,                                                        \
        .widen = widen_##suffix,                                                       \
        .narrow = narrow_##suffix,                                                     \
        .identity = {[PCOLL_SUM] = sum_identity_##suffix,                              \
                     [PCOLL_PROD] = prod_identity_##suffix,                            \
                     [PCOLL_MIN] = min_identity_##suffix,                              \
                     [PCOLL_MAX] = max_identity_##suffix},                             \
    }

CONVERSION(widen_float16, float, uint16_t, float16_to_float)
CONVERSION(narrow_float16, uint16_t, float, float_to_float16)
CONVERSION(widen_bfloat16, float, uint16_t, bfloat16_to_float)
CONVERSION(narrow_bfloat16, uint16_t, float, float_to_bfloat16)
IDENTITY(sum_identity_float16, uint16_t, 0)
IDENTITY(prod_identity_float16, uint16_t, 0x3c00)
IDENTITY(min_identity_float16, uint16_t, 0x7c00) /* infinity */
IDENTITY(max_identity_float16, uint16_t, 0xfc00)
IDENTITY(sum_identity_bfloat16, uint16_t, 0)
IDENTITY(prod_identity_bfloat16, uint16_t, 0x3f80)
IDENTITY(min_identity_bfloat16, uint16_t, 0x7f80)
IDENTITY(max_identity_bfloat16, uint16_t, 0xff80)

static const struct dtype dtype_float16 = HALF_DTYPE(float16);
static const struct dtype dtype_bfloat16 = HALF_DTYPE(bfloat16);

/*
 * complex64 and complex128, stored as real and imaginary part: SUM, PROD. The product uses four
 * multiplications. If a part overflows, the result may be NaN where C's own product would be an
 * infinity.
 *
 * The real part is a sum with a negated factor, not a difference: from a difference and a sum
 * gcc (12, for example) makes fused multiplications if the processor has them, even with
 * -ffp-contract=off, and then ranks on different processors get different bits.
 */

#define COMPLEX_SUM(name, type)                                                        \
    CLONES static void name(void *out, const void *a, const void *b, size_t count)     \
    {                                                                                  \
        type *o = out;                                                                 \
        const type *p = a, *q = b;                                                     \
        INDEPENDENT                                                                    \
        for (size_t i = 0; i < 2 * count; i++)                                         \
            o[i] = p[i] + q[i];                                                        \
    }

#define COMPLEX_PROD(name, type)                                                       \
    CLONES static void name(void *out, const void *a, const void *b, size_t count)     \
    {                                                                                  \
        type *o = out;                                                                 \
        const type *p = a, *q = b;                                                     \
        INDEPENDENT                                                                    \
        for (size_t i = 0; i < count; i++) {                                           \
            type u = p[2 * i], v = p[2 * i + 1];                                       \
            type x = q[2 * i], y = q[2 * i + 1], minus = -y;                           \
            o[2 * i] = u * x + v * minus;                                              \
            o[2 * i + 1] = u * y + v * x;                                              \
        }                                                                              \
    }

#define COMPLEX_PROD_IDENTITY(name, type)                                              \
    static void name(void *out, size_t count)                                          \
    {                                                                                  \
        type *o = out;                                                                 \
        for (size_t i = 0; i < count; i++) {                                           \
            o[2 * i] = 1;                                                              \
            o[2 * i + 1] = 0;                                                          \
        }                                                                              \
    }

COMPLEX_SUM(sum_complex64, float)
COMPLEX_SUM(sum_complex128, double)
COMPLEX_PROD(prod_complex64, float)
COMPLEX_PROD(prod_complex128, double)
COMPLEX_PROD_IDENTITY(prod_identity_complex64, float)
COMPLEX_PROD_IDENTITY(prod_identity_complex128, double)

struct pair_of_floats {
    float re, im;
};
struct pair_of_doubles {
    double re, im;
};
IDENTITY(sum_identity_complex64, struct pair_of_floats, (struct pair_of_floats){0})
IDENTITY(sum_identity_complex128, struct pair_of_doubles, (struct pair_of_doubles){0})

#define COMPLEX_DTYPE(suffix, bytes)                                                   \
    {                                                                                  \
        .size = bytes,                                                                 \
        .reduce = {[PCOLL_SUM] = sum_##suffix, [PCOLL_PROD] = prod_##suffix},          \
        .identity = {[PCOLL_SUM] = sum_identity_##suffix,                              \
                     [PCOLL_PROD] = prod_identity_##suffix},                           \
    }

static const struct dtype dtype_complex64 = COMPLEX_DTYPE(complex64, 8);
static const struct dtype dtype_complex128 = COMPLEX_DTYPE(complex128, 16);

/*
 * Integers of 8 to 64 bits: all ops. They wrap around, as in the implementations of MPI. Ops that
 * do not depend on the sign are computed on unsigned integers, once for each width. 1u keeps
 * 16-bit factors from being multiplied as signed ints.
 */

#define WIDTH_KERNELS(bits, type)                                                      \
    KERNEL(sum_##bits, type, (type)(x + y))                                            \
    KERNEL(prod_##bits, type, (type)(1u * x * y))                                      \
    KERNEL(land_##bits, type, (type)((x != 0) & (y != 0)))                             \
    KERNEL(lor_##bits, type, (type)((x | y) != 0))                                     \
    KERNEL(lxor_##bits, type, (type)((x != 0) ^ (y != 0)))                             \
    KERNEL(band_##bits, type, (type)(x & y))                                           \
    KERNEL(bor_##bits, type, (type)(x | y))                                            \
    KERNEL(bxor_##bits, type, (type)(x ^ y))                                           \
    IDENTITY(zero_##bits, type, 0)                                                     \
    IDENTITY(one_##bits, type, 1)                                                      \
    IDENTITY(ones_##bits, type, (type) ~(type)0)

#define SIGN_KERNELS(suffix, type, lowest, highest)                                    \
    KERNEL(min_##suffix, type, y < x ? y : x)                                          \
    KERNEL(max_##suffix, type, x < y ? y : x)                                          \
    IDENTITY(min_identity_##suffix, type, highest)                                     \
    IDENTITY(max_identity_##suffix, type, lowest)

WIDTH_KERNELS(8, uint8_t)
WIDTH_KERNELS(16, uint16_t)
WIDTH_KERNELS(32, uint32_t)
WIDTH_KERNELS(64, uint64_t)
SIGN_KERNELS(int8, int8_t, INT8_MIN, INT8_MAX)
SIGN_KERNELS(int16, int16_t, INT16_MIN, INT16_MAX)
SIGN_KERNELS(int32, int32_t, INT32_MIN, INT32_MAX)
SIGN_KERNELS(int64, int64_t, INT64_MIN, INT64_MAX)
SIGN_KERNELS(uint8, uint8_t, 0, UINT8_MAX)
SIGN_KERNELS(uint16, uint16_t, 0, UINT16_MAX)
SIGN_KERNELS(uint32, uint32_t, 0, UINT32_MAX)
SIGN_KERNELS(uint64, uint64_t, 0, UINT64_MAX)

#define INTEGER_DTYPE(suffix, bits)                                                    \
    {                                                                                  \
        .size = bits / 8,                                                              \
        .reduce = {[PCOLL_SUM] = sum_##bits,                                           \
                   [PCOLL_PROD] = prod_##bits,                                         \
                   [PCOLL_MIN] = min_##suffix,                                         \
                   [PCOLL_MAX] = max_##suffix,                                         \
                   [PCOLL_LAND] = land_##bits,                                         \
                   [PCOLL_LOR] = lor_##bits,                                           \
                   [PCOLL_LXOR] = lxor_##bits,                                         \
                   [PCOLL_BAND] = band_##bits,                                         \
                   [PCOLL_BOR] = bor_##bits,                                           \
                   [PCOLL_BXOR] = bxor_##bits},                                        \
        .identity = {[PCOLL_SUM] = zero_##bits,                                        \
                     [PCOLL_PROD] = one_##bits,                                        \
                     [PCOLL_MIN] = min_identity_##suffix,                              \
                     [PCOLL_MAX] = max_identity_##suffix,                              \
                     [PCOLL_LAND] = one_##bits,                                        \
                     [PCOLL_LOR] = zero_##bits,                                        \
                     [PCOLL_LXOR] = zero_##bits,                                       \
                     [PCOLL_BAND] = ones_##bits,                                       \
                     [PCOLL_BOR] = zero_##bits,                                        \
                     [PCOLL_BXOR] = zero_##bits},                                      \
    }

static const struct dtype dtype_int8 = INTEGER_DTYPE(int8, 8);
static const struct dtype dtype_int16 = INTEGER_DTYPE(int16, 16);
static const struct dtype dtype_int32 = INTEGER_DTYPE(int32, 32);
static const struct dtype dtype_int64 = INTEGER_DTYPE(int64, 64);
static const struct dtype dtype_uint8 = INTEGER_DTYPE(uint8, 8);
static const struct dtype dtype_uint16 = INTEGER_DTYPE(uint16, 16);
static const struct dtype dtype_uint32 = INTEGER_DTYPE(uint32, 32);
static const struct dtype dtype_uint64 = INTEGER_DTYPE(uint64, 64);

/* bool, one byte, 0 or 1: LAND, LOR, LXOR. Any other byte counts as true. */

static const struct dtype dtype_bool = {
    .size = 1,
    .reduce = {[PCOLL_LAND] = land_8, [PCOLL_LOR] = lor_8, [PCOLL_LXOR] = lxor_8},
    .identity = {[PCOLL_LAND] = one_8, [PCOLL_LOR] = zero_8, [PCOLL_LXOR] = zero_8},
};

/* The table of dtypes. */

static const struct dtype *const dtypes[REDUCE_DTYPES] = {
    [PCOLL_FLOAT32] = &dtype_float32,     [PCOLL_FLOAT64] = &dtype_float64,
    [PCOLL_INT32] = &dtype_int32,         [PCOLL_INT64] = &dtype_int64,
    [PCOLL_FLOAT16] = &dtype_float16,     [PCOLL_BFLOAT16] = &dtype_bfloat16,
    [PCOLL_COMPLEX64] = &dtype_complex64, [PCOLL_COMPLEX128] = &dtype_complex128,
    [PCOLL_INT8] = &dtype_int8,           [PCOLL_INT16] = &dtype_int16,
    [PCOLL_UINT8] = &dtype_uint8,         [PCOLL_UINT16] = &dtype_uint16,
    [PCOLL_UINT32] = &dtype_uint32,       [PCOLL_UINT64] = &dtype_uint64,
    [PCOLL_BOOL] = &dtype_bool,
};

const struct dtype *dtype_find(int dtype)
{
    return dtype >= 0 && dtype < REDUCE_DTYPES ? dtypes[dtype] : NULL;
}

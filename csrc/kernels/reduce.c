/* SPDX-License-Identifier: Apache-2.0 */
/* The dtypes: loops and identities of each kind, the table of all, names; reductions of users'
 * buffers and of models. */
#include "kernels/reduce.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "kernels/loops.h"

/* float32 and float64: SUM, PROD, MIN, MAX. NaN in MIN and MAX: see reduce.h. */

/* The functions of four ops; `kind` is empty for loops. */
#define FOUR(kind, suffix)                                                             \
    {                                                                                  \
        [PCOLL_SUM] = sum_##kind##suffix,                                              \
        [PCOLL_PROD] = prod_##kind##suffix,                                            \
        [PCOLL_MIN] = min_##kind##suffix,                                              \
        [PCOLL_MAX] = max_##kind##suffix,                                              \
    }

#define FLOAT(suffix, type)                                                            \
    KERNEL(sum_##suffix, type, x + y)                                                  \
    KERNEL(prod_##suffix, type, x *y)                                                  \
    KERNEL(min_##suffix, type, y < x ? y : x)                                          \
    KERNEL(max_##suffix, type, x < y ? y : x)                                          \
    IDENTITY(sum_identity_##suffix, type, 0)                                           \
    IDENTITY(prod_identity_##suffix, type, 1)                                          \
    IDENTITY(min_identity_##suffix, type, (type)INFINITY)                              \
    IDENTITY(max_identity_##suffix, type, (type) - INFINITY)                           \
    static const struct dtype dtype_##suffix = {.size = sizeof(type),                  \
                                                .reduce = FOUR(, suffix),              \
                                                .identity = FOUR(identity_, suffix)};

FLOAT(float32, float)
FLOAT(float64, double)

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

#define HALF(suffix, one, infinity)                                                    \
    CONVERSION(widen_##suffix, float, uint16_t, suffix##_to_float)                     \
    CONVERSION(narrow_##suffix, uint16_t, float, float_to_##suffix)                    \
    IDENTITY(sum_identity_##suffix, uint16_t, 0)                                       \
    IDENTITY(prod_identity_##suffix, uint16_t, one)                                    \
    IDENTITY(min_identity_##suffix, uint16_t, infinity)                                \
    IDENTITY(max_identity_##suffix, uint16_t, 0x8000 | infinity)                       \
    static const struct dtype dtype_##suffix = {.size = 2,                             \
                                                .held = &dtype_float32,                \
                                                .widen = widen_##suffix,               \
                                                .narrow = narrow_##suffix,             \
                                                .identity = FOUR(identity_, suffix)};

HALF(float16, 0x3c00, 0x7c00)
HALF(bfloat16, 0x3f80, 0x7f80)

/*
 * complex64 and complex128, stored as real and imaginary part: SUM, PROD. The product uses four
 * multiplications. If a part overflows, the result may be NaN where C's own product would be an
 * infinity.
 *
 * The real part is a sum with a negated factor, not a difference: from a difference and a sum
 * gcc (12, for example) makes fused multiplications if the processor has them, even with
 * -ffp-contract=off, and then ranks on different processors get different bits.
 */

#define COMPLEX(suffix, type, real)                                                    \
    static void sum_##suffix(void *out, const void *a, const void *b, size_t count)    \
    {                                                                                  \
        sum_##real(out, a, b, 2 * count);                                              \
    }                                                                                  \
    CLONES static void prod_##suffix(void *out, const void *a, const void *b,          \
                                     size_t count)                                     \
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
    }                                                                                  \
    IDENTITY(sum_identity_##suffix, type _Complex, 0)                                  \
    IDENTITY(prod_identity_##suffix, type _Complex, 1)                                 \
    static const struct dtype dtype_##suffix = {                                       \
        .size = 2 * sizeof(type),                                                      \
        .reduce = {[PCOLL_SUM] = sum_##suffix, [PCOLL_PROD] = prod_##suffix},          \
        .identity = {[PCOLL_SUM] = sum_identity_##suffix,                              \
                     [PCOLL_PROD] = prod_identity_##suffix}};

COMPLEX(complex64, float, float32)
COMPLEX(complex128, double, float64)

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

WIDTH_KERNELS(8, uint8_t)
WIDTH_KERNELS(16, uint16_t)
WIDTH_KERNELS(32, uint32_t)
WIDTH_KERNELS(64, uint64_t)

#define INTEGER(suffix, bits, lowest, highest)                                         \
    KERNEL(min_##suffix, suffix##_t, y < x ? y : x)                                    \
    KERNEL(max_##suffix, suffix##_t, x < y ? y : x)                                    \
    IDENTITY(min_identity_##suffix, suffix##_t, highest)                               \
    IDENTITY(max_identity_##suffix, suffix##_t, lowest)                                \
    static const struct dtype dtype_##suffix = {                                       \
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
                     [PCOLL_BXOR] = zero_##bits}};

INTEGER(int8, 8, INT8_MIN, INT8_MAX)
INTEGER(int16, 16, INT16_MIN, INT16_MAX)
INTEGER(int32, 32, INT32_MIN, INT32_MAX)
INTEGER(int64, 64, INT64_MIN, INT64_MAX)
INTEGER(uint8, 8, 0, UINT8_MAX)
INTEGER(uint16, 16, 0, UINT16_MAX)
INTEGER(uint32, 32, 0, UINT32_MAX)
INTEGER(uint64, 64, 0, UINT64_MAX)

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

const char *const dtype_names[] = {
    [PCOLL_FLOAT32] = "float32",
    [PCOLL_FLOAT64] = "float64",
    [PCOLL_INT32] = "int32",
    [PCOLL_INT64] = "int64",
    [PCOLL_FLOAT16] = "float16",
    [PCOLL_BFLOAT16] = "bfloat16",
    [PCOLL_COMPLEX64] = "complex64",
    [PCOLL_COMPLEX128] = "complex128",
    [PCOLL_INT8] = "int8",
    [PCOLL_INT16] = "int16",
    [PCOLL_UINT8] = "uint8",
    [PCOLL_UINT16] = "uint16",
    [PCOLL_UINT32] = "uint32",
    [PCOLL_UINT64] = "uint64",
    [PCOLL_BOOL] = "bool",
    [PCOLL_MPI_TYPE] = "an MPI datatype",
    NULL,
};

const char *const op_names[] = {
    [PCOLL_SUM] = "SUM",   [PCOLL_PROD] = "PROD",        [PCOLL_MIN] = "MIN",
    [PCOLL_MAX] = "MAX",   [PCOLL_LAND] = "LAND",        [PCOLL_LOR] = "LOR",
    [PCOLL_LXOR] = "LXOR", [PCOLL_BAND] = "BAND",        [PCOLL_BOR] = "BOR",
    [PCOLL_BXOR] = "BXOR", [PCOLL_MPI_OP] = "an MPI op", NULL,
};

reduce_fn *reduce_kernel(int op, int dtype)
{
    const struct dtype *d = dtype_find(dtype);
    if (!d || op < 0 || op >= REDUCE_OPS)
        return NULL;
    return d->held ? d->held->reduce[op] : d->reduce[op];
}

int pcoll_op_check(int32_t op, int32_t dtype)
{
    char list[80] = "";
    struct text names = {.at = list, .left = sizeof list};
    int left = 0;
    if (!dtype_find(dtype))
        return fail(PCOLL_EINVAL, "dtype: unknown value %d", dtype);
    if (op < 0 || op >= REDUCE_OPS)
        return fail(PCOLL_EINVAL, "op: unknown value %d", op);
    if (reduce_kernel(op, dtype))
        return PCOLL_OK;
    for (int i = 0; i < REDUCE_OPS; i++)
        left += reduce_kernel(i, dtype) != NULL;
    for (int i = 0; i < REDUCE_OPS; i++)
        if (reduce_kernel(i, dtype))
            text_add(&names, "%s%s", op_names[i],
                     --left > 1  ? ", "
                     : left == 1 ? " or "
                                 : "");
    return fail(PCOLL_EINVAL, "op: expected %s for %s, got %s", list,
                dtype_names[dtype], op_names[op]);
}

/* Reducing elements as a user's buffer holds them: halves are widened, reduced and rounded, piece
 * by piece. */

enum { PIECE = 512, WIDEST = 4 };

static void reduce_wide(const struct dtype *t, reduce_fn *reduce, char *out,
                        const char *a, const char *b, size_t count)
{
    _Alignas(64) char wide_a[PIECE * WIDEST], wide_b[PIECE * WIDEST];
    for (size_t first = 0; first < count; first += PIECE) {
        size_t now = count - first < PIECE ? count - first : PIECE;
        t->widen(wide_a, a + first * t->size, now);
        t->widen(wide_b, b + first * t->size, now);
        reduce(wide_a, wide_a, wide_b, now);
        t->narrow(out + first * t->size, wide_a, now);
    }
}

void reduce_buffer(int op, int dtype, void *out, const void *a, const void *b,
                   size_t count)
{
    const struct dtype *t = dtype_find(dtype);
    reduce_fn *reduce = reduce_kernel(op, dtype);
    if (t->held)
        reduce_wide(t, reduce, out, a, b, count);
    else
        reduce(out, a, b, count);
}

/* In floating point x - (x - d) differs from d, and these functions depend on
 * that: they are compiled without contraction and without -ffast-math. */

#define LOOP(declaration, ...)                                                         \
    CLONES declaration                                                                 \
    {                                                                                  \
        INDEPENDENT                                                                    \
        for (size_t i = 0; i < count; i++) {                                           \
            __VA_ARGS__;                                                               \
        }                                                                              \
    }

/* A division is no multiplication by the inverse: the result is rounded once. */
#define MODEL_LOOPS(suffix, type)                                                      \
    LOOP(static void add_scaled_##suffix(type *restrict y, const type *restrict x,     \
                                         type a, size_t count),                        \
         y[i] += a * x[i])                                                             \
    LOOP(static void move_##suffix(type *restrict x, const type *theirs, type *given,  \
                                   type weight, size_t count),                         \
         type before = x[i], after = before - weight * (before - theirs[i]);           \
         x[i] = after, given[i] = before - after)                                      \
    LOOP(                                                                              \
        static void take_##suffix(type *restrict x, type *restrict sum, size_t count), \
        type before = x[i], after = before + sum[i];                                   \
        x[i] = after, sum[i] = before - after)                                         \
    LOOP(static void scale_##suffix(type *x, type factor, size_t count),               \
         x[i] *= factor)                                                               \
    LOOP(void divide_##suffix(type *x, type divisor, size_t count), x[i] /= divisor)

MODEL_LOOPS(float32, float)
MODEL_LOOPS(float64, double)

#define MODEL(dtype, loop, ...)                                                        \
    ((dtype) == PCOLL_FLOAT64 ? loop##_float64(__VA_ARGS__)                            \
                              : loop##_float32(__VA_ARGS__))

void model_average(int dtype, void *x, const void *theirs, void *momentum, void *given,
                   double weight, double ratio, size_t count)
{
    MODEL(dtype, move, x, theirs, given, weight, count);
    if (momentum)
        MODEL(dtype, add_scaled, momentum, given, -ratio, count);
}

void model_collect(int dtype, void *x, void *momentum, void *sum, double ratio,
                   size_t count)
{
    MODEL(dtype, take, x, sum, count);
    if (momentum)
        MODEL(dtype, add_scaled, momentum, sum, -ratio, count);
}

void model_scale(int dtype, void *x, double factor, size_t count)
{
    MODEL(dtype, scale, x, factor, count);
}

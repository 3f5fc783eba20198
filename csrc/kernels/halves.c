/* SPDX-License-Identifier: Apache-2.0 */
/*
 * float16 (IEEE 754 binary16) and bfloat16: held as float32, so here are only the
 * conversions. Bit arithmetic without branches: it vectorizes everywhere, and it does
 * not depend on what the processor does with subnormal numbers. Rounding is to the
 * nearest, ties to even; NaN stays NaN (quiet), infinity stays infinity, and what is
 * beyond the largest number becomes infinity.
 */
#include <string.h>

#include "kernels/dtypes.h"
#include "kernels/loops.h"

static inline float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* With masks: where a ?: guards a float operation, gcc makes a branch of it, because
 * the operation might trap, and then does not vectorize. */
static inline uint32_t choose(int condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

/* The exponents of float32 are larger by 112. */
static const uint32_t rebias = 112u << 23;

static inline float float16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fff) << 13;
    uint32_t exponent = half & 0x7c00;
    /* Subnormal: 2^-14 (1 + m / 1024) - 2^-14, exact and without subnormals. */
    uint32_t small = as_bits(as_float((113u << 23) + rest) - 0x1p-14f);
    uint32_t large = rest + rebias + choose(exponent == 0x7c00, rebias, 0);
    return as_float(sign | choose(exponent != 0, large, small));
}

static inline uint16_t float_to_float16(float value)
{
    uint32_t bits = as_bits(value);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    /* Below 2^-14: in 0.5 + size the last place is that of a subnormal float16. */
    uint32_t small = as_bits(as_float(size) + 0.5f) - as_bits(0.5f);
    uint32_t rounded = size - rebias + 0xfff + (size >> 13 & 1);
    uint32_t large = choose(size >= 0x47800000, 0x7c00, rounded >> 13);
    uint32_t nan = 0x7e00 | (size >> 13 & 0x3ff);
    uint32_t number = choose(size < 0x38800000, small, large);
    return (uint16_t)(sign | choose(size > 0x7f800000, nan, number));
}

static inline float bfloat16_to_float(uint16_t half)
{
    return as_float((uint32_t)half << 16);
}

static inline uint16_t float_to_bfloat16(float value)
{
    uint32_t bits = as_bits(value);
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
        .name = #suffix,                                                               \
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

const struct dtype dtype_float16 = HALF_DTYPE(float16);
const struct dtype dtype_bfloat16 = HALF_DTYPE(bfloat16);

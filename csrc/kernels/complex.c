/* SPDX-License-Identifier: Apache-2.0 */
/*
 * complex64 and complex128, real and imaginary part one after the other: SUM, PROD. The
 * product is the plain one, four multiplications: where a part overflows it may be NaN
 * where C's own product would find an infinity.
 *
 * The real part is a sum with a negated factor, not a difference: from "difference,
 * sum" gcc (12, for one) makes fused multiplications where the processor has them, even
 * with -ffp-contract=off, and then ranks on different processors get different bits.
 */
#include "kernels/dtypes.h"
#include "kernels/loops.h"

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
        .name = #suffix,                                                               \
        .size = bytes,                                                                 \
        .reduce = {[PCOLL_SUM] = sum_##suffix, [PCOLL_PROD] = prod_##suffix},          \
        .identity = {[PCOLL_SUM] = sum_identity_##suffix,                              \
                     [PCOLL_PROD] = prod_identity_##suffix},                           \
    }

const struct dtype dtype_complex64 = COMPLEX_DTYPE(complex64, 8);
const struct dtype dtype_complex128 = COMPLEX_DTYPE(complex128, 16);

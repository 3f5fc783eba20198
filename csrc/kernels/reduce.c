/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot loops: written plainly, vectorised by the compiler. `ivdep` states what
 * reduce.h demands (out is a, or b, or apart), else the compiler would take its scalar
 * path where out is a. target_clones picks AVX2 or AVX-512 at load time; sanitizers
 * cannot have it, because they would instrument its resolver.
 */
#include "reduce.h"

#include <math.h>
#include <stdbool.h>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) &&                           \
    !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define CLONES
#endif

#define KERNEL(name, type, expression)                                                 \
    CLONES static void name(void *out, const void *a, const void *b, size_t count)     \
    {                                                                                  \
        type *o = out;                                                                 \
        const type *p = a, *q = b;                                                     \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)                        \
        {                                                                              \
            type x = p[i], y = q[i];                                                   \
            o[i] = expression;                                                         \
        }                                                                              \
    }

/* Integers wrap around, as in MPI's own implementations: added without sign. */
#define FLOAT_KERNELS(suffix, type)                                                    \
    KERNEL(sum_##suffix, type, x + y)                                                  \
    KERNEL(prod_##suffix, type, x *y)                                                  \
    KERNEL(min_##suffix, type, y < x ? y : x)                                          \
    KERNEL(max_##suffix, type, x < y ? y : x)

#define INT_KERNELS(suffix, type, unsigned_type)                                       \
    KERNEL(sum_##suffix, type, (type)((unsigned_type)x + (unsigned_type)y))            \
    KERNEL(prod_##suffix, type, (type)((unsigned_type)x * (unsigned_type)y))           \
    KERNEL(min_##suffix, type, y < x ? y : x)                                          \
    KERNEL(max_##suffix, type, x < y ? y : x)

FLOAT_KERNELS(float32, float)
FLOAT_KERNELS(float64, double)
INT_KERNELS(int32, int32_t, uint32_t)
INT_KERNELS(int64, int64_t, uint64_t)

#define IDENTITY(name, type, value)                                                    \
    static void name(void *out, size_t count)                                          \
    {                                                                                  \
        type *o = out;                                                                 \
        for (size_t i = 0; i < count; i++)                                             \
            o[i] = value;                                                              \
    }

#define IDENTITIES(suffix, type, lowest, highest)                                      \
    IDENTITY(sum_identity_##suffix, type, 0)                                           \
    IDENTITY(prod_identity_##suffix, type, 1)                                          \
    IDENTITY(min_identity_##suffix, type, highest)                                     \
    IDENTITY(max_identity_##suffix, type, lowest)

IDENTITIES(float32, float, -INFINITY, INFINITY)
IDENTITIES(float64, double, -INFINITY, INFINITY)
IDENTITIES(int32, int32_t, INT32_MIN, INT32_MAX)
IDENTITIES(int64, int64_t, INT64_MIN, INT64_MAX)

enum { OPS = 4, DTYPES = 4 };

#define ROW(op) {op##_float32, op##_float64, op##_int32, op##_int64}
static reduce_fn *const kernels[OPS][DTYPES] = {
    [PCOLL_SUM] = ROW(sum),
    [PCOLL_PROD] = ROW(prod),
    [PCOLL_MIN] = ROW(min),
    [PCOLL_MAX] = ROW(max),
};

static identity_fn *const identities[OPS][DTYPES] = {
    [PCOLL_SUM] = ROW(sum_identity),
    [PCOLL_PROD] = ROW(prod_identity),
    [PCOLL_MIN] = ROW(min_identity),
    [PCOLL_MAX] = ROW(max_identity),
};

static const size_t sizes[DTYPES] = {
    [PCOLL_FLOAT32] = 4, [PCOLL_FLOAT64] = 8, [PCOLL_INT32] = 4, [PCOLL_INT64] = 8};

static bool known(int op, int dtype)
{
    return op >= 0 && op < OPS && dtype >= 0 && dtype < DTYPES;
}

reduce_fn *reduce_kernel(int op, int dtype)
{
    return known(op, dtype) ? kernels[op][dtype] : NULL;
}

identity_fn *identity_kernel(int op, int dtype)
{
    return known(op, dtype) ? identities[op][dtype] : NULL;
}

size_t dtype_size(int dtype)
{
    return dtype >= 0 && dtype < DTYPES ? sizes[dtype] : 0;
}

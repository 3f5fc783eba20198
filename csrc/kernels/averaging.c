/* SPDX-License-Identifier: Apache-2.0 */
/* See averaging.h. In floating point x - (x - d) differs from d, and these functions depend on
 * that: they are compiled without contraction and without -ffast-math. */
#include "kernels/averaging.h"

#include "kernels/loops.h"

/* y += a x */
#define ADD_SCALED(name, type)                                                         \
    CLONES static void name(type *restrict y, const type *restrict x, type a,          \
                            size_t count)                                              \
    {                                                                                  \
        for (size_t i = 0; i < count; i++)                                             \
            y[i] += a * x[i];                                                          \
    }

#define MOVE(name, type)                                                               \
    CLONES static void name(type *restrict x, const type *theirs, type *given,         \
                            type weight, size_t count)                                 \
    {                                                                                  \
        INDEPENDENT                                                                    \
        for (size_t i = 0; i < count; i++) {                                           \
            type before = x[i], after = before - weight * (before - theirs[i]);        \
            x[i] = after;                                                              \
            given[i] = before - after;                                                 \
        }                                                                              \
    }

#define TAKE(name, type)                                                               \
    CLONES static void name(type *restrict x, type *restrict sum, size_t count)        \
    {                                                                                  \
        for (size_t i = 0; i < count; i++) {                                           \
            type before = x[i], after = before + sum[i];                               \
            x[i] = after;                                                              \
            sum[i] = before - after;                                                   \
        }                                                                              \
    }

ADD_SCALED(add_scaled_float32, float)
ADD_SCALED(add_scaled_float64, double)
MOVE(move_float32, float)
MOVE(move_float64, double)
TAKE(take_float32, float)
TAKE(take_float64, double)

void average_float32(float *x, const float *theirs, float *momentum, float *given,
                     double weight, double ratio, size_t count)
{
    move_float32(x, theirs, given, (float)weight, count);
    if (momentum)
        add_scaled_float32(momentum, given, (float)-ratio, count);
}

void average_float64(double *x, const double *theirs, double *momentum, double *given,
                     double weight, double ratio, size_t count)
{
    move_float64(x, theirs, given, weight, count);
    if (momentum)
        add_scaled_float64(momentum, given, -ratio, count);
}

void collect_float32(float *x, float *momentum, float *sum, double ratio, size_t count)
{
    take_float32(x, sum, count);
    if (momentum)
        add_scaled_float32(momentum, sum, (float)-ratio, count);
}

void collect_float64(double *x, double *momentum, double *sum, double ratio,
                     size_t count)
{
    take_float64(x, sum, count);
    if (momentum)
        add_scaled_float64(momentum, sum, -ratio, count);
}

/* A division, not a multiplication by the inverse: the result is rounded once. */
#define DIVIDE(name, type)                                                             \
    CLONES void name(type *x, type divisor, size_t count)                              \
    {                                                                                  \
        for (size_t i = 0; i < count; i++)                                             \
            x[i] /= divisor;                                                           \
    }

DIVIDE(divide_float32, float)
DIVIDE(divide_float64, double)

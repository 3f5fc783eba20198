/* SPDX-License-Identifier: Apache-2.0 */
/* Names of dtypes and ops, and which ops are defined. The table is in dtypes.c. */
#include "kernels/reduce.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/loops.h"

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

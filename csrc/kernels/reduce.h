/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise reduction, one function per [op][dtype], and the table of dtypes.
 *
 * out[i] = a[i] op b[i] for i < count, with a on the left: the caller chooses the order, so
 * equal inputs give equal bits. out may be exactly a or b; partial overlap is not allowed.
 *
 * MIN and MAX keep a unless b is smaller (larger). A comparison with a NaN is false, so a NaN
 * on the left stays and a NaN on the right is ignored. All ranks reduce in the same order and
 * get the same result, but whether a NaN survives depends on the rank that contributed it.
 *
 * float16 and bfloat16 are reduced as float32: a block holds them widened, and a result is
 * rounded once, to the nearest even, when it leaves the block.
 */
#pragma once

#include <stddef.h>

#include "include/partialcoll.h"

enum { REDUCE_OPS = PCOLL_MPI_OP, REDUCE_DTYPES = PCOLL_MPI_TYPE };

typedef void reduce_fn(void *out, const void *a, const void *b, size_t count);

/* Fill out with the identity of the op, the result of a round without contributions. */
typedef void identity_fn(void *out, size_t count);

/* Convert elements from one form to the other; out and in do not overlap. */
typedef void convert_fn(void *out, const void *in, size_t count);

struct dtype {
    size_t size;                       /* bytes of one element in a user's buffer */
    const struct dtype *held;          /* dtype in a block; NULL: the same */
    convert_fn *widen, *narrow;        /* to the held dtype and back; NULL: the same */
    reduce_fn *reduce[REDUCE_OPS];     /* used unless there is a held dtype */
    identity_fn *identity[REDUCE_OPS]; /* NULL: the op is not defined */
};

/* Return a dtype; NULL if it does not exist or only MPI knows it. */
const struct dtype *dtype_find(int dtype);
/* Return the reduction of elements as a block holds them; NULL: the op is not defined. */
reduce_fn *reduce_kernel(int op, int dtype);
/* Reduce elements as a user's buffer holds them; the op must be defined for the dtype. */
void reduce_buffer(int op, int dtype, void *out, const void *a, const void *b,
                   size_t count);

/* Names in the order of the enums, MPI's last, then NULL. */
extern const char *const dtype_names[], *const op_names[];

/*
 * Move a model towards another one, and add to a model what others have given it, without
 * losing anything to rounding: the amount given is what the model has really lost, and the
 * amount taken from the sum is what the model has really gained. For float32 and float64.
 * Arrays do not overlap unless stated; momentum may be NULL.
 */

/* Set x to x - weight (x - theirs), rounded, and `given` to what x has lost; subtract ratio times
 * that from momentum. `given` may be `theirs`. */
void model_average(int dtype, void *x, const void *theirs, void *momentum, void *given,
                   double weight, double ratio, size_t count);
/* Set x to x + sum, rounded, and `sum` to minus what x has gained; add ratio times the gain to
 * momentum. */
void model_collect(int dtype, void *x, void *momentum, void *sum, double ratio,
                   size_t count);
/* Multiply x by factor. */
void model_scale(int dtype, void *x, double factor, size_t count);

/* Divide x by divisor. */
void divide_float32(float *x, float divisor, size_t count);
void divide_float64(double *x, double divisor, size_t count);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise reduction, one function per [op][dtype], and what a dtype is.
 *
 * out[i] = a[i] op b[i] for i < count, a on the left: the caller fixes the order, so
 * equal inputs give equal bits. out may be a or b exactly; partial overlap is not
 * allowed.
 *
 * MIN and MAX keep a unless b is smaller (larger). A comparison with a NaN is false: so
 * a NaN on the left stays, one on the right is passed over. All ranks reduce in the
 * same order and see the same; but whether a NaN survives depends on whose it is.
 *
 * float16 and bfloat16 are reduced as float32: a block holds them widened, and they are
 * rounded once, to the nearest even, when a result leaves it.
 */
#ifndef PCOLL_KERNELS_REDUCE_H
#define PCOLL_KERNELS_REDUCE_H

#include <stddef.h>

#include "include/partialcoll.h"

enum { REDUCE_OPS = PCOLL_MPI_OP, REDUCE_DTYPES = PCOLL_MPI_TYPE };

typedef void reduce_fn(void *out, const void *a, const void *b, size_t count);

/* Fill out with the op's identity: what a round without contributions reduces to. */
typedef void identity_fn(void *out, size_t count);

/* From one form of the elements to the other; out and in do not overlap. */
typedef void convert_fn(void *out, const void *in, size_t count);

struct dtype {
    const char *name;
    size_t size;                       /* bytes of one element in a user's buffer */
    const struct dtype *held;          /* how a block holds it; NULL: as it is */
    convert_fn *widen, *narrow;        /* to the held form and back, if there is one */
    reduce_fn *reduce[REDUCE_OPS];     /* of the held form is used, if there is one */
    identity_fn *identity[REDUCE_OPS]; /* NULL where the op is not defined */
};

/* NULL for one that does not exist or that only MPI knows. */
const struct dtype *dtype_find(int dtype);
/* On elements as a block holds them; NULL for an op that is not defined for them. */
reduce_fn *reduce_kernel(int op, int dtype);
/* On elements as a user's buffer holds them. */
identity_fn *identity_kernel(int op, int dtype);
/* The same for a reduction; the op must be defined for the dtype. */
void reduce_buffer(int op, int dtype, void *out, const void *a, const void *b,
                   size_t count);

/* In the order of their enums, with NULL at the end; MPI's at the end as well. */
extern const char *const dtype_names[], *const op_names[];

/* Writes "SUM or PROD": the ops that are defined for a dtype. */
void dtype_list_ops(int dtype, char *text, size_t capacity);

#endif

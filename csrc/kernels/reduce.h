/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise reduction, one function per [op][dtype].
 *
 * out[i] = a[i] op b[i] for i < count, a on the left: the caller fixes the order, so
 * equal inputs give equal bits. out may be a or b exactly; partial overlap is not
 * allowed.
 */
#ifndef PCOLL_KERNELS_REDUCE_H
#define PCOLL_KERNELS_REDUCE_H

#include <stddef.h>

#include "../include/partialcoll.h"

typedef void reduce_fn(void *out, const void *a, const void *b, size_t count);

/* Fill out with the op's identity: what a round without contributions reduces to. */
typedef void identity_fn(void *out, size_t count);

/* The kernel, or NULL for an op or dtype that does not exist. */
reduce_fn *reduce_kernel(int op, int dtype);
identity_fn *identity_kernel(int op, int dtype);
/* Bytes of one element, 0 for a dtype that does not exist. */
size_t dtype_size(int dtype);

#endif

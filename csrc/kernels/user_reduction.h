/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reduction that is not ours: what a part of a payload carries in place of a kernel.
 * transport/mpi/reduction.c makes them of MPI's ops and datatypes.
 */
#ifndef PCOLL_KERNELS_USER_REDUCTION_H
#define PCOLL_KERNELS_USER_REDUCTION_H

#include <stddef.h>

#include "include/partialcoll.h"

struct user_reduction {
    size_t element;  /* bytes from one element to the next */
    uint32_t shared; /* payloads that have it, beside the first */
    /* inout = left (+) inout, element by element. A result code. Several threads may
     * call at once. */
    int (*combine)(struct user_reduction *self, void *inout, const void *left,
                   size_t count);
    void (*free)(struct user_reduction *self);
};

/* Makes the reduction of a buffer whose dtype or op is MPI's. PCOLL_EINVAL, PCOLL_EMPI,
 * PCOLL_ENOMEM; `index` is for the message. */
typedef int user_reduction_fn(const pcoll_buffer *buffer, int index,
                              struct user_reduction **out);

/* out = a (+) b; out may be a or b exactly, and the bits are the same in all cases. */
int user_reduce(struct user_reduction *user, void *out, const void *a, const void *b,
                size_t count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions by MPI_Reduce_local: ops of users, and datatypes without a kernel. */
#ifndef PCOLL_TRANSPORT_MPI_REDUCTION_H
#define PCOLL_TRANSPORT_MPI_REDUCTION_H

#include "kernels/payload.h"

/* A user_reduction_fn. PCOLL_EINVAL for what is null, not commutative, not contiguous,
 * or not defined by MPI. */
user_reduction_fn mpi_reduction_create;

/* Give one of those another datatype, of the same bytes, and op; nobody may be reducing
 * with it. Neither is kept: both must live until that reduction is over. PCOLL_EINVAL
 * as above, and for NULL. */
int mpi_reduction_set(struct user_reduction *user, const void *mpi_type,
                      const void *mpi_op, int index);

#endif

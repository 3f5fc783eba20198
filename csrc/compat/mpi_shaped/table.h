/* SPDX-License-Identifier: Apache-2.0 */
/* What MPI calls a predefined datatype and op, and what the core calls them. */
#ifndef PCOLL_COMPAT_MPI_SHAPED_TABLE_H
#define PCOLL_COMPAT_MPI_SHAPED_TABLE_H

#include "compat/mpi_shaped/signature.h"

/* Fills dtype and op in; mpi_type and mpi_op as well if it is MPI that reduces. FOUND;
 * FOUND_UNDEFINED: MPI defines no such pair, or not every MPI; FOUND_UNKNOWN: not a
 * predefined op. Needs a running MPI. */
enum found table_find(MPI_Datatype type, MPI_Op op, struct signature *s);

#endif

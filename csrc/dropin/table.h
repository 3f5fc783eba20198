/* SPDX-License-Identifier: Apache-2.0 */
/* What MPI calls a datatype and an op, and what the core calls them. */
#ifndef PCOLL_DROPIN_TABLE_H
#define PCOLL_DROPIN_TABLE_H

#include <mpi.h>
#include <stdbool.h>

#include "../include/partialcoll.h"

/* The core's names of a predefined datatype and op that MPI allows together. False if
 * there are none: it is not an error, only nothing for us. Needs a running MPI. */
bool table_find(MPI_Datatype type, MPI_Op op, int32_t *dtype, int32_t *code);

#endif

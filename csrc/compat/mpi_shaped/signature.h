/* SPDX-License-Identifier: Apache-2.0 */
/* Which handle a datatype and an op ask for: the part of a cache's key that they make.
 */
#ifndef PCOLL_COMPAT_MPI_SHAPED_SIGNATURE_H
#define PCOLL_COMPAT_MPI_SHAPED_SIGNATURE_H

#include <mpi.h>
#include <stdbool.h>

#include "include/partialcoll.h"

/*
 * Three sorts:
 *   the core's      dtype and op say it all, the handles of MPI are null
 *   MPI's own       predefined for MPI alone, so its handles never change
 *   of a user       an op of a user: it and the datatype may be another one at the next
 *                   call, freed and made again with the same handle, and have different
 *                   handles on each rank. Only the size of an element is the same, so
 *                   they share a handle, which is given the op anew for every call.
 */
struct signature {
    int32_t dtype, op;
    MPI_Datatype mpi_type;
    MPI_Op mpi_op;
    bool of_user;
    uint64_t element; /* of_user: bytes of one */
};

enum found {
    FOUND,
    FOUND_UNKNOWN,   /* of the table: not predefined */
    FOUND_UNDEFINED, /* MPI refuses this pair, or is to judge */
    FOUND_ORDERED,   /* the op does not commute */
    FOUND_GAPS       /* the elements do not lie one after the other */
};

/* The same answer on all ranks of a call. Needs a running MPI, and no null handles. */
enum found signature_find(MPI_Datatype type, MPI_Op op, struct signature *s);

/* Do they go to the same handle? */
bool signature_same(const struct signature *a, const struct signature *b);

/* What the core is told of `count` elements; it points into *s. */
pcoll_buffer signature_buffer(const struct signature *s, uint64_t count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a cache's key that a datatype and an op make. */
#ifndef PCOLL_COMPAT_MPI_SHAPED_SIGNATURE_H
#define PCOLL_COMPAT_MPI_SHAPED_SIGNATURE_H

#include <mpi.h>
#include <stdbool.h>

#include "include/partialcoll.h"

/*
 * Three sorts:
 *   the core's      dtype and op say it all; the handles of MPI are null.
 *   MPI's own       predefined for MPI alone, so its handles never change.
 *   of a user       an op of a user. It and the datatype may be another one at the next call,
 *                   freed and made again with the same handle, and have different handles on
 *                   each rank. Only the size of an element is the same, so they share a handle
 *                   of ours, which gets the op with every call.
 */
struct signature {
    int32_t dtype, op;
    MPI_Datatype mpi_type;
    MPI_Op mpi_op;
    bool of_user;
    uint64_t element; /* of a user: bytes of one element */
};

enum found {
    FOUND,
    FOUND_UNKNOWN, /* The op is not predefined. (signature_find does not return this.) */
    FOUND_UNDEFINED, /* MPI refuses this pair, or is to judge it. */
    FOUND_ORDERED,   /* The op does not commute. */
    FOUND_GAPS       /* Elements have gaps. */
};

/* Find the signature of a call, the same on all its ranks. MPI must run, and the handles must not
 * be null. */
enum found signature_find(MPI_Datatype type, MPI_Op op, struct signature *s);
/* Return whether two signatures share a handle. */
bool signature_same(const struct signature *a, const struct signature *b);
/* Describe `count` elements for the core. The result points into *s. */
pcoll_buffer signature_buffer(const struct signature *s, uint64_t count);

#endif

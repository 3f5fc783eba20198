/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one function newer than MPI 3.0 that the core calls: weak, so NULL where the MPI
 * that is loaded does not have it, which may be older or newer than the one whose header
 * is compiled. entries.h has those of the interposer.
 */
#ifndef PCOLL_TRANSPORT_MPI_NEWER_H
#define PCOLL_TRANSPORT_MPI_NEWER_H

#include <mpi.h>

int MPI_Type_get_envelope_c(MPI_Datatype type, MPI_Count *integers,
                            MPI_Count *addresses, MPI_Count *large, MPI_Count *types,
                            int *combiner) __attribute__((weak));

/* How a datatype was made. The older call refuses those made with large counts, which
 * only an MPI that has the newer one can make. An error of MPI's. */
static inline int type_combiner(MPI_Datatype type, int *combiner)
{
    MPI_Count c[4];
    int i[3];
    return MPI_Type_get_envelope_c
               ? MPI_Type_get_envelope_c(type, c, c + 1, c + 2, c + 3, combiner)
               : MPI_Type_get_envelope(type, i, i + 1, i + 2, combiner);
}

#endif

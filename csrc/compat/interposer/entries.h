/* SPDX-License-Identifier: Apache-2.0 */
/* What this MPI has of the functions that are replaced, and the place of a call. */
#ifndef PCOLL_COMPAT_INTERPOSER_ENTRIES_H
#define PCOLL_COMPAT_INTERPOSER_ENTRIES_H

#include <mpi.h>

/* Open MPI 5 has persistent collectives, but calls itself MPI 3.1. */
#if MPI_VERSION >= 4
#define PCOLL_HAVE_PERSISTENT
#define PCOLL_HAVE_LARGE
#elif defined(OMPI_MAJOR_VERSION)
#if OMPI_MAJOR_VERSION >= 5
#define PCOLL_HAVE_PERSISTENT
#endif
#endif

/* The calls that this thread makes from now on stand at this place in the program;
 * NULL: where they return to. Returns what it was before. */
const void *entries_announce(const void *call_site);

int pmpi_private_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request);
int pmpi_private_type_dup(MPI_Datatype type, MPI_Datatype *copy);

#endif

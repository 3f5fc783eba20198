/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The place of a call, and those of MPI's own functions that are newer than MPI 3.0:
 * weak, so NULL where the MPI that is loaded does not have them. What replaces them is
 * always there, and a program that looks for it (mpi4py does) calls it: older functions
 * do it then, as far as they can.
 */
#ifndef PCOLL_COMPAT_INTERPOSER_ENTRIES_H
#define PCOLL_COMPAT_INTERPOSER_ENTRIES_H

#include <mpi.h>

#define NEWER __attribute__((weak))
int PMPI_Allreduce_init(const void *sendbuf, void *recvbuf, int count,
                        MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                        MPI_Request *request) NEWER;
int PMPI_Allreduce_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                     MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) NEWER;
int PMPI_Allreduce_init_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                          MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                          MPI_Info info, MPI_Request *request) NEWER;
int PMPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm,
                             MPI_Request *request) NEWER;
#undef NEWER

/* The same of what replaces them, which the header may not know. */
int MPI_Allreduce_init(const void *sendbuf, void *recvbuf, int count,
                       MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                       MPI_Request *request);
int MPI_Allreduce_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                    MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);
int MPI_Allreduce_init_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                         MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                         MPI_Request *request);
int MPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm,
                            MPI_Request *request);

/* The calls that this thread makes from now on stand at this place in the program;
 * NULL: where they return to. Returns what it was before. */
const void *entries_announce(const void *call_site);

int pmpi_private_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request);
int pmpi_private_type_dup(MPI_Datatype type, MPI_Datatype *copy);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the program's info says about a communicator. */
#ifndef PCOLL_COMPAT_INTERPOSER_INFO_H
#define PCOLL_COMPAT_INTERPOSER_INFO_H

#include <mpi.h>

/* A communicator is used: what waited for it is remembered on it. */
void info_arrived(MPI_Comm comm);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Beginning and end of MPI in this process, as the interposer sees them. */
#ifndef PCOLL_COMPAT_INTERPOSER_PROCESS_H
#define PCOLL_COMPAT_INTERPOSER_PROCESS_H

#include <mpi.h>
#include <stdbool.h>

/* Has the interposer seen MPI begin, so that it will see the end? */
bool startup_is_running(void);

/* The function of this name that the program would call without us; NULL: MPI's own. */
void *startup_next(const char *name);

/* Does MPI communicate elements of this datatype? No, if it has not been committed. */
bool startup_type_works(MPI_Datatype type);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Around a call of the core that the program does not know of: what it calls back, and
 * how it learns of a failure. */
#ifndef PCOLL_COMPAT_INTERPOSER_CORE_CALL_H
#define PCOLL_COMPAT_INTERPOSER_CORE_CALL_H

#include <mpi.h>
#include <stdbool.h>

/* In the core: what the program's callbacks call meanwhile is not taken. Returns what
 * to give back. */
bool core_enter(void);
void core_leave(bool before);
/* In the core? */
bool core_is_inside(void);

/* MPI's error code for a failure of the core, after the error handler has seen it. */
int core_raise(MPI_Comm comm, int rc);

#endif

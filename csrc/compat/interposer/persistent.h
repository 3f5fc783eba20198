/* SPDX-License-Identifier: Apache-2.0 */
/* Persistent allreduces that were taken over: making, finding, starting, freeing. */
#ifndef PCOLL_COMPAT_INTERPOSER_PERSISTENT_H
#define PCOLL_COMPAT_INTERPOSER_PERSISTENT_H

#include "compat/interposer/intercept.h"

/* MPI_Allreduce_init. TAKEN: *request is an inactive request, *error MPI's code. */
enum outcome persistent_init(const struct call *call, MPI_Request *request, int *error);
/* The requests have been started in MPI: start the rounds of those that are ours. */
int persistent_started(int count, const MPI_Request *requests);
/* The program is about to free this request. */
void persistent_forget(MPI_Request request);

#endif

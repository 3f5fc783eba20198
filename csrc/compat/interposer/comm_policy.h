/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy of a communicator: that of its info key, else that of the environment.
 *
 * The ranks compare the environment in MPI_Init (full.h), and the key of a communicator in the
 * call that gives it info, which is collective. So an allreduce needs no comparison.
 */
#ifndef PCOLL_COMPAT_INTERPOSER_COMM_POLICY_H
#define PCOLL_COMPAT_INTERPOSER_COMM_POLICY_H

#include <mpi.h>

#include "compat/mpi_shaped/cache.h"

/* Fill in what follows from the communicator and from full_facts. Local. */
void comm_policy_settle(struct record *r, MPI_Comm comm);

/* The program gives a communicator info, with the policy `text` or without one (NULL), perhaps
 * on some of its ranks only. Collective over comm. */
void comm_policy_agree(MPI_Comm comm, const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread in MPI at a time, where ranks may die.
 *
 * Open MPI (5.0 at least) has a lock around its agreements, which MPIX_Comm_iagree and
 * MPIX_Comm_shrink take. A message for an agreement that another thread receives meanwhile,
 * in any call that makes progress, is put off, and what it carries is overwritten by the
 * addresses of its copy: the outcome is arbitrary, ranks that live count as dead, or the
 * process ends. So what makes progress here (completion.h) and what begins an agreement
 * (recovery.c) exclude each other. Calls of the program's own threads are beyond our
 * reach: docs/faults.md.
 *
 * To shrink waits for others, and theirs may wait for ours: who has waited for 200 ms goes
 * on without. Where MPI tells nothing of failures there are no agreements and no lock.
 */
#ifndef PCOLL_TRANSPORT_MPI_EXCLUSION_H
#define PCOLL_TRANSPORT_MPI_EXCLUSION_H

#include <stdbool.h>

/* What comes back belongs into `exclusion_end`, by the same thread. */
bool exclusion_begin(void);
void exclusion_end(bool begun);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank tells the command that has started its job (`partialcoll run`, `partialcoll
 * bench`; partialcoll/tools/job.py). PARTIALCOLL_JOB names the job's folder, which exists
 * on the host of the command alone; a rank of another host, or of another launcher, tells
 * nothing.
 *
 * "lock"   a file. A process that uses it holds a shared flock() until it ends, so that
 *          `partialcoll doctor` sees that the job lives, whatever namespace it is in.
 * "ranks"  a socket on which the command listens. A rank that uses the library connects
 *          to it, says "begin RANK", says "end" in MPI_Finalize, and keeps the connection
 *          until it ends. So the command knows which rank has ended without
 *          MPI_Finalize: MPICH's launcher kills the others then and may give status 0.
 *
 * A failure of any of this is ignored: the job runs without it.
 */
#ifndef PCOLL_RUNTIME_JOB_H
#define PCOLL_RUNTIME_JOB_H

#include <stdint.h>

/* MPI runs, and this process uses the library for the first time. */
void job_begin(uint32_t rank);
/* MPI_Finalize has begun. */
void job_end(void);

#endif

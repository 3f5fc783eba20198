/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI's tests, keeping the core, one thread at a time where ranks may die (exclusion.h).
 *
 * Open MPI gives the core away inside every test that finds nothing once it has been
 * told that ranks share cores. Where ranks only wait, that costs nothing. Beside a
 * thread that computes it costs that thread's whole time slice, which no ring can cut
 * short, and the driver holds the drive lock meanwhile. Our waits yield and sleep by
 * themselves (progress.c), so their tests do without.
 *
 * The switch is Open MPI's own and not part of MPI: where it is not found, nothing
 * changes. It is one flag of the process, which the other threads read in their own
 * tests: while one of ours lasts, they may look again without a yield in between.
 *
 * Protocol. Whether idle tests yield is looked up once and does not change while MPI
 * runs. Only if they do the flag is written, off before each test and on after it, by
 * any number of threads: the last write of each is "on", so the last of all is, and
 * another's "on" in the midst of a test costs a yield. Another copy of this file in the
 * process that looks it up in the midst of a test leaves it alone from then on.
 */
#ifndef PCOLL_TRANSPORT_MPI_COMPLETION_H
#define PCOLL_TRANSPORT_MPI_COMPLETION_H

#include <mpi.h>

/* As MPI_Test, MPI_Testall, MPI_Testsome and MPI_Request_get_status. */
int mpi_test(MPI_Request *request, int *done);
int mpi_test_one(MPI_Request *request, int *done, MPI_Status *status);
int mpi_test_all(int count, MPI_Request *requests, int *done);
int mpi_test_some(int count, MPI_Request *requests, int *finished, int *done,
                  MPI_Status *statuses);
int mpi_get_status(MPI_Request request, int *done);
/* For who has nothing to ask for: MPI finds things out in its calls. */
void mpi_make_progress(void);

#endif

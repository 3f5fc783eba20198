/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI's extension for ranks that die: ULFM, User-Level Failure Mitigation, of Open MPI 5 with
 * `mpiexec --with-ft ulfm`. Elsewhere pcoll_tells_of_failures() is 0, and each of the others
 * says that there is no such operation. As MPI's own, without this library's exclusion of
 * other threads (mpi_recovery.h).
 */
#ifndef PCOLL_TRANSPORT_MPI_MPI_CALLS_H
#define PCOLL_TRANSPORT_MPI_MPI_CALLS_H

#include <mpi.h>
#include <stdbool.h>

/* The error of a call that failed because a rank has died; MPI_ERR_OTHER without ULFM. */
int ulfm_rank_failure(void);
bool ulfm_is_rank_failure(int mpi_error);

int ulfm_get_failed(MPI_Comm comm, MPI_Group *failed);
bool ulfm_is_revoked(MPI_Comm comm);
int ulfm_revoke(MPI_Comm comm);
int ulfm_shrink(MPI_Comm comm, MPI_Comm *out);
int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request);

/*
 * MPI's tests, keeping the core, one thread at a time where ranks may die (mpi_recovery.h).
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

/* As MPI_Test, MPI_Testall, MPI_Testsome and MPI_Request_get_status. */
int mpi_test(MPI_Request *request, int *done);
int mpi_test_one(MPI_Request *request, int *done, MPI_Status *status);
int mpi_test_all(int count, MPI_Request *requests, int *done);
int mpi_test_some(int count, MPI_Request *requests, int *finished, int *done,
                  MPI_Status *statuses);
int mpi_get_status(MPI_Request request, int *done);
/* For who has nothing to ask for: MPI finds things out in its calls. */
void mpi_make_progress(void);

/*
 * What MPI says of ranks that have died. Where the MPI tells nothing, its launcher
 * ends the job and nothing here is ever needed.
 *
 * A receive from anybody on the transport's communicator is always posted, and MPI ends it with
 * an error when a member dies: so whoever polls learns of it, without a message.
 */

/* As mpi_check (mpi_transport.h), of a call on this communicator: PCOLL_EFAILED, and who,
 * if it failed because ranks have died. */
int mpi_check_on(MPI_Comm comm, int mpi_error, const char *what);

/*
 * The one function newer than MPI 3.0 that the core calls: weak, so NULL where the MPI
 * that is loaded does not have it, which may be older or newer than the one whose header
 * is compiled. interposer.h has those of the interposer.
 */

int MPI_Type_get_envelope_c(MPI_Datatype type, MPI_Count *integers,
                            MPI_Count *addresses, MPI_Count *large, MPI_Count *types,
                            int *combiner) __attribute__((weak));

/* How a datatype was made. The older call refuses those made with large counts, which
 * only an MPI that has the newer one can make. An error of MPI's. */
static inline int type_combiner(MPI_Datatype type, int *combiner)
{
    MPI_Count c[4];
    int i[3];
    return MPI_Type_get_envelope_c
               ? MPI_Type_get_envelope_c(type, c, c + 1, c + 2, c + 3, combiner)
               : MPI_Type_get_envelope(type, i, i + 1, i + 2, combiner);
}

#endif

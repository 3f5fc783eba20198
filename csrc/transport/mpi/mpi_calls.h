/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of MPI that need care.
 *
 * Exclusion. Where ranks may die, one thread at a time is in MPI. Open MPI (5.0 at least) has a
 * lock around its agreements, which MPIX_Comm_iagree and MPIX_Comm_shrink take. If another thread
 * receives a message for an agreement meanwhile, in any call that makes progress, Open MPI
 * postpones the message and overwrites its content by the addresses of its copy. The outcome is
 * then arbitrary, living ranks count as dead, or the process ends. So all tests of requests
 * exclude what begins an agreement. They cannot exclude calls of the program's own threads:
 * docs/faults.md. Where MPI does not report failures, there are no agreements and no lock.
 *
 * A test, or the beginning of an agreement, waits for no other rank: other threads wait until
 * the call returns, however long that takes. MPIX_Comm_shrink waits for other ranks, whose calls
 * may wait for ours. A thread that has waited during 200 ms of such a call goes on without the
 * lock (docs/locking.md says what can happen then).
 */
#ifndef PCOLL_TRANSPORT_MPI_MPI_CALLS_H
#define PCOLL_TRANSPORT_MPI_MPI_CALLS_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct failed_ranks;

/*
 * ULFM (User-Level Failure Mitigation), MPI's extension for ranks that die: Open MPI 5 with
 * `mpiexec --with-ft ulfm`. Elsewhere pcoll_tells_of_failures() is 0, and the other functions say
 * that there is no such operation. They are MPI's, with the exclusion.
 */

/* Return the error of a call that failed because a rank has died; MPI_ERR_OTHER without ULFM. */
int ulfm_rank_failure(void);
bool ulfm_is_rank_failure(int mpi_error);
bool ulfm_is_revoked(MPI_Comm comm);
int ulfm_revoke(MPI_Comm comm);
int ulfm_shrink(MPI_Comm comm, MPI_Comm *out);
int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request);

/* Return the set of the ranks in `comm` that have died, as far as MPI knows; NULL if it does not
 * say, or without memory. The caller frees the set. */
uint64_t *mpi_find_failed(MPI_Comm comm);
/* Fill in who->rank and who->count: the lowest of `size` ranks that are in the set, or none (NULL).
 */
void mpi_name_ranks(const uint64_t *set, uint32_t size, struct failed_ranks *who);

/* Like mpi_check (mpi_transport.h), for a call on this communicator: PCOLL_EFAILED, and which
 * ranks, if it failed because ranks have died. */
int mpi_check_on(MPI_Comm comm, int mpi_error, const char *what);

/*
 * MPI's tests with the exclusion, and without giving up the core.
 *
 * Open MPI gives up the core inside every test that finds nothing, once it knows that ranks share
 * cores. Where ranks only wait, that costs nothing. Beside a thread that computes it costs that
 * thread's whole time slice, which no doorbell can cut short, and the driver holds the drive
 * lock meanwhile. Our waits yield and sleep by themselves (runtime/progress.c), so their tests
 * switch this off. The switch is Open MPI's own and no part of MPI: where it is not found, nothing
 * changes. It is one flag of the process, which other threads read in their own tests: during one
 * of ours, they may poll again without a yield.
 *
 * Protocol. Whether idle tests yield is looked up once and does not change while MPI runs. Only if
 * they do, any number of threads write the flag: off before each test and on after it. The
 * last write of each thread is "on", so the last of all is. Another thread's "on" during a test
 * costs a yield. Another copy of this file in the process that looks the flag up during a
 * test never writes it.
 */
int mpi_test(MPI_Request *request, int *done);
int mpi_test_one(MPI_Request *request, int *done, MPI_Status *status);
int mpi_test_all(int count, MPI_Request *requests, int *done);
int mpi_test_some(int count, MPI_Request *requests, int *finished, int *done,
                  MPI_Status *statuses);
int mpi_get_status(MPI_Request request, int *done);
/* Let MPI make progress. */
void mpi_make_progress(void);
/* Sleep for *us microseconds, and twice as long the next time, but not longer than `most`. */
void mpi_back_off(long *us, long most);

/* A datatype. Predefined ones may have gaps inside (MPI_DOUBLE_INT): these may travel. In a derived
 * one a gap may hold data of the program, so such datatypes cannot be reduced. */
struct mpi_layout {
    MPI_Count size, lb, extent;
    bool derived, gaps;
};
int mpi_layout_of(MPI_Datatype type, struct mpi_layout *layout);

#endif

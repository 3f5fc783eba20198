/* SPDX-License-Identifier: Apache-2.0 */
/* Counting calls by what became of them. */
#include "compat/interposer/report.h"

#include <mpi.h>

#include "compat/interposer/settings.h"

static const char *const reasons[OUTCOMES] = {
    [TAKEN] = "taken over",
    [PASSED_FULL] = "complete round, MPI is faster",
    [PASSED_FIRST] = "first call of its kind, partial",
    [PASSED_OUTSIDE] = "before MPI_Init or inside MPI_Finalize",
    [PASSED_OTHER_WORLD] = "processes of another MPI_COMM_WORLD",
    [PASSED_NO_ELEMENTS] = "no elements",
    [PASSED_ARGUMENTS] = "arguments for MPI to judge",
    [PASSED_ORDERED] = "operation that does not commute",
    [PASSED_GAPS] = "datatype with gaps",
    [PASSED_OP_OF_USER] = "operation of the user, partial or persistent",
    [PASSED_INTERCOMM] = "inter-communicator",
    [PASSED_THREADS] = "needs MPI_THREAD_MULTIPLE",
    [PASSED_CACHE] = "too many or too large signatures to keep",
    [PASSED_LIMIT] = "too many communicators",
    [PASSED_REFUSED] = "no handle could be made",
    [PASSED_NESTED] = "called from inside another one",
};

_Atomic uint64_t report_counts[OUTCOMES];
bool report_wanted = true;

uint64_t report_calls(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < OUTCOMES; i++)
        sum += atomic_load(&report_counts[i]);
    return sum;
}

void report_print(void)
{
    uint64_t own[OUTCOMES], sum[OUTCOMES], passed = 0;
    int rank;
    for (int i = 0; i < OUTCOMES; i++)
        own[i] = atomic_load(&report_counts[i]);
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Reduce(own, sum, OUTCOMES, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank)
        return;
    for (int i = TAKEN + 1; i < OUTCOMES; i++)
        passed += sum[i];
    report_warn("calls of MPI_Allreduce on all ranks: %llu taken over, %llu passed to MPI",
         (unsigned long long)sum[TAKEN], (unsigned long long)passed);
    for (int i = TAKEN + 1; i < OUTCOMES; i++)
        if (sum[i])
            report_warn("  passed: %llu (%s)", (unsigned long long)sum[i], reasons[i]);
    if (sum[TAKEN] + passed == 0)
        report_warn("  no call came here: see \"Calls that do not come here\" in "
             "docs/interposer.md");
}

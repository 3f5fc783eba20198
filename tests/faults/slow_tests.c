/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preload this: tests of requests take long, as on a machine where a thread inside MPI loses
 * its core. End the process if an agreement begins during a test of another thread.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef int agree(MPI_Comm comm, int *flag, MPI_Request *request);

static atomic_int inside, calls;

__attribute__((visibility("default"))) int MPI_Testsome(int count,
                                                        MPI_Request requests[],
                                                        int *finished, int done[],
                                                        MPI_Status statuses[])
{
    atomic_fetch_add(&inside, 1);
    if (atomic_fetch_add(&calls, 1) % 64 == 63)
        usleep(400000);
    int rc = PMPI_Testsome(count, requests, finished, done, statuses);
    atomic_fetch_sub(&inside, 1);
    return rc;
}

__attribute__((visibility("default"))) int PMPIX_Comm_iagree(MPI_Comm comm, int *flag,
                                                             MPI_Request *request)
{
    static const char said[] = "an agreement has begun during a test\n";
    agree *own = (agree *)dlsym(RTLD_NEXT, "PMPIX_Comm_iagree");
    if (atomic_load(&inside)) {
        (void)!write(STDERR_FILENO, said, sizeof said - 1);
        abort();
    }
    return own(comm, flag, request);
}

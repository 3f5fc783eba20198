/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's request tests do not yield the core (transport/mpi/mpi_internal.h). The
 * program wraps MPI functions like a profiler, and records Open MPI's switch during each
 * test and after all of them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../pmpi/say.h"
#include <partialcoll.h>

static const volatile bool *yields; /* Open MPI's switch */
static atomic_int kept, given;

static void note(void)
{
    if (yields)
        atomic_fetch_add(*yields ? &given : &kept, 1);
}

int MPI_Request_get_status(MPI_Request request, int *done, MPI_Status *status)
{
    note();
    return PMPI_Request_get_status(request, done, status);
}

int MPI_Testsome(int count, MPI_Request requests[], int *finished, int done[],
                 MPI_Status statuses[])
{
    note();
    return PMPI_Testsome(count, requests, finished, done, statuses);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    yields = dlsym(RTLD_DEFAULT, "opal_progress_yield_when_idle");
    CHECK(yields && *yields);
    for (int i = 0; i < 20; i++) {
        double x = i, y;
        CHECK(PCOLL_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD) == 0);
    }
    while (!*yields) /* until the agent is in a test */
        sched_yield();
    CHECK(kept > 0 && given == 0);
    SAY("fine\n");
    MPI_Finalize();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A counter whose last rank makes no call while the others make CALLS calls, which only
 * deliver=all allows. Its next call returns the reduction of all these rounds, with a sum and a maximum.
 *
 * arguments: the policy; "lost" if it keeps too few rounds for that
 */
#include "say.h"

enum { CALLS = 50 };

static MPI_Comm give(const char *policy)
{
    MPI_Comm comm;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "partialcoll_quorum", policy);
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
    MPI_Info_free(&info);
    return comm;
}

static double count(MPI_Comm comm, double steps)
{
    double sum = -1;
    MPI_Allreduce(&steps, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
    return sum;
}

static int newest(MPI_Comm comm, int step)
{
    int most = -1;
    MPI_Allreduce(&step, &most, 1, MPI_INT, MPI_MAX, comm);
    return most;
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int late = size - 1, seen_newest = 0;
    double seen = 0;
    MPI_Comm counts = give(argv[1]), steps = give(argv[1]);
    for (int i = 0; i < CALLS; i++) {
        if (rank == late && i == 2) { /* call 1 creates the handles */
            for (int other = 0; other < late; other++)
                MPI_Recv(NULL, 0, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            break;
        }
        seen += count(counts, 1);
        seen_newest = newest(steps, i);
    }
    if (rank != late)
        MPI_Send(NULL, 0, MPI_INT, late, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 2; i++) { /* late data */
        seen += count(counts, 0);
        seen_newest = newest(steps, CALLS);
    }
    CHECK(seen_newest == CALLS);
    if (argc < 3)
        CHECK(seen == (size - 1) * CALLS + 2);
    MPI_Comm_free(&counts);
    MPI_Comm_free(&steps);
    SAY("ahead\n");
    MPI_Finalize();
    return 0;
}

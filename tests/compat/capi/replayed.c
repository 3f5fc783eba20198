/* SPDX-License-Identifier: Apache-2.0 */
/* Partial sums, for which the given rank is late. Each rank prints its own. */
#include <stdlib.h>
#include <unistd.h>

#include "../pmpi/say.h"
#include <partialcoll.h>

int main(int argc, char **argv)
{
    int level, late = argc > 1 ? atoi(argv[1]) : 0;
    double all[2][4];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double own[4];
    for (int i = 0; i < 4; i++) {
        double x = 10 * i + rank + 1;
        if (rank == late)
            usleep(400000);
        CHECK(PCOLL_Allreduce(&x, &own[i], 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD) ==
              MPI_SUCCESS);
    }
    MPI_Gather(own, 4, MPI_DOUBLE, all, 4, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int i = 0; i < 4; i++)
        SAY("%g %g\n", all[0][i], all[1][i]);
    MPI_Finalize();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One replaced call: PCOLL_Allreduce for MPI_Allreduce, in a loop in which each rank is late
 * in turn. Rounds leave out late ranks. Over the whole loop nothing is lost.
 *
 *   mpicc allreduce.c $(partialcoll config --cflags --libs) -o allreduce
 *   mpiexec -n 4 ./allreduce
 */
#include <mpi.h>
#include <partialcoll.h>
#include <stdio.h>
#include <unistd.h>

enum { STEPS = 20 };

int main(int argc, char **argv)
{
    int level, rank, size, wrong;
    double gradient = 1, sum, total = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    PCOLL_Comm_set_quorum(MPI_COMM_WORLD, "majority,linger=100us");

    for (int step = 0; step < STEPS + 2; step++) {
        if (step < STEPS)
            usleep((rank + step) % size * 1000u);
        else { /* two more rounds without new data collect late data */
            gradient = 0;
            MPI_Barrier(MPI_COMM_WORLD);
        }
        PCOLL_Allreduce(&gradient, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        total += sum;
        if (rank == 0)
            printf("step %d: %g of %d\n", step, sum, step < STEPS ? size : 0);
    }
    wrong = total != STEPS * size;
    if (rank == 0)
        printf("in all %g of %d\n", total, STEPS * size);
    MPI_Finalize();
    return wrong;
}

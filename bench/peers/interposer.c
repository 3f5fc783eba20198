/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of MPI_Allreduce in a second, of so many doubles: a plain MPI program, for
 * interposer.py. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void add(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *n; i++)
        ((double *)inout)[i] += ((double *)in)[i];
}

static double run(int calls, int count, MPI_Op op)
{
    double *x = calloc((size_t)count, sizeof *x), *y = calloc((size_t)count, sizeof *y);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int i = 0; i < calls; i++)
        MPI_Allreduce(x, y, count, MPI_DOUBLE, op, MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - began;
    free(x);
    free(y);
    return calls / seconds;
}

int main(int argc, char **argv)
{
    int rank, calls = argc > 1 ? atoi(argv[1]) : 100000;
    int count = argc > 2 ? atoi(argv[2]) : 1;
    MPI_Op own;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Op_create(add, 1, &own);
    for (int user = 0; user < 2; user++) {
        MPI_Op op = user ? own : MPI_SUM;
        run(calls / 10 + 1, count, op);
        double rate = run(calls, count, op);
        if (rank == 0)
            printf("%s %.0f\n", user ? "user" : "sum", rate);
    }
    MPI_Op_free(&own);
    MPI_Finalize();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Print how many calls of MPI_Allreduce with `count` doubles this job makes in a second, for
 * MPI_SUM and for an op of the user. A plain MPI program for interposer.py. Arguments: the
 * seconds to measure, and the count. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void add(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *n; i++)
        ((double *)inout)[i] += ((double *)in)[i];
}

/* Return the seconds that the calls take on rank 0. */
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
    MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return seconds;
}

/* Double the number of calls until at least four calls take `seconds`. Return the calls per second
 * of the last batch. */
static double measure(double seconds, int count, MPI_Op op)
{
    for (int calls = 1;; calls *= 2) {
        double took = run(calls, count, op);
        if ((took >= seconds && calls >= 4) || calls > 1 << 29)
            return calls / took;
    }
}

int main(int argc, char **argv)
{
    int rank, count = argc > 2 ? atoi(argv[2]) : 1;
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    MPI_Op own;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Op_create(add, 1, &own);
    for (int user = 0; user < 2; user++) {
        MPI_Op op = user ? own : MPI_SUM;
        double rate = measure(seconds, count, op);
        if (rank == 0)
            printf("%s %.6g\n", user ? "user" : "sum", rate);
    }
    MPI_Op_free(&own);
    MPI_Finalize();
    return 0;
}

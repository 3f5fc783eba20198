/* SPDX-License-Identifier: Apache-2.0 */
/* Threads on their own communicators, in another order on every rank. Each may run
 * another one's op meanwhile. */
#include <pthread.h>

#include "say.h"

enum { THREADS = 4, ROUNDS = 200 };
static MPI_Comm comms[THREADS];

static void join_up(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < 5 * *n; i++)
        ((double *)inout)[i] += ((double *)in)[i];
}

/* Free the op and the datatype right after the call. */
static void reduce(int with_own, double *x, double *y, MPI_Comm comm)
{
    MPI_Datatype five;
    MPI_Op op;
    if (!with_own) {
        MPI_Allreduce(x, y, 5, MPI_DOUBLE, MPI_SUM, comm);
        return;
    }
    MPI_Type_contiguous(5, MPI_DOUBLE, &five);
    MPI_Type_commit(&five);
    MPI_Op_create(join_up, 1, &op);
    MPI_Allreduce(x, y, 1, five, op, comm);
    MPI_Op_free(&op);
    MPI_Type_free(&five);
}

static void *work(void *arg)
{
    MPI_Comm comm = *(MPI_Comm *)arg;
    for (int i = 0; i < ROUNDS; i++) {
        double x[5] = {rank, i, 1, 2, 3}, y[5];
        reduce(i % 2, x, y, comm);
        CHECK(y[0] == size * (size - 1) / 2.0 && y[1] == i * size);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int level;
    pthread_t threads[THREADS];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(level == MPI_THREAD_MULTIPLE);
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &comms[(i + rank) % THREADS]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_free(&comms[i]);
    SAY("threads\n");
    MPI_Finalize();
    return 0;
}

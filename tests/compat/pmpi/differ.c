/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks differ in their environment, or in the order of their threads. */
#include <pthread.h>
#include <unistd.h>

#include "say.h"

static MPI_Comm comms[2];

static void *reduce(void *comm)
{
    int one = 1, sum = 0;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, *(MPI_Comm *)comm);
    CHECK(sum == size);
    return NULL;
}

/* The first thread of each rank is in its call before the second begins. */
static void order(void)
{
    pthread_t thread;
    for (int i = 0; i < 2; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    pthread_create(&thread, NULL, reduce, &comms[rank % 2]);
    usleep(300000);
    reduce(&comms[(rank + 1) % 2]);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++)
        MPI_Comm_free(&comms[i]);
}

int main(int argc, char **argv)
{
    int level;
    const char *what = argc > 1 ? argv[1] : "";
    const char *ours =
        getenv("PMI_RANK") ? getenv("PMI_RANK") : getenv("OMPI_COMM_WORLD_RANK");
    MPI_Comm world = MPI_COMM_WORLD;
    if (strcmp(what, "order") && ours && !strcmp(ours, "0")) {
        setenv("PARTIALCOLL_REPORT", "1", 1);
        if (!strcmp(what, "domain"))
            setenv("PARTIALCOLL_DOMAIN", "auto", 1);
        if (!strcmp(what, "table"))
            setenv("PARTIALCOLL_TUNE", argv[2], 1);
    }
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (!strcmp(what, "order"))
        order();
    for (int i = 0; i < 3 && strcmp(what, "order"); i++)
        reduce(&world);
    SAY("%s\n", what);
    MPI_Finalize();
    return 0;
}

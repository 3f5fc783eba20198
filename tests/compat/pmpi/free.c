/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that ranks free in different orders, between messages, or late. */
#include <unistd.h>

#include "say.h"

enum { COMMS = 24 };

/* Partial rounds may lack some ranks. */
static void reduce(MPI_Comm comm)
{
    int x = 1, sum = 0;
    for (int i = 0; i < 3; i++)
        MPI_Allreduce(&x, &sum, 1, MPI_INT, MPI_SUM, comm);
}

static void make(MPI_Comm *comms, int count)
{
    for (int i = 0; i < count; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        reduce(comms[i]);
    }
}

static void free_in_different_orders(void)
{
    MPI_Comm comms[COMMS];
    for (int k = 0; k < 4; k++) {
        make(comms, COMMS);
        for (int i = 0; i < COMMS; i++)
            MPI_Comm_free(&comms[(i * (rank % 2 ? COMMS - 1 : 1) + 5 * rank) % COMMS]);
    }
}

/* A rank frees after the previous rank has. */
static void free_one_after_the_other(void)
{
    MPI_Comm comms[2];
    make(comms, 2);
    if (rank)
        MPI_Recv(NULL, 0, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Comm_free(&comms[0]);
    if (rank + 1 < size)
        MPI_Send(NULL, 0, MPI_INT, rank + 1, 0, MPI_COMM_WORLD);
    MPI_Comm_free(&comms[1]);
}

#if MPI_VERSION >= 4
static void free_with_requests(void)
{
    MPI_Comm comms[2];
    MPI_Request request;
    int x = 1, sums[2];
    make(comms, 2);
    for (int i = 0; i < 2; i++) {
        MPI_Allreduce_init(&x, &sums[i], 1, MPI_INT, MPI_SUM, comms[i], MPI_INFO_NULL,
                           &request);
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Request_free(&request);
    }
    MPI_Comm_free(&comms[rank % 2]);
    MPI_Comm_free(&comms[!(rank % 2)]);
}
#else
static void free_with_requests(void)
{
}
#endif

/* Rank 0 ends before the others, which come when it has written that it waits. */
static void come_late(const char *path)
{
    MPI_Comm comm;
    make(&comm, 1);
    if (rank == 0)
        CHECK(freopen(path, "w", stderr) && !setvbuf(stderr, NULL, _IONBF, 0));
    MPI_Barrier(MPI_COMM_WORLD);
    for (FILE *f; rank && (f = fopen(path, "r")); fclose(f))
        if (fgetc(f) != EOF)
            break;
        else
            usleep(1000);
    MPI_Comm_free(&comm);
}

/* More communicators at once than can have handles. */
static void keep_many(int count)
{
    MPI_Comm *comms = malloc((size_t)count * sizeof *comms);
    make(comms, count);
    for (int i = 0; i < count; i++)
        MPI_Comm_free(&comms[i]);
    free(comms);
}

/* Use up MPI's communicators, if their number is limited. */
static void leave_none(void)
{
    enum { MOST = 2100 };
    static MPI_Comm parent, comms[MOST];
    int count = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &parent);
    MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN);
    while (count < MOST && MPI_Comm_dup(parent, &comms[count]) == MPI_SUCCESS)
        count++;
    reduce(MPI_COMM_WORLD);
    while (count)
        MPI_Comm_free(&comms[--count]);
    MPI_Comm_free(&parent);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    if (argc > 1 && !strcmp(argv[1], "many")) {
        keep_many(atoi(argv[2]));
    } else if (argc > 1 && !strcmp(argv[1], "none")) {
        leave_none();
    } else if (argc > 1) {
        come_late(argv[1]);
    } else {
        free_in_different_orders();
        free_one_after_the_other();
        free_with_requests();
    }
    SAY("freed\n");
    MPI_Finalize();
    return 0;
}

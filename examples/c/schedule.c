/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule: each rank sends a value to the next one in a ring and adds the value of the
 * previous one as soon as it arrives. The schedule is built once and run many times in the
 * background.
 *
 *   mpicc schedule.c $(partialcoll config --cflags --libs) -o schedule
 *   mpiexec -n 4 ./schedule
 */
#include <mpi.h>
#include <partialcoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { RUNS = 10, COUNT = 1000 };

/* Every function returns PCOLL_OK or a negative code; the text says what is wrong. */
static void check(int rc)
{
    if (rc == PCOLL_OK)
        return;
    fprintf(stderr, "partialcoll: %s\n", pcoll_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Each run uses these buffers in place. */
static double mine[COUNT], theirs[COUNT], sum[COUNT];

static pcoll_schedule *make(MPI_Comm comm, int rank, int size)
{
    const pcoll_buffer shape = {
        .count = COUNT, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    int32_t send, receive, copy, add;
    pcoll_schedule *s;
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    check(pcoll_schedule_create(&comm, &s));
    check(pcoll_schedule_send(s, mine, &shape, next, 0, "to the next", &send));
    check(pcoll_schedule_recv(s, theirs, &shape, last, 0, "from the last", &receive));
    check(pcoll_schedule_copy(s, mine, sum, &shape, "begin with mine", &copy));
    check(pcoll_schedule_reduce(s, theirs, sum, &shape, "add theirs", &add));
    const int32_t before_add[] = {receive, copy};
    check(pcoll_schedule_after(s, add, before_add, 2, 0)); /* 0: all of them */
    check(
        pcoll_schedule_commit(s, PCOLL_PROGRESS_AGENT)); /* compares all ranks' parts */
    return s;
}

/* A wait returns now and then, so that signals can be handled. */
static void finish(pcoll_schedule *schedule)
{
    int rc;
    do
        rc = pcoll_schedule_wait(schedule, 100000);
    while (rc == PCOLL_EAGAIN);
    check(rc);
}

int main(int argc, char **argv)
{
    int level, rank, size, wrong = 0;
    char *text;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    pcoll_schedule *schedule = make(MPI_COMM_WORLD, rank, size);
    check(pcoll_schedule_text(schedule, "text", &text));
    if (rank == 0)
        printf("%s", text);
    pcoll_text_free(text);
    for (int run = 0; run < RUNS; run++) {
        for (int i = 0; i < COUNT; i++)
            mine[i] = run * 100 + rank;
        check(pcoll_schedule_start(schedule));
        finish(schedule);
        wrong |= sum[COUNT - 1] != 200 * run + rank + (rank + size - 1) % size;
    }
    if (rank == 0)
        printf("%d runs, %s\n", RUNS, wrong ? "wrong" : "all as expected");
    while (pcoll_schedule_free(&schedule, 100000) == PCOLL_EAGAIN)
        ;
    MPI_Finalize();
    return wrong;
}

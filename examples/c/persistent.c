/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A persistent handle: two buffers in one round, deposits written in place, and the
 * description of each round.
 *
 *   mpicc persistent.c $(partialcoll config --cflags --libs) -o persistent
 *   mpiexec -n 4 ./persistent
 */
#include <mpi.h>
#include <partialcoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 10, COUNT = 1000 };

/* Every function returns PCOLL_OK or a negative code; the text says what is wrong. */
static void check(int rc)
{
    if (rc == PCOLL_OK)
        return;
    fprintf(stderr, "partialcoll: %s\n", pcoll_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* A wait returns now and then, so that signals can be handled. */
static void take(pcoll_handle *handle, void *const *recv, pcoll_round *round)
{
    int rc;
    do
        rc = pcoll_handle_take(handle, 100000, recv, round, NULL);
    while (rc == PCOLL_EAGAIN);
    check(rc);
}

static void deposit(pcoll_handle *handle, int step)
{
    void *weights, *count;
    check(pcoll_handle_send_slot(handle, 0, &weights));
    check(pcoll_handle_send_slot(handle, 1, &count));
    for (int i = 0; i < COUNT; i++)
        ((float *)weights)[i] = (float)step;
    *(int64_t *)count = 1;
    check(pcoll_handle_start(handle, NULL));
}

int main(int argc, char **argv)
{
    int level, rank, size, wrong = 0;
    static float weights[COUNT];
    int64_t ranks;
    void *recv[] = {weights, &ranks};
    pcoll_buffer buffers[] = {
        {.count = COUNT, .dtype = PCOLL_FLOAT32, .op = PCOLL_SUM},
        {.count = 1, .dtype = PCOLL_INT64, .op = PCOLL_SUM},
    };
    pcoll_options options;
    pcoll_handle *handle;
    pcoll_round round;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm comm = MPI_COMM_WORLD;
    pcoll_options_init(&options);
    options.owned_send = 1;
    check(pcoll_policy_parse("quorum:0.75", &options.policy));
    check(pcoll_allreduce_create(&comm, buffers, 2, &options, &handle));

    for (int step = 0; step < STEPS; step++) {
        deposit(handle, step);
        take(handle, recv, &round);
        if (rank == 0)
            printf("round %d: %u of %d ranks\n", (int)round.index, round.active, size);
        /* The number of contributions, counted twice: late deposits carry their count
         * along. */
        wrong |= ranks < (int64_t)round.active || (int)round.active * 4 < size * 3;
    }
    while (pcoll_handle_free(&handle, 100000) == PCOLL_EAGAIN)
        ;
    MPI_Finalize();
    return wrong;
}

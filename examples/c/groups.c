/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Averaging in groups: ranks on a virtual grid make one round along each of its axes. If
 * they fill the grid, all then have the average of all. After that the last rank leaves,
 * and the others continue without it: the sum over all ranks is constant.
 *
 *   mpicc groups.c $(partialcoll config --cflags --libs) -o groups
 *   mpiexec -n 4 ./groups
 */
#include <math.h>
#include <mpi.h>
#include <partialcoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000 };

/* Every function returns PCOLL_OK or a negative code; the text says what is wrong. */
static void check(int rc)
{
    if (rc == PCOLL_OK)
        return;
    fprintf(stderr, "partialcoll: %s\n", pcoll_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static pcoll_group *make(MPI_Comm comm)
{
    pcoll_group_options options;
    pcoll_group *group;
    pcoll_group_options_init(&options);
    options.count = COUNT;
    options.dtype = PCOLL_FLOAT64;
    options.timeout_us = 60 * 1000000; /* longer than any delay here */
    check(pcoll_group_create(&comm, &options, &group));
    return group;
}

/* A wait returns now and then, so that signals can be handled. */
static void average(pcoll_group *group, double *x, pcoll_group_round *round)
{
    int rc;
    check(pcoll_group_start(group, x));
    do
        rc = pcoll_group_wait(group, 100000, x, round);
    while (rc == PCOLL_EAGAIN);
    check(rc);
}

/* Make one round along each axis. Return the last one. */
static pcoll_group_round average_all(pcoll_group *group, double *x)
{
    pcoll_group_shape shape;
    pcoll_group_round round = {.exact = 0};
    check(pcoll_group_get_shape(group, &shape));
    for (uint32_t axis = 0; axis < shape.axes; axis++)
        average(group, x, &round);
    return round;
}

static void begin_with(double *x, double value)
{
    for (int i = 0; i < COUNT; i++)
        x[i] = value;
}

/* Return whether the sum over all ranks is still that of the rank numbers. */
static int sum_stays(const double *x, int size)
{
    double sum;
    MPI_Allreduce(&x[COUNT - 1], &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return fabs(sum - size * (size - 1) / 2.0) < 1e-9;
}

int main(int argc, char **argv)
{
    int level, rank, size, right;
    static double x[COUNT];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    pcoll_group *group = make(MPI_COMM_WORLD);
    begin_with(x, rank);
    pcoll_group_round round = average_all(group, x);
    if (rank == 0)
        printf("average of all: %g, %s\n", x[0], round.exact ? "exact" : "nearly");
    right = sum_stays(x, size);
    right &= !round.exact || fabs(x[0] - (size - 1) / 2.0) < 1e-12;

    begin_with(x, rank);
    if (rank == size - 1)
        check(pcoll_group_leave(group));
    else
        round = average_all(group, x);
    if (rank == 0)
        printf("without rank %d: %g, in a group of %u\n", size - 1, x[0],
               round.members);
    right &= sum_stays(x, size);

    while (pcoll_group_free(&group, 100000) == PCOLL_EAGAIN)
        ;
    MPI_Finalize();
    return !right;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gossip: ranks average their models in pairs at any time, without waiting for each other.
 * The sum over the ranks is constant. Now and then all ranks compare how far apart the
 * models are, until all equal the average.
 *
 *   mpicc gossip.c $(partialcoll config --cflags --libs) -o gossip
 *   mpiexec -n 4 ./gossip
 */
#include <math.h>
#include <mpi.h>
#include <partialcoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { AVERAGINGS = 20, COUNT = 1000 };

/* Every function returns PCOLL_OK or a negative code; the text says what is wrong. */
static void check(int rc)
{
    if (rc == PCOLL_OK)
        return;
    fprintf(stderr, "partialcoll: %s\n", pcoll_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static pcoll_gossip *make(MPI_Comm comm)
{
    pcoll_gossip_options options;
    pcoll_gossip *gossip;
    pcoll_gossip_options_init(&options);
    options.count = COUNT;
    options.dtype = PCOLL_FLOAT64;
    check(pcoll_gossip_create(&comm, &options, &gossip));
    return gossip;
}

/* Add the deltas of other ranks, then publish the model: always do both. */
static void refresh(pcoll_gossip *gossip, double *model)
{
    uint64_t deltas, version;
    check(pcoll_gossip_collect(gossip, model, NULL, 0, &deltas));
    check(pcoll_gossip_publish(gossip, model, &version));
}

/* Average with this peer, unless it already has too many deltas to collect. */
static int average(pcoll_gossip *gossip, int peer, double *model)
{
    int32_t averaged;
    refresh(gossip, model);
    check(pcoll_gossip_average(gossip, (uint32_t)peer, model, 0.5, NULL, 0, &averaged));
    return averaged;
}

/* Make AVERAGINGS averagings with random ranks. A rank that is done collects until all
 * are. */
static void gossip_about(pcoll_gossip *gossip, double *model, int rank, int size)
{
    MPI_Request all = MPI_REQUEST_NULL;
    int done = size == 1 ? AVERAGINGS : 0, over = 0;
    while (!over) {
        if (done < AVERAGINGS)
            done += average(gossip, (rank + 1 + rand() % (size - 1)) % size, model);
        else if (all == MPI_REQUEST_NULL)
            MPI_Ibarrier(MPI_COMM_WORLD, &all);
        refresh(gossip, model);
        if (all != MPI_REQUEST_NULL)
            MPI_Test(&all, &over, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* no more deltas are sent */
    refresh(gossip, model);
}

/* Return how far apart the models are. */
static double spread(const double *model)
{
    double least, most;
    MPI_Allreduce(model, &least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(model, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most - least;
}

int main(int argc, char **argv)
{
    int level, rank, size;
    static double model[COUNT];
    double sum, expected, apart;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    srand((unsigned)rank);
    for (int i = 0; i < COUNT; i++)
        model[i] = rank;

    pcoll_gossip *gossip = make(MPI_COMM_WORLD);
    refresh(gossip, model);
    MPI_Barrier(MPI_COMM_WORLD); /* now every rank has published */
    while ((apart = spread(model)) > 1e-6) {
        if (rank == 0)
            printf("the models are %g apart\n", apart);
        gossip_about(gossip, model, rank, size);
    }
    while (pcoll_gossip_free(&gossip, 100000) == PCOLL_EAGAIN)
        ;

    expected = size * (size - 1) / 2.0;
    MPI_Allreduce(&model[COUNT - 1], &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("all models are %g, their sum %.12g of %g\n", model[0], sum, expected);
    MPI_Finalize();
    return fabs(sum - expected) > 1e-9;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Macros for plain MPI programs that print their results. With and without the
 * interposer they must print the same. */
#ifndef SAY_H
#define SAY_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void __attribute__((unused)) begin(int *argc, char ***argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

/* The condition must be true on all ranks, or the job ends. */
#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, rank,          \
                    #condition);                                                       \
            MPI_Abort(MPI_COMM_WORLD, 1);                                              \
        }                                                                              \
    } while (0)

/* Lines of rank 0, in order. */
#define SAY(...)                                                                       \
    do {                                                                               \
        if (rank == 0)                                                                 \
            printf(__VA_ARGS__);                                                       \
    } while (0)

/* Return a hash of a result's bytes. */
static unsigned long __attribute__((unused)) sum_of(const void *data, size_t bytes)
{
    unsigned long h = 5381;
    for (size_t i = 0; i < bytes; i++)
        h = h * 33 + ((const unsigned char *)data)[i];
    return h;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preload this: agreements succeed with arbitrary bits, as observed with Open MPI shortly after a
 * death. GARBLED="rank:n,rank:n" selects them; rank 0's are its 1st, 2nd, ….
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

typedef int agree(MPI_Comm comm, int *flag, MPI_Request *request);

static int is_wanted(int rank, int number)
{
    const char *at = getenv("GARBLED");
    for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (atoi(at) == rank && atoi(strchr(at, ':') + 1) == number)
            return 1;
    return 0;
}

__attribute__((visibility("default"))) int PMPIX_Comm_iagree(MPI_Comm comm, int *flag,
                                                             MPI_Request *request)
{
    static int number, unread[1024];
    agree *own = (agree *)dlsym(RTLD_NEXT, "PMPIX_Comm_iagree");
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!is_wanted(rank, ++number))
        return own(comm, flag, request);
    unread[number % 1024] = *flag;
    *flag = 0x1aac9077;
    return own(comm, &unread[number % 1024], request);
}

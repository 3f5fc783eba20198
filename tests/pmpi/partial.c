/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop with two sums, whose ranks come late by turns. Where rounds may leave ranks
 * out, the sums of single rounds are smaller; over all rounds nothing is lost, and the
 * two sums do not mix.
 *
 * argument: where the info key is given (dup, idup, set, split, none), or its value
 * after a colon, or "differ": a value on rank 0 only.
 */
#include <unistd.h>

#include "say.h"

enum { ROUNDS = 40 };

static MPI_Comm give(const char *where, const char *value)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "partialcoll_quorum", value);
    if (!strcmp(where, "dup"))
        MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
    else if (!strcmp(where, "split"))
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, info, &comm);
    else if (!strcmp(where, "idup")) {
        MPI_Request request;
        MPI_Comm_idup_with_info(MPI_COMM_WORLD, info, &comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (!strcmp(where, "set") || (!strcmp(where, "differ") && rank == 0))
        MPI_Comm_set_info(comm, info);
    MPI_Info_free(&info);
    return comm;
}

int main(int argc, char **argv)
{
    double x, y, sum_x, sum_y, total_x = 0, total_y = 0;
    int smaller = 0;
    begin(&argc, &argv);
    MPI_Comm comm = give(argc > 1 ? argv[1] : "none", argc > 2 ? argv[2] : "solo");
    for (int t = 0; t < ROUNDS + 2; t++) {
        int more = t < ROUNDS; /* the last two only bring in what was late */
        if (more)
            usleep((rank + t) % size * 1500u);
        else
            MPI_Barrier(MPI_COMM_WORLD);
        x = more;
        y = more * 1000.0;
        MPI_Allreduce(&x, &sum_x, 1, MPI_DOUBLE, MPI_SUM, comm);
        MPI_Allreduce(&y, &sum_y, 1, MPI_DOUBLE, MPI_SUM, comm);
        total_x += sum_x;
        total_y += sum_y;
        smaller += more && sum_x < size;
    }
    CHECK(total_x == ROUNDS * size && total_y == ROUNDS * size * 1000.0);
    MPI_Comm_free(&comm);
    SAY("%s\n", smaller ? "partial" : "full");
    MPI_Finalize();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop with two sums, in which each rank is late in turn. If rounds may leave ranks out, the
 * sums of single rounds are smaller. Over all rounds nothing is lost, and the two sums are not
 * mixed up. The second one uses a type that MPI reduces.
 *
 * arguments: where the info key is given (dup, idup, set, split, none), or "differ": as
 * set, with the key on rank 0 only, or "own": as dup, and the first sum is by an op of
 * this program; the key's value.
 */
#include <unistd.h>

#include "say.h"

enum { ROUNDS = 40 };

static MPI_Comm give(const char *where, const char *value)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Info info;
    MPI_Info_create(&info);
    if (strcmp(where, "differ") || rank == 0)
        MPI_Info_set(info, "partialcoll_quorum", value);
    if (!strcmp(where, "dup") || !strcmp(where, "own"))
        MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
    else if (!strcmp(where, "split"))
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, info, &comm);
    else if (!strcmp(where, "idup")) {
        MPI_Request request;
        MPI_Comm_idup_with_info(MPI_COMM_WORLD, info, &comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (!strcmp(where, "set") || !strcmp(where, "differ"))
        MPI_Comm_set_info(comm, info);
    MPI_Info_free(&info);
    return comm;
}

static void add(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *n; i++)
        ((double *)inout)[i] += ((double *)in)[i];
}

int main(int argc, char **argv)
{
    double x, sum_x, total_x = 0;
    long double y, sum_y, total_y = 0;
    int smaller = 0;
    MPI_Op own, op = MPI_SUM;
    begin(&argc, &argv);
    MPI_Op_create(add, 1, &own);
    if (argc > 1 && !strcmp(argv[1], "own"))
        op = own;
    MPI_Comm comm = give(argc > 1 ? argv[1] : "none", argc > 2 ? argv[2] : "solo");
    for (int t = 0; t < ROUNDS + 2; t++) {
        int more = t < ROUNDS; /* the last two only collect late data */
        if (more)
            usleep((rank + t) % size * 1500u);
        else
            MPI_Barrier(MPI_COMM_WORLD);
        x = more;
        y = more * 1000.0;
        MPI_Allreduce(&x, &sum_x, 1, MPI_DOUBLE, op, comm);
        MPI_Allreduce(&y, &sum_y, 1, MPI_LONG_DOUBLE, MPI_SUM, comm);
        total_x += sum_x;
        total_y += sum_y;
        smaller += more && (sum_x < size || sum_y < size * 1000);
    }
    CHECK(total_x == ROUNDS * size && total_y == ROUNDS * size * 1000.0);
    MPI_Comm_free(&comm);
    MPI_Op_free(&own);
    SAY("%s\n", smaller ? "partial" : "full");
    MPI_Finalize();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Complete rounds that are long enough to justify a handle after some calls, and others
 * that are not: short ones, those with a user op, and persistent ones. */
#include "say.h"

enum { CALLS = 100, COUNT = 1 << 18 };

static double x[COUNT], sum[COUNT];

static void add(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *n; i++)
        ((double *)inout)[i] += ((double *)in)[i];
}

static void reduce(int count, MPI_Op op)
{
    x[0] = rank + 1;
    x[count - 1] = rank + 1;
    sum[0] = sum[count - 1] = 0;
    MPI_Allreduce(x, sum, count, MPI_DOUBLE, op, MPI_COMM_WORLD);
    CHECK(sum[0] == size * (size + 1) / 2 && sum[count - 1] == sum[0]);
}

int main(int argc, char **argv)
{
    MPI_Op own;
    begin(&argc, &argv);
    MPI_Op_create(add, 1, &own);
    for (int i = 0; i < CALLS; i++) {
        reduce(COUNT, MPI_SUM);
        reduce(2, MPI_SUM);
        reduce(COUNT / 16, own);
    }
    MPI_Op_free(&own);
    SAY("full\n");
    MPI_Finalize();
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Start two processes by the words of the command line, which end with this program.
 * Reduce with and without them. */
#include "say.h"

static void reduce(MPI_Comm comm, int ranks)
{
    int x = 1, y = 0, n;
    MPI_Comm_size(comm, &n);
    for (int i = 0; i < 3; i++)
        MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm);
    CHECK(n == ranks && y == ranks);
}

int main(int argc, char **argv)
{
    MPI_Comm others, all;
    begin(&argc, &argv);
    MPI_Comm_get_parent(&others);
    int child = others != MPI_COMM_NULL;
    if (!child)
        MPI_Comm_spawn(argv[1], argv + 2, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others,
                       MPI_ERRCODES_IGNORE);
    MPI_Intercomm_merge(others, child, &all);
    reduce(MPI_COMM_WORLD, size);
    reduce(all, 3);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&others);
    if (!child)
        SAY("joined\n");
    MPI_Finalize();
    return 0;
}

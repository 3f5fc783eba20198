/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies before the first sum. The others are notified by the return code. */
#include <signal.h>
#include <unistd.h>

#include "../pmpi/say.h"
#include <partialcoll.h>

int main(int argc, char **argv)
{
    double x = 1, sum = -1;
    begin(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        raise(SIGKILL);
    for (int call = 0; call < 3; call++) {
        int rc = PCOLL_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        printf("%d: %s, %s\n", rank, rc == MPI_SUCCESS ? "success" : "told",
               pcoll_last_error());
    }
    fflush(stdout);
    _exit(0); /* MPI_Finalize may not return */
}

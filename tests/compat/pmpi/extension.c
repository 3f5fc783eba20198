/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three files in one: a program that loads an extension privately, as Python does; the
 * extension, which sums in place through Fortran's MPI_ALLREDUCE; and a substitute for MPI's
 * Fortran library. MPICH's calls the C function by its name. Open MPI's enters MPI directly,
 * and its MPI_IN_PLACE is a variable.
 */
#include <dlfcn.h>

#include "say.h"

void mpi_allreduce_(void *send, void *recv, MPI_Fint *count, MPI_Fint *type,
                    MPI_Fint *op, MPI_Fint *comm, MPI_Fint *error);
extern int mpi_fortran_in_place_;

#if defined(LIBRARY)

int mpi_fortran_in_place_;

void mpi_allreduce_(void *send, void *recv, MPI_Fint *count, MPI_Fint *type,
                    MPI_Fint *op, MPI_Fint *comm, MPI_Fint *error)
{
    if (send == &mpi_fortran_in_place_)
        send = MPI_IN_PLACE;
#ifdef OPEN_MPI
    *error = PMPI_Allreduce(send, recv, *count, MPI_Type_f2c(*type), MPI_Op_f2c(*op),
                            MPI_Comm_f2c(*comm));
#else
    *error = MPI_Allreduce(send, recv, *count, MPI_Type_f2c(*type), MPI_Op_f2c(*op),
                           MPI_Comm_f2c(*comm));
#endif
}

#elif defined(EXTENSION)

int sum_in_place(double *values, int count);

int sum_in_place(double *values, int count)
{
    MPI_Fint n = count, error = MPI_SUCCESS, type = MPI_Type_c2f(MPI_DOUBLE);
    MPI_Fint op = MPI_Op_c2f(MPI_SUM), comm = MPI_Comm_c2f(MPI_COMM_WORLD);
    mpi_allreduce_(&mpi_fortran_in_place_, values, &n, &type, &op, &comm, &error);
    return error;
}

#else

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    void *extension = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(extension);
    int (*sum)(double *, int) =
        (int (*)(double *, int))dlsym(extension, "sum_in_place");
    CHECK(sum);
    for (int i = 0; i < 5; i++) {
        double values[3] = {rank, 1, i};
        CHECK(sum(values, 3) == MPI_SUCCESS);
        CHECK(values[0] == size * (size - 1) / 2.0 && values[1] == size);
        CHECK(values[2] == i * size);
    }
    SAY("sums\n");
    MPI_Finalize();
    return 0;
}

#endif

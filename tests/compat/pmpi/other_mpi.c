/* SPDX-License-Identifier: Apache-2.0 */
/* The part of another MPI that is called here (-DLIBRARY), and its programs: one that
 * calls it from C and Fortran (-DPROGRAM), and one that loads a file that needs it
 * (neither). */
#include <dlfcn.h>
#include <stdio.h>

int MPI_Init(int *argc, char ***argv);
int PMPI_Init(int *argc, char ***argv);
void mpi_init_(int *error);
void run(void);

#if defined(LIBRARY)

int PMPI_Init(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    puts("the other MPI began");
    return 0;
}

int MPI_Init(int *argc, char ***argv)
{
    return PMPI_Init(argc, argv);
}

void mpi_init_(int *error)
{
    *error = PMPI_Init(NULL, NULL);
}

#elif defined(PROGRAM)

void run(void)
{
    int error;
    MPI_Init(NULL, NULL);
    mpi_init_(&error);
}

int main(void)
{
    run();
    return 0;
}

#else

int main(int argc, char **argv)
{
    void *file = dlopen(argv[argc - 1], RTLD_NOW);
    void (*run)(void) = file ? (void (*)(void))dlsym(file, "run") : NULL;
    puts(run ? "loaded" : dlerror());
    fflush(stdout);
    if (run)
        run();
    return 0;
}

#endif

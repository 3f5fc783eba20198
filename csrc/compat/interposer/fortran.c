/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fortran. MPICH's Fortran library calls the C functions by their names, so they are
 * taken over there. Open MPI's calls PMPI, so its Fortran functions are replaced, too, and those
 * functions of MPICH's mpi_f08 that have no buffer. In both MPIs the wrappers announce where the
 * program calls from: otherwise all calls would come from one site in MPI's Fortran library.
 *
 * mpif.h and the module mpi use the same functions, under the name that the Fortran compiler gives
 * them: one of five. mpi_f08 has functions of its own, which in Open MPI call those named ompi_…_f.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#include "compat/interposer/interposer.h"

#define CALL_SITE __builtin_return_address(0)

/* Open the loaded file that has this address; the caller closes it. */
static void *fortran_file_of(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                                  : NULL;
}

/* Return MPI's own function of a name that is replaced here. MPI's Fortran library is usually among
 * the files that all of a program can see. But Python, for one, loads an extension for itself
 * alone, and the library with it. It is then one of the files that the caller's own file needs. */
static void *fortran_next(const char *name, const void *caller)
{
    void *found = dlsym(RTLD_NEXT, name);
    void *file = found ? NULL : fortran_file_of(caller);
    if (file) {
        found = dlsym(file, name);
        dlclose(file);
    }
    return found;
}

typedef void fortran_reduce_fn(void *send, void *recv, void *count, void *type,
                               void *op, void *comm, void *error);

/* Define a function that announces the site and calls that of MPI's Fortran library. Nothing calls
 * it if there is no Fortran library. */
#define ANNOUNCED(name)                                                                \
    fortran_reduce_fn name;                                                            \
    void name(void *send, void *recv, void *count, void *type, void *op, void *comm,   \
              void *error)                                                             \
    {                                                                                  \
        static fortran_reduce_fn *next;                                                \
        if (!next)                                                                     \
            next = (fortran_reduce_fn *)fortran_next(#name, CALL_SITE);                \
        const void *before = entries_announce(CALL_SITE);                              \
        next(send, recv, count, type, op, comm, error);                                \
        entries_announce(before);                                                      \
    }

ANNOUNCED(mpi_allreduce_f08_)
ANNOUNCED(mpi_allreduce_f08ts_)
ANNOUNCED(mpi_allreduce_f08ts_large_)

#ifndef OPEN_MPI

ANNOUNCED(mpi_allreduce)
ANNOUNCED(mpi_allreduce_)
ANNOUNCED(mpi_allreduce__)
ANNOUNCED(MPI_ALLREDUCE)

#endif

/* Give fortran_<function> another name, by which Fortran calls it. */
#define NAME(name, function)                                                           \
    extern __typeof__(fortran_##function) name                                         \
        __attribute__((alias("fortran_" #function)));

#ifdef OPEN_MPI

#define NAMES(lower, upper)                                                            \
    NAME(mpi_##lower, lower)                                                           \
    NAME(mpi_##lower##_, lower)                                                        \
    NAME(mpi_##lower##__, lower)                                                       \
    NAME(MPI_##upper, lower)                                                           \
    NAME(ompi_##lower##_f, lower)

#else

/* MPICH's mpi_f08 calls PMPI where there is no buffer among the arguments. */
#define NAMES(lower, upper) NAME(mpi_##lower##_f08_, lower)

#endif

#ifdef OPEN_MPI

enum { SPELLINGS = 4 };
#define SPELLED(lower, upper) {lower "_", lower, lower "__", upper}
enum fortran_found { NONE, ANOTHER, THIS };

/* Which of the variables there are depends on the compiler. */
static enum fortran_found fortran_look(void *where, const void *address,
                                       const char *const names[SPELLINGS])
{
    enum fortran_found found = NONE;
    for (int i = 0; i < SPELLINGS && found != THIS; i++) {
        const void *variable = dlsym(where, names[i]);
        if (variable)
            found = variable == address ? THIS : ANOTHER;
    }
    return found;
}

static bool fortran_is_one_of(const void *address, const char *const names[SPELLINGS],
                              const void *caller)
{
    enum fortran_found found = fortran_look(RTLD_DEFAULT, address, names);
    void *file = found == NONE ? fortran_file_of(caller) : NULL;
    if (file) {
        found = fortran_look(file, address, names);
        dlclose(file);
    }
    return found == THIS;
}

/* Return a buffer as C has it: MPI_IN_PLACE and MPI_BOTTOM of Open MPI's Fortran are variables. */
static void *fortran_buffer(void *address, const void *caller)
{
    static const char *const in_place[SPELLINGS] =
        SPELLED("mpi_fortran_in_place", "MPI_FORTRAN_IN_PLACE"),
                             *const bottom[SPELLINGS] =
                                 SPELLED("mpi_fortran_bottom", "MPI_FORTRAN_BOTTOM");
    if (fortran_is_one_of(address, in_place, caller))
        return MPI_IN_PLACE;
    return fortran_is_one_of(address, bottom, caller) ? MPI_BOTTOM : address;
}

#endif

/* Define a function that calls ours for C, and stores what it has made. */
#define FORTRAN(lower, upper, parameters, variable, call, store)                       \
    static void fortran_##lower parameters                                             \
    {                                                                                  \
        variable;                                                                      \
        int rc = call;                                                                 \
        if (rc == MPI_SUCCESS) {                                                       \
            store;                                                                     \
        }                                                                              \
        if (error)                                                                     \
            *error = (MPI_Fint)rc;                                                     \
    }                                                                                  \
    NAMES(lower, upper)

#ifdef OPEN_MPI

/* Announce the site, unless mpi_f08 has. */
#define ANNOUNCE(call)                                                                 \
    ({                                                                                 \
        const void *before_ = entries_announce(NULL);                                  \
        entries_announce(before_ ?: CALL_SITE);                                        \
        int rc_ = (call);                                                              \
        entries_announce(before_);                                                     \
        rc_;                                                                           \
    })

FORTRAN(allreduce, ALLREDUCE,
        (void *send, void *recv, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op,
         MPI_Fint *comm, MPI_Fint *error),
        ,
        ANNOUNCE(MPI_Allreduce(fortran_buffer(send, CALL_SITE),
                               fortran_buffer(recv, CALL_SITE), (int)*count,
                               PMPI_Type_f2c(*type), PMPI_Op_f2c(*op),
                               PMPI_Comm_f2c(*comm))), )
FORTRAN(allreduce_init, ALLREDUCE_INIT,
        (void *send, void *recv, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op,
         MPI_Fint *comm, MPI_Fint *info, MPI_Fint *request, MPI_Fint *error),
        MPI_Request made = MPI_REQUEST_NULL,
        ANNOUNCE(MPI_Allreduce_init(fortran_buffer(send, CALL_SITE),
                                    fortran_buffer(recv, CALL_SITE), (int)*count,
                                    PMPI_Type_f2c(*type), PMPI_Op_f2c(*op),
                                    PMPI_Comm_f2c(*comm), PMPI_Info_f2c(*info), &made)),
        *request = PMPI_Request_c2f(made))

#endif

FORTRAN(init, INIT, (MPI_Fint * error), , MPI_Init(NULL, NULL), )
FORTRAN(init_thread, INIT_THREAD,
        (MPI_Fint * required, MPI_Fint *provided, MPI_Fint *error), int level = 0,
        MPI_Init_thread(NULL, NULL, (int)*required, &level),
        *provided = (MPI_Fint)level)
FORTRAN(finalize, FINALIZE, (MPI_Fint * error), , MPI_Finalize(), )
FORTRAN(comm_free, COMM_FREE, (MPI_Fint * comm, MPI_Fint *error),
        MPI_Comm c = PMPI_Comm_f2c(*comm), MPI_Comm_free(&c), *comm = PMPI_Comm_c2f(c))
FORTRAN(comm_set_info, COMM_SET_INFO,
        (MPI_Fint * comm, MPI_Fint *info, MPI_Fint *error), ,
        MPI_Comm_set_info(PMPI_Comm_f2c(*comm), PMPI_Info_f2c(*info)), )
FORTRAN(comm_dup_with_info, COMM_DUP_WITH_INFO,
        (MPI_Fint * comm, MPI_Fint *info, MPI_Fint *newcomm, MPI_Fint *error),
        MPI_Comm made = MPI_COMM_NULL,
        MPI_Comm_dup_with_info(PMPI_Comm_f2c(*comm), PMPI_Info_f2c(*info), &made),
        *newcomm = PMPI_Comm_c2f(made))
FORTRAN(comm_split_type, COMM_SPLIT_TYPE,
        (MPI_Fint * comm, MPI_Fint *split_type, MPI_Fint *key, MPI_Fint *info,
         MPI_Fint *newcomm, MPI_Fint *error),
        MPI_Comm made = MPI_COMM_NULL,
        MPI_Comm_split_type(PMPI_Comm_f2c(*comm), (int)*split_type, (int)*key,
                            PMPI_Info_f2c(*info), &made),
        *newcomm = PMPI_Comm_c2f(made))
FORTRAN(request_free, REQUEST_FREE, (MPI_Fint * request, MPI_Fint *error),
        MPI_Request r = PMPI_Request_f2c(*request), MPI_Request_free(&r),
        *request = PMPI_Request_c2f(MPI_REQUEST_NULL))

/* MPI_Start does not change the handle of a persistent request. */
static int fortran_start_all(MPI_Fint count, const MPI_Fint *requests)
{
    int rc = MPI_SUCCESS;
    for (MPI_Fint i = 0; i < count && rc == MPI_SUCCESS; i++) {
        MPI_Request request = PMPI_Request_f2c(requests[i]);
        rc = MPI_Start(&request);
    }
    return rc;
}

FORTRAN(startall, STARTALL, (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *error), ,
        fortran_start_all(*count, requests), )
FORTRAN(start, START, (MPI_Fint * request, MPI_Fint *error), ,
        fortran_start_all(1, request), )

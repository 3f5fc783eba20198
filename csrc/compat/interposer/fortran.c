/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#include "compat/interposer/interposer.h"

enum { NAMES = 4 };

/* The loaded file that this address lies in, to be closed again. */
static void *fortran_file_of(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                                  : NULL;
}

void *fortran_next(const char *name, const void *caller)
{
    void *found = dlsym(RTLD_NEXT, name);
    void *file = found ? NULL : fortran_file_of(caller);
    if (file) {
        found = dlsym(file, name);
        dlclose(file);
    }
    return found;
}

enum fortran_found { NONE, ANOTHER, THIS };

/* Is it one of these variables, as far as there are any? Which there are depends on the
 * compiler. */
static enum fortran_found fortran_look(void *where, const void *address,
                                       const char *const names[NAMES])
{
    enum fortran_found found = NONE;
    for (int i = 0; i < NAMES && found != THIS; i++) {
        const void *variable = dlsym(where, names[i]);
        if (variable)
            found = variable == address ? THIS : ANOTHER;
    }
    return found;
}

static bool fortran_is_one_of(const void *address, const char *const names[NAMES],
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

void *fortran_buffer(void *address, const void *caller)
{
    static const char *const in_place[NAMES] = {
        "mpi_fortran_in_place_", "mpi_fortran_in_place", "mpi_fortran_in_place__",
        "MPI_FORTRAN_IN_PLACE"};
    static const char *const bottom[NAMES] = {
        "mpi_fortran_bottom_", "mpi_fortran_bottom", "mpi_fortran_bottom__",
        "MPI_FORTRAN_BOTTOM"};
    if (fortran_is_one_of(address, in_place, caller))
        return MPI_IN_PLACE;
    return fortran_is_one_of(address, bottom, caller) ? MPI_BOTTOM : address;
}

/*
 * Fortran. MPICH's Fortran library calls the C functions by their names, so they are
 * taken over there; Open MPI's calls PMPI, so its Fortran functions are replaced as
 * well, and of MPICH's mpi_f08 those that have no buffer. In both the wrappers say
 * where the program called from, since otherwise all calls would come from one place in
 * MPI's Fortran library.
 *
 * mpif.h and the module mpi use the same functions, under the name that the Fortran
 * compiler gives them: one of five. mpi_f08 has functions of its own, which in Open MPI
 * call those named ompi_…_f.
 */

typedef void reduce_fn(void *send, void *recv, void *count, void *type, void *op,
                       void *comm, void *error);

/* A function of MPI's Fortran library, called as it was, from a known place. Without a
 * Fortran library nobody calls it. */
#define ANNOUNCED(name)                                                                \
    void name(void *send, void *recv, void *count, void *type, void *op, void *comm,   \
              void *error);                                                            \
    void name(void *send, void *recv, void *count, void *type, void *op, void *comm,   \
              void *error)                                                             \
    {                                                                                  \
        static reduce_fn *next;                                                        \
        if (!next)                                                                     \
            next = (reduce_fn *)fortran_next(#name, __builtin_return_address(0));      \
        const void *before = entries_announce(__builtin_return_address(0));            \
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

static void fortran_set_error(MPI_Fint *error, int rc)
{
    if (error)
        *error = (MPI_Fint)rc;
}

#ifdef OPEN_MPI

/* One body under the five names. */
#define FIVE(lower, upper, parameters, arguments)                                      \
    void mpi_##lower parameters;                                                       \
    void mpi_##lower parameters                                                        \
    {                                                                                  \
        fortran_##lower(__builtin_return_address(0), arguments);                       \
    }                                                                                  \
    void mpi_##lower##_ parameters;                                                    \
    void mpi_##lower##_ parameters                                                     \
    {                                                                                  \
        fortran_##lower(__builtin_return_address(0), arguments);                       \
    }                                                                                  \
    void mpi_##lower##__ parameters;                                                   \
    void mpi_##lower##__ parameters                                                    \
    {                                                                                  \
        fortran_##lower(__builtin_return_address(0), arguments);                       \
    }                                                                                  \
    void MPI_##upper parameters;                                                       \
    void MPI_##upper parameters                                                        \
    {                                                                                  \
        fortran_##lower(__builtin_return_address(0), arguments);                       \
    }                                                                                  \
    void ompi_##lower##_f parameters;                                                  \
    void ompi_##lower##_f parameters                                                   \
    {                                                                                  \
        fortran_##lower(__builtin_return_address(0), arguments);                       \
    }

#else

/* MPICH's mpi_f08 calls PMPI where there is no buffer among the arguments. */
#define FIVE(lower, upper, parameters, arguments)                                      \
    void mpi_##lower##_f08_ parameters;                                                \
    void mpi_##lower##_f08_ parameters                                                 \
    {                                                                                  \
        fortran_##lower(__builtin_return_address(0), arguments);                       \
    }

#endif
#define LIST(...) __VA_ARGS__

#ifdef OPEN_MPI

static void fortran_allreduce(const void *call_site, void *send, void *recv,
                              MPI_Fint *count, MPI_Fint *type, MPI_Fint *op,
                              MPI_Fint *comm, MPI_Fint *error)
{
    const void *before = entries_announce(NULL);
    entries_announce(before ? before : call_site); /* mpi_f08 has said it already */
    fortran_set_error(error, MPI_Allreduce(fortran_buffer(send, call_site),
                                           fortran_buffer(recv, call_site), (int)*count,
                                           PMPI_Type_f2c(*type), PMPI_Op_f2c(*op),
                                           PMPI_Comm_f2c(*comm)));
    entries_announce(before);
}
FIVE(allreduce, ALLREDUCE,
     (void *send, void *recv, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op,
      MPI_Fint *comm, MPI_Fint *error),
     LIST(send, recv, count, type, op, comm, error))

#endif

static void fortran_init(const void *call_site, MPI_Fint *error)
{
    (void)call_site;
    fortran_set_error(error, MPI_Init(NULL, NULL));
}
FIVE(init, INIT, (MPI_Fint * error), LIST(error))

static void fortran_init_thread(const void *call_site, MPI_Fint *required,
                                MPI_Fint *provided, MPI_Fint *error)
{
    int level = 0;
    (void)call_site;
    fortran_set_error(error, MPI_Init_thread(NULL, NULL, (int)*required, &level));
    *provided = (MPI_Fint)level;
}
FIVE(init_thread, INIT_THREAD,
     (MPI_Fint * required, MPI_Fint *provided, MPI_Fint *error),
     LIST(required, provided, error))

static void fortran_finalize(const void *call_site, MPI_Fint *error)
{
    (void)call_site;
    fortran_set_error(error, MPI_Finalize());
}
FIVE(finalize, FINALIZE, (MPI_Fint * error), LIST(error))

static void fortran_comm_free(const void *call_site, MPI_Fint *comm, MPI_Fint *error)
{
    MPI_Comm c = PMPI_Comm_f2c(*comm);
    (void)call_site;
    int rc = MPI_Comm_free(&c);
    if (rc == MPI_SUCCESS)
        *comm = PMPI_Comm_c2f(c);
    fortran_set_error(error, rc);
}
FIVE(comm_free, COMM_FREE, (MPI_Fint * comm, MPI_Fint *error), LIST(comm, error))

static void fortran_comm_set_info(const void *call_site, MPI_Fint *comm, MPI_Fint *info,
                                  MPI_Fint *error)
{
    (void)call_site;
    fortran_set_error(error,
                      MPI_Comm_set_info(PMPI_Comm_f2c(*comm), PMPI_Info_f2c(*info)));
}
FIVE(comm_set_info, COMM_SET_INFO, (MPI_Fint * comm, MPI_Fint *info, MPI_Fint *error),
     LIST(comm, info, error))

static void fortran_comm_dup_with_info(const void *call_site, MPI_Fint *comm,
                                       MPI_Fint *info, MPI_Fint *newcomm,
                                       MPI_Fint *error)
{
    MPI_Comm made = MPI_COMM_NULL;
    (void)call_site;
    int rc = MPI_Comm_dup_with_info(PMPI_Comm_f2c(*comm), PMPI_Info_f2c(*info), &made);
    if (rc == MPI_SUCCESS)
        *newcomm = PMPI_Comm_c2f(made);
    fortran_set_error(error, rc);
}
FIVE(comm_dup_with_info, COMM_DUP_WITH_INFO,
     (MPI_Fint * comm, MPI_Fint *info, MPI_Fint *newcomm, MPI_Fint *error),
     LIST(comm, info, newcomm, error))

static void fortran_comm_split_type(const void *call_site, MPI_Fint *comm,
                                    MPI_Fint *split_type, MPI_Fint *key, MPI_Fint *info,
                                    MPI_Fint *newcomm, MPI_Fint *error)
{
    MPI_Comm made = MPI_COMM_NULL;
    (void)call_site;
    int rc = MPI_Comm_split_type(PMPI_Comm_f2c(*comm), (int)*split_type, (int)*key,
                                 PMPI_Info_f2c(*info), &made);
    if (rc == MPI_SUCCESS)
        *newcomm = PMPI_Comm_c2f(made);
    fortran_set_error(error, rc);
}
FIVE(comm_split_type, COMM_SPLIT_TYPE,
     (MPI_Fint * comm, MPI_Fint *split_type, MPI_Fint *key, MPI_Fint *info,
      MPI_Fint *newcomm, MPI_Fint *error),
     LIST(comm, split_type, key, info, newcomm, error))

#ifdef OPEN_MPI

static void fortran_allreduce_init(const void *call_site, void *send, void *recv,
                                   MPI_Fint *count, MPI_Fint *type, MPI_Fint *op,
                                   MPI_Fint *comm, MPI_Fint *info, MPI_Fint *request,
                                   MPI_Fint *error)
{
    MPI_Request made = MPI_REQUEST_NULL;
    const void *before = entries_announce(call_site);
    int rc = MPI_Allreduce_init(fortran_buffer(send, call_site),
                                fortran_buffer(recv, call_site), (int)*count,
                                PMPI_Type_f2c(*type), PMPI_Op_f2c(*op),
                                PMPI_Comm_f2c(*comm), PMPI_Info_f2c(*info), &made);
    entries_announce(before);
    if (rc == MPI_SUCCESS)
        *request = PMPI_Request_c2f(made);
    fortran_set_error(error, rc);
}
FIVE(allreduce_init, ALLREDUCE_INIT,
     (void *send, void *recv, MPI_Fint *count, MPI_Fint *type, MPI_Fint *op,
      MPI_Fint *comm, MPI_Fint *info, MPI_Fint *request, MPI_Fint *error),
     LIST(send, recv, count, type, op, comm, info, request, error))

#endif

/* A persistent request keeps its handle when it is started, so nothing goes back. */
static void fortran_startall(const void *call_site, MPI_Fint *count, MPI_Fint *requests,
                             MPI_Fint *error)
{
    int rc = MPI_SUCCESS;
    (void)call_site;
    for (MPI_Fint i = 0; i < *count && rc == MPI_SUCCESS; i++) {
        MPI_Request request = PMPI_Request_f2c(requests[i]);
        rc = MPI_Start(&request);
    }
    fortran_set_error(error, rc);
}
FIVE(startall, STARTALL, (MPI_Fint * count, MPI_Fint *requests, MPI_Fint *error),
     LIST(count, requests, error))

static void fortran_start(const void *call_site, MPI_Fint *request, MPI_Fint *error)
{
    fortran_startall(call_site, &(MPI_Fint){1}, request, error);
}
FIVE(start, START, (MPI_Fint * request, MPI_Fint *error), LIST(request, error))

static void fortran_request_free(const void *call_site, MPI_Fint *request,
                                 MPI_Fint *error)
{
    MPI_Request r = PMPI_Request_f2c(*request);
    (void)call_site;
    int rc = MPI_Request_free(&r);
    if (rc == MPI_SUCCESS)
        *request = PMPI_Request_c2f(MPI_REQUEST_NULL);
    fortran_set_error(error, rc);
}
FIVE(request_free, REQUEST_FREE, (MPI_Fint * request, MPI_Fint *error),
     LIST(request, error))

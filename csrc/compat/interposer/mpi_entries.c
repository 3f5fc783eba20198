/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of MPI that are replaced in a program: the allreduces, the start and the end of
 * persistent requests, what gives info to a communicator and what frees it. Each does its part
 * and leaves the rest to MPI.
 */
#include <limits.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "compat/interposer/interposer.h"

/* The site from which the program really calls, if a wrapper in another language has said so. */
static _Thread_local const void *announced;

const void *entries_announce(const void *call_site)
{
    const void *before = announced;
    announced = call_site;
    return before;
}

/* Fail a call for which this MPI has no function. */
static int entries_refuse(MPI_Comm comm, int code)
{
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

/* Return from the function if the call is taken over. */
#define TAKE_OVER(take, ...)                                                           \
    struct call call = {.send = sendbuf,                                               \
                        .recv = recvbuf,                                               \
                        .count = count,                                                \
                        .type = datatype,                                              \
                        .op = op,                                                      \
                        .comm = comm,                                                  \
                        .call_site = announced ?: __builtin_return_address(0)};        \
    int error;                                                                         \
    enum outcome outcome = take(&call, __VA_ARGS__);                                   \
    report_count(outcome);                                                             \
    if (outcome == TAKEN)                                                              \
    return error

/* Define an allreduce whose count has this type; `leave` leaves the call to MPI. */
#define BLOCKING(name, integer, leave)                                                 \
    int name(const void *sendbuf, void *recvbuf, integer count, MPI_Datatype datatype, \
             MPI_Op op, MPI_Comm comm)                                                 \
    {                                                                                  \
        if (full_is_mpis(count))                                                       \
            report_count(PASSED_FULL);                                                 \
        else {                                                                         \
            TAKE_OVER(intercept_run, &error);                                          \
        }                                                                              \
        return leave;                                                                  \
    }
#define PERSISTENT(name, integer, leave)                                               \
    int name(const void *sendbuf, void *recvbuf, integer count, MPI_Datatype datatype, \
             MPI_Op op, MPI_Comm comm, MPI_Info info, MPI_Request *request)            \
    {                                                                                  \
        TAKE_OVER(persistent_init, request, &error);                                   \
        return leave;                                                                  \
    }
#define ARGUMENTS(count) sendbuf, recvbuf, count, datatype, op, comm

BLOCKING(MPI_Allreduce, int, PMPI_Allreduce(ARGUMENTS(count)))
BLOCKING(MPI_Allreduce_c, MPI_Count,
         PMPI_Allreduce_c  ? PMPI_Allreduce_c(ARGUMENTS(count))
         : count > INT_MAX ? entries_refuse(comm, MPI_ERR_COUNT)
                           : PMPI_Allreduce(ARGUMENTS((int)count)))
PERSISTENT(MPI_Allreduce_init, int,
           PMPI_Allreduce_init ? PMPI_Allreduce_init(ARGUMENTS(count), info, request)
                               : entries_refuse(comm, MPI_ERR_UNSUPPORTED_OPERATION))
PERSISTENT(MPI_Allreduce_init_c, MPI_Count,
           PMPI_Allreduce_init_c
               ? PMPI_Allreduce_init_c(ARGUMENTS(count), info, request)
           : count > INT_MAX || !PMPI_Allreduce_init
               ? entries_refuse(comm, MPI_ERR_UNSUPPORTED_OPERATION)
               : PMPI_Allreduce_init(ARGUMENTS((int)count), info, request))

int MPI_Start(MPI_Request *request)
{
    int rc = PMPI_Start(request);
    return rc == MPI_SUCCESS ? persistent_started(1, request) : rc;
}

int MPI_Startall(int count, MPI_Request requests[])
{
    int rc = PMPI_Startall(count, requests);
    return rc == MPI_SUCCESS ? persistent_started(count, requests) : rc;
}

int MPI_Request_free(MPI_Request *request)
{
    persistent_forget(request ? *request : MPI_REQUEST_NULL);
    return PMPI_Request_free(request);
}

/* These two replace functions of MPI inside the library: see clibs.py. */

int pmpi_private_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request)
{
    *request = MPI_REQUEST_NULL;
    return PMPI_Comm_split(comm, 0, 0, copy);
}

int pmpi_private_type_dup(MPI_Datatype type, MPI_Datatype *copy)
{
    return PMPI_Type_contiguous(1, type, copy);
}

/*
 * The info key partialcoll_quorum. MPIs drop keys that they do not know, so the functions that
 * give info to a communicator are replaced, and what they say is remembered on it. A duplicate
 * does not inherit it (nor other info, by MPI-4.0): the communicators that a library makes for
 * itself stay as the library expects.
 */

/* Return whether the info has the key. A value that does not fit is no policy: it is cut here,
 * and refused later. */
static bool info_get_quorum(MPI_Info info, char text[QUORUM_TEXT])
{
    char value[MPI_MAX_INFO_VAL + 1];
    int found = 0;
    if (info != MPI_INFO_NULL)
        PMPI_Info_get(info, "partialcoll_quorum", MPI_MAX_INFO_VAL, value, &found);
    if (found && snprintf(text, QUORUM_TEXT, "%s", value) >= QUORUM_TEXT)
        memcpy(text + QUORUM_TEXT - 4, "...", 4);
    return found;
}

/* Adopt what the info says, if a call has given it to *comm, and return MPI's code of that call.
 * Some ranks only may have the key, so ranks compare. Collective. */
static int info_take(int rc, const MPI_Comm *comm, MPI_Info info)
{
    char text[QUORUM_TEXT];
    if (rc == MPI_SUCCESS && *comm != MPI_COMM_NULL)
        comm_policy_agree(*comm, info_get_quorum(info, text) ? text : NULL);
    return rc;
}

int MPI_Comm_set_info(MPI_Comm comm, MPI_Info info)
{
    return info_take(PMPI_Comm_set_info(comm, info), &comm, info);
}

#define GIVES_INFO(name, parameters, arguments)                                        \
    int name parameters                                                                \
    {                                                                                  \
        return info_take(P##name arguments, newcomm, info);                            \
    }

GIVES_INFO(MPI_Comm_dup_with_info, (MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm),
           (comm, info, newcomm))
GIVES_INFO(MPI_Comm_split_type,
           (MPI_Comm comm, int split_type, int key, MPI_Info info, MPI_Comm *newcomm),
           (comm, split_type, key, info, newcomm))
GIVES_INFO(MPI_Dist_graph_create,
           (MPI_Comm comm, int n, const int sources[], const int degrees[],
            const int destinations[], const int weights[], MPI_Info info, int reorder,
            MPI_Comm *newcomm),
           (comm, n, sources, degrees, destinations, weights, info, reorder, newcomm))
GIVES_INFO(MPI_Dist_graph_create_adjacent,
           (MPI_Comm comm, int indegree, const int sources[], const int sourceweights[],
            int outdegree, const int destinations[], const int destweights[],
            MPI_Info info, int reorder, MPI_Comm *newcomm),
           (comm, indegree, sources, sourceweights, outdegree, destinations,
            destweights, info, reorder, newcomm))

/* A communicator that MPI_Comm_idup_with_info has begun must not be touched before its request
 * completes: its info waits here until its first allreduce, or its end. Each rank has an
 * entry, also without the key: other ranks may have the key. */
struct pending {
    MPI_Comm comm;
    bool given; /* The info has the key, and `text` is its value. */
    char text[QUORUM_TEXT];
    struct pending *next;
};
static struct lock info_mutex = LOCK_INIT(LOCK_INFO);
static struct pending *pending;
static _Atomic int count_pending; /* Most programs have none, and need no lock then. */

/* Take the entry of a communicator out of the list, or return NULL. */
static struct pending *info_take_pending(MPI_Comm comm)
{
    struct pending *found = NULL;
    if (!atomic_load(&count_pending))
        return NULL;
    lock_take(&info_mutex);
    struct pending **at = &pending;
    while (*at && (*at)->comm != comm)
        at = &(*at)->next;
    if ((found = *at)) {
        *at = found->next;
        atomic_fetch_sub(&count_pending, 1);
        full_watch(-1);
    }
    lock_release(&info_mutex);
    return found;
}

void info_arrived(MPI_Comm comm)
{
    struct pending *p = info_take_pending(comm);
    if (p)
        comm_policy_agree(comm, p->given ? p->text : NULL);
    free(p);
}

/* See compat/linked, which may have the next function. */
int MPI_Comm_free(MPI_Comm *comm)
{
    static int (*next)(MPI_Comm *);
    if (!next)
        next = (int (*)(MPI_Comm *))startup_next("MPI_Comm_free");
    if (comm) {
        free(info_take_pending(*comm));
        bool before = core_inside;
        core_inside = true;
        record_part(*comm);
        core_inside = before;
    }
    return next ? next(comm) : PMPI_Comm_free(comm);
}

int MPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm,
                            MPI_Request *request)
{
    struct pending *p = malloc(sizeof *p);
    if (!p) { /* The other ranks would compare without this one. */
        PMPI_Comm_call_errhandler(comm, MPI_ERR_NO_MEM);
        return MPI_ERR_NO_MEM;
    }
    int rc = PMPI_Comm_idup_with_info
                 ? PMPI_Comm_idup_with_info(comm, info, newcomm, request)
                 : PMPI_Comm_idup(comm, newcomm, request); /* MPI may ignore info. */
    if (rc != MPI_SUCCESS) {
        free(p);
        return rc;
    }
    p->given = info_get_quorum(info, p->text);
    lock_take(&info_mutex);
    p->comm = *newcomm;
    p->next = pending;
    pending = p;
    atomic_fetch_add(&count_pending, 1);
    full_watch(1);
    lock_release(&info_mutex);
    return rc;
}

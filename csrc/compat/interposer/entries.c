/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of MPI that are replaced in a program: the allreduces, the start and
 * the end of persistent requests. Each does its part and leaves the rest to MPI.
 */
#include <limits.h>
#include <mpi.h>

#include "compat/interposer/entries.h"
#include "compat/interposer/full.h"
#include "compat/interposer/persistent.h"

/* A wrapper in another language says where the program really calls from. */
static _Thread_local const void *announced;

const void *entries_announce(const void *call_site)
{
    const void *before = announced;
    announced = call_site;
    return before;
}

static const void *entries_call_site(const void *return_address)
{
    return announced ? announced : return_address;
}

static bool entries_take(const struct call *call, int *error)
{
    enum outcome outcome = intercept_run(call, error);
    report_count(outcome);
    return outcome == TAKEN;
}

static bool entries_take_init(const struct call *call, MPI_Request *request, int *error)
{
    enum outcome outcome = persistent_init(call, request, error);
    report_count(outcome);
    return outcome == TAKEN;
}

/* What this MPI has no function for. */
static int entries_refuse(MPI_Comm comm, int code)
{
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

#define CALL                                                                           \
    (&(struct call){.send = sendbuf,                                                   \
                    .recv = recvbuf,                                                   \
                    .count = count,                                                    \
                    .type = datatype,                                                  \
                    .op = op,                                                          \
                    .comm = comm,                                                      \
                    .call_site = entries_call_site(__builtin_return_address(0))})

int MPI_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype,
                  MPI_Op op, MPI_Comm comm)
{
    int error;
    if (full_is_mpis(count))
        report_count(PASSED_FULL);
    else if (entries_take(CALL, &error))
        return error;
    return PMPI_Allreduce(sendbuf, recvbuf, count, datatype, op, comm);
}

int MPI_Allreduce_init(const void *sendbuf, void *recvbuf, int count,
                       MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                       MPI_Request *request)
{
    int error;
    if (entries_take_init(CALL, request, &error))
        return error;
    return PMPI_Allreduce_init ? PMPI_Allreduce_init(sendbuf, recvbuf, count, datatype,
                                                     op, comm, info, request)
                               : entries_refuse(comm, MPI_ERR_UNSUPPORTED_OPERATION);
}

int MPI_Allreduce_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                    MPI_Datatype datatype, MPI_Op op, MPI_Comm comm)
{
    int error;
    if (full_is_mpis(count))
        report_count(PASSED_FULL);
    else if (entries_take(CALL, &error))
        return error;
    if (PMPI_Allreduce_c)
        return PMPI_Allreduce_c(sendbuf, recvbuf, count, datatype, op, comm);
    return count > INT_MAX
               ? entries_refuse(comm, MPI_ERR_COUNT)
               : PMPI_Allreduce(sendbuf, recvbuf, (int)count, datatype, op, comm);
}

int MPI_Allreduce_init_c(const void *sendbuf, void *recvbuf, MPI_Count count,
                         MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Info info,
                         MPI_Request *request)
{
    int error;
    if (entries_take_init(CALL, request, &error))
        return error;
    if (PMPI_Allreduce_init_c)
        return PMPI_Allreduce_init_c(sendbuf, recvbuf, count, datatype, op, comm, info,
                                     request);
    return count > INT_MAX || !PMPI_Allreduce_init
               ? entries_refuse(comm, MPI_ERR_UNSUPPORTED_OPERATION)
               : PMPI_Allreduce_init(sendbuf, recvbuf, (int)count, datatype, op, comm,
                                     info, request);
}

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

/* names.h */
int pmpi_private_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request)
{
    *request = MPI_REQUEST_NULL;
    return PMPI_Comm_split(comm, 0, 0, copy);
}

int pmpi_private_type_dup(MPI_Datatype type, MPI_Datatype *copy)
{
    return PMPI_Type_contiguous(1, type, copy);
}

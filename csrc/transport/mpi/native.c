/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI's own allreduce, as one operation of a schedule. Each handle that uses it has a
 * communicator of its own: two handles may be activated in different orders on
 * different ranks, the rounds of one are not.
 */
#include <stdlib.h>

#include "base/error.h"
#include "transport/mpi/internal.h"
#include "transport/mpi/completion.h"
#include "transport/mpi/rank_failure.h"

struct channel {
    MPI_Comm comm;
    MPI_Request opening;
};

int mpi_native_open(struct transport *t, struct channel **out)
{
    struct mpi_transport *m = (struct mpi_transport *)t;
    struct channel *c = malloc(sizeof *c);
    if (!c)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    c->comm = MPI_COMM_NULL;
    /* PMPI: what the interposer has in its place waits (names.h). */
    int rc = mpi_check_in(m, PMPI_Comm_idup(m->comm, &c->comm, &c->opening),
                          "MPI_Comm_idup");
    if (rc != PCOLL_OK)
        free(c);
    else
        *out = c;
    return rc;
}

int mpi_native_opened(struct transport *t, struct channel *c)
{
    struct mpi_transport *m = (struct mpi_transport *)t;
    int over = 0;
    int rc = mpi_check_in(m, mpi_test(&c->opening, &over), "MPI_Comm_idup");
    if (rc == PCOLL_OK && over)
        MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
    return rc == PCOLL_OK && !over ? PCOLL_EAGAIN : rc;
}

void mpi_native_close(struct transport *t, struct channel *c)
{
    (void)t;
    if (c->opening != MPI_REQUEST_NULL) /* it failed: MPI may still write to it */
        return;
    MPI_Comm_free(&c->comm);
    free(c);
}

int mpi_native_call(struct transport *t, struct channel *c,
                    const struct native_call *call, uint64_t cookie)
{
    struct mpi_transport *m = (struct mpi_transport *)t;
    MPI_Request *request;
    int rc = mpi_next_request(
        m, (struct request_info){.kind = NATIVE, .cookie = cookie}, &request);
    if (rc == PCOLL_OK)
        rc = mpi_check_in(m,
                          MPI_Iallreduce(MPI_IN_PLACE, call->data, (int)call->count,
                                         mpi_type_of(call->dtype), mpi_op_of(call->op),
                                         c->comm, request),
                          "MPI_Iallreduce");
    if (rc != PCOLL_OK)
        return rc;
    m->count++;
    m->pending_sends++; /* it moves only while somebody looks */
    return PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What all that live agree on, and communicators of theirs, where ranks may die; each of it ends
 * alike on all of them. See recovery.h. */
#include <time.h>

#include "base/check.h"
#include "base/error.h"
#include "include/partialcoll.h"
#include "transport/mpi/completion.h"
#include "transport/mpi/exclusion.h"
#include "transport/mpi/internal.h"
#include "transport/mpi/rank_failure.h"
#include "transport/mpi/recovery.h"
#include "transport/mpi/tree.h"
#include "transport/mpi/ulfm.h"

int mpi_shrink_comm(MPI_Comm comm, MPI_Comm *out)
{
    CHECK(comm != MPI_COMM_NULL);
    bool alone = exclusion_begin();
    int error = ulfm_shrink(comm, out);
    exclusion_end(alone);
    return error;
}

static int begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    bool alone = exclusion_begin();
    int error = ulfm_begin_agreement(comm, flag, request);
    exclusion_end(alone);
    return error;
}

/* Nobody waits for those on a lost host, if MPI does not either. */
static int await_agreement(const struct mpi_transport *m, MPI_Request *request)
{
    long us = 10;
    for (int done = 0;; us = us < 500 ? 2 * us : 1000) {
        int rc = mpi_test(request, &done);
        if (done || rc != MPI_SUCCESS)
            return mpi_check_in(m, rc, "MPIX_Comm_iagree") == PCOLL_EMPI ? PCOLL_EMPI
                                                                         : PCOLL_OK;
        rc = mpi_await_told(m);
        if (rc != PCOLL_OK)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
}

/* It ends with an error if somebody has died of whom this rank had not heard, and is an
 * agreement all the same. */
int mpi_agree_on(const struct mpi_transport *m, int *bits)
{
    CHECK(*bits >= 0);
    MPI_Request request;
    int flag = *bits;
    int rc = begin_agreement(m->comm, &flag, &request);
    if (rc != MPI_SUCCESS)
        return mpi_check_in(m, rc, "MPIX_Comm_iagree");
    rc = await_agreement(m, &request);
    *bits = flag;
    return rc;
}

int mpi_all_live(const void *comm)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm};
    MPI_Request request;
    int flag = mpi_damage(&m) == PCOLL_OK;
    int rc = begin_agreement(m.comm, &flag, &request);
    rc = rc == MPI_SUCCESS ? mpi_patient_wait(&m, &request, "MPIX_Comm_iagree")
                           : mpi_check_in(&m, rc, "MPIX_Comm_iagree");
    if (rc == PCOLL_OK && !flag && (rc = mpi_damage(&m)) == PCOLL_OK)
        rc = fail_ranks(&(struct failed_ranks){0});
    return rc;
}

int mpi_all_have(const void *comm, struct watch *watch, int rc)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm, .watch = watch};
    int all = rc == PCOLL_OK;
    struct reason reason;
    fail_reason(&reason);
    int agreed = mpi_agree_on(&m, &all);
    if (rc != PCOLL_OK)
        return rc == PCOLL_EFAILED ? rc : fail(rc, "%s", reason.text);
    if (agreed == PCOLL_OK && !all && (agreed = mpi_damage(&m)) == PCOLL_OK)
        agreed = fail_ranks(&(struct failed_ranks){0});
    return agreed;
}

/* Waiting in an agreement first, with naps: shrinking waits without. */
int mpi_copy_whole(struct mpi_transport *m)
{
    int before, now;
    CHECK(m->comm != MPI_COMM_NULL);
    int rc = mpi_all_have(&m->comm, m->watch, PCOLL_OK);
    if (rc == PCOLL_OK)
        rc = mpi_check_in(m, mpi_shrink_comm(m->comm, &m->made), "MPIX_Comm_shrink");
    if (rc != PCOLL_OK)
        return rc;
    MPI_Comm_size(m->comm, &before);
    MPI_Comm_size(m->made, &now);
    if (now == before)
        return PCOLL_OK;
    MPI_Comm_free(&m->made);
    rc = mpi_damage(m);
    return rc == PCOLL_OK ? fail_ranks(&(struct failed_ranks){0}) : rc;
}

int pcoll_all_have(const void *comm, int rc)
{
    CHECK(comm);
    return mpi_all_have(comm, NULL, rc);
}

int pcoll_shrink(const void *comm, void *living)
{
    CHECK(comm && living);
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm};
    return mpi_check_in(&m, mpi_shrink_comm(m.comm, living), "MPIX_Comm_shrink");
}

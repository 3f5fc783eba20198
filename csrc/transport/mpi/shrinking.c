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

static int mpi_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    bool alone = exclusion_begin();
    int error = ulfm_begin_agreement(comm, flag, request);
    exclusion_end(alone);
    return error;
}

/* Bits of an agreement: those of the caller, and what tells an outcome from none. A bit is in an
 * outcome if all have set it, so MARK always is, and nothing that one has not set itself. */
enum {
    CALLERS = 0x3f,
    LIVED = 0x40,   /* nobody has died of whom a rank had not heard */
    UNHEARD = 0x80, /* this rank has no outcome of the first time */
    MARK = 0x7fff0000
};

/* Nobody waits for those on a lost host, if MPI does not either. An agreement that ends with an
 * error since somebody has died is one all the same. */
static int mpi_await_agreement(const struct mpi_transport *m, MPI_Request *request,
                               bool *lived)
{
    long us = 10;
    for (int done = 0;; us = us < 500 ? 2 * us : 1000) {
        int rc = mpi_test(request, &done);
        if (done || rc != MPI_SUCCESS) {
            rc = mpi_check_in(m, rc, "MPIX_Comm_iagree");
            *lived = rc == PCOLL_OK;
            return rc == PCOLL_EMPI ? rc : PCOLL_OK;
        }
        rc = mpi_await_deaths(&m->base);
        if (rc != PCOLL_OK)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
}

/* Open MPI has been seen to end an agreement well, shortly after a death, with arbitrary bits: has
 * this rank `heard` what is agreed on? */
static int mpi_agree_once(const struct mpi_transport *m, int *bits, bool *heard)
{
    MPI_Request request;
    int flag = *bits | MARK;
    bool lived;
    int rc = mpi_begin_agreement(m->comm, &flag, &request);
    if (rc != MPI_SUCCESS)
        return mpi_check_in(m, rc, "MPIX_Comm_iagree");
    rc = mpi_await_agreement(m, &request, &lived);
    if (rc != PCOLL_OK)
        return rc;
    *heard = (flag & MARK) == MARK && !(flag & ~(*bits | MARK));
    *bits = *heard ? flag & ~MARK & (lived ? -1 : ~LIVED) : *bits;
    return PCOLL_OK;
}

/* A revocation that meets a process which is still in MPIX_Comm_shrink ends it, by Open MPI's
 * doing. So whoever is through waits until all are, before it may find something wrong. Not
 * in recoveries: where deaths come in a row, agreements that run into each other are worse. */
void mpi_await_all(MPI_Comm comm)
{
    CHECK(comm != MPI_COMM_NULL);
    const struct mpi_transport m = {.comm = comm};
    int bits = 0;
    bool heard;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    (void)mpi_agree_once(&m, &bits, &heard);
}

/* Twice: who has not heard the outcome hears it then from those who have. If nobody has, or
 * this rank neither time, it is as if somebody had died meanwhile: PCOLL_EFAILED, `bits` as
 * they were. */
int mpi_agree_bits(const struct transport *t, int *bits)
{
    const struct mpi_transport *m = (const struct mpi_transport *)t;
    int first = *bits | LIVED;
    bool heard, again;
    CHECK(!(*bits & ~CALLERS));
    int rc = mpi_agree_once(m, &first, &heard);
    if (rc != PCOLL_OK)
        return rc;
    int second = heard ? first : CALLERS | LIVED | UNHEARD;
    rc = mpi_agree_once(m, &second, &again);
    if (rc != PCOLL_OK)
        return rc;
    if (again && !(second & UNHEARD))
        *bits = second;
    else if (heard)
        *bits = first;
    else
        rc = mpi_fail_somebody();
    return rc;
}

/* PCOLL_OK if all say yes, else PCOLL_EFAILED: on all. */
static int mpi_all_say(const struct mpi_transport *m, bool yes, int wanted)
{
    int bits = yes;
    int rc = mpi_agree_bits(&m->base, &bits);
    if (rc == PCOLL_OK && (bits & wanted) != wanted && (rc = mpi_damage(m)) == PCOLL_OK)
        rc = mpi_fail_somebody();
    return rc;
}

int mpi_all_live(const void *comm)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm};
    return mpi_all_say(&m, mpi_damage(&m) == PCOLL_OK, 1 | LIVED);
}

int mpi_all_have(const void *comm, struct watch *watch, int rc)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm, .watch = watch};
    struct reason reason;
    fail_reason(&reason);
    int agreed = mpi_all_say(&m, rc == PCOLL_OK, 1);
    if (rc == PCOLL_OK)
        return agreed;
    return rc == PCOLL_EFAILED ? rc : fail(rc, "%s", reason.text);
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
    return rc == PCOLL_OK ? mpi_fail_somebody() : rc;
}

int pcoll_all_have(const void *comm, int rc)
{
    return fail_if_null(comm) ?: mpi_all_have(comm, NULL, rc);
}

int pcoll_shrink(const void *comm, void *living)
{
    int rc = fail_if_null(comm, living);
    if (rc != PCOLL_OK)
        return rc;
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm};
    return mpi_check_in(&m, mpi_shrink_comm(m.comm, living), "MPIX_Comm_shrink");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What all that live agree on, and communicators of theirs, where ranks may die; each of it ends
 * alike on all of them. See recovery.h. */
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
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

/* Bits of an agreement: those of the caller, and what tells an outcome from none. A bit is in an
 * outcome if all have set it, so MARK always is, and nothing that one has not set itself. */
enum {
    CALLERS = 0x3f,
    LIVED = 0x40,   /* nobody has died of whom a rank had not heard */
    UNHEARD = 0x80, /* this rank has no outcome of the first time */
    MARK = 0x7fff0000
};

/* One of MPI's; `heard`: it has an outcome, which is `bits` then. */
struct agreement_call {
    MPI_Request request;
    int flag, bits;
    bool over, heard;
};

static int begin_call(const struct mpi_transport *m, int bits, struct agreement_call *a)
{
    *a = (struct agreement_call){.flag = bits | MARK, .bits = bits};
    bool alone = exclusion_begin();
    int error = ulfm_begin_agreement(m->comm, &a->flag, &a->request);
    exclusion_end(alone);
    a->over = error != MPI_SUCCESS;
    return error == MPI_SUCCESS ? PCOLL_OK : mpi_check_in(m, error, "MPIX_Comm_iagree");
}

/* An agreement that ends with an error since somebody has died is one all the same. But Open MPI
 * has been seen to end one well, shortly after a death, with arbitrary bits. */
static int look_at(const struct mpi_transport *m, struct agreement_call *a)
{
    int done = 0, error = mpi_test(&a->request, &done);
    if (!done && error == MPI_SUCCESS)
        return PCOLL_OK;
    a->over = true;
    int rc = mpi_check_in(m, error, "MPIX_Comm_iagree");
    a->heard = (a->flag & MARK) == MARK && !(a->flag & ~(a->bits | MARK));
    if (a->heard)
        a->bits = a->flag & ~MARK & (rc == PCOLL_OK ? -1 : ~LIVED);
    return rc == PCOLL_EMPI ? rc : PCOLL_OK;
}

/* Nobody waits for those on a lost host, if MPI does not either; where somebody has died, not for
 * longer than that: one of some thousands of Open MPI's, when several ranks die at once, never
 * ends. */
static int await_call(const struct mpi_transport *m, struct agreement_call *a,
                      int64_t patience_ns)
{
    int64_t begin = clock_ns();
    long us = 10;
    for (;; us = us < 500 ? 2 * us : 1000) {
        int rc = look_at(m, a);
        if (a->over || rc != PCOLL_OK)
            return rc;
        if (clock_ns() - begin > patience_ns && mpi_damage(m) != PCOLL_OK)
            return PCOLL_OK;
        rc = mpi_await_told(m);
        if (rc != PCOLL_OK)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
}

/* A revocation that meets a process which is still in MPIX_Comm_shrink ends it, by Open MPI's
 * doing. So whoever is through waits until all are, before it may find something wrong. Not
 * in recoveries: where deaths come in a row, agreements that run into each other are worse. */
void mpi_await_all(MPI_Comm comm)
{
    CHECK(comm != MPI_COMM_NULL);
    const struct mpi_transport m = {.comm = comm};
    struct agreement_call a;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (begin_call(&m, 0, &a) == PCOLL_OK)
        (void)await_call(&m, &a, INT64_MAX);
}

static const int64_t PATIENCE_NS = 500000000;

/* The second one is begun beside the first if that does not end, by a rank that has then not heard
 * it for the others, and so not for itself either when it ends after all. */
static int agree_twice(const struct mpi_transport *m, struct agreement_call both[2],
                       int64_t patience_ns)
{
    int rc = await_call(m, &both[0], patience_ns);
    if (rc != PCOLL_OK)
        return rc;
    bool heard = both[0].heard;
    rc = begin_call(m, heard ? both[0].bits : CALLERS | LIVED | UNHEARD, &both[1]);
    if (rc == PCOLL_OK)
        rc = await_call(m, &both[1], INT64_MAX);
    if (rc == PCOLL_OK && !both[0].over)
        rc = await_call(m, &both[0], patience_ns);
    both[0].heard = heard;
    return rc;
}

/* Twice: who has not heard the outcome hears it then from those who have. If nobody has, or
 * this rank neither time, it is as if somebody had died meanwhile: PCOLL_EFAILED, `bits` as
 * they were. */
int mpi_agree_on(const struct mpi_transport *m, int *bits)
{
    CHECK(!(*bits & ~CALLERS));
    struct agreement_call here[2], *lasting = calloc(2, sizeof *lasting);
    struct agreement_call *both = lasting ? lasting : here;
    both[1].over = true;
    int rc = begin_call(m, *bits | LIVED, &both[0]);
    if (rc == PCOLL_OK)
        rc = agree_twice(m, both, lasting ? PATIENCE_NS : INT64_MAX);
    if (rc == PCOLL_OK) {
        if (both[1].heard && !(both[1].bits & UNHEARD))
            *bits = both[1].bits;
        else if (both[0].heard)
            *bits = both[0].bits;
        else
            rc = fail_ranks(&(struct failed_ranks){0});
    }
    if (both[0].over && both[1].over) /* else MPI may still write to it */
        free(lasting);
    return rc;
}

/* PCOLL_OK if all say yes, else PCOLL_EFAILED: on all. */
static int all_say(const struct mpi_transport *m, bool yes, int wanted)
{
    int bits = yes;
    int rc = mpi_agree_on(m, &bits);
    if (rc == PCOLL_OK && (bits & wanted) != wanted && (rc = mpi_damage(m)) == PCOLL_OK)
        rc = fail_ranks(&(struct failed_ranks){0});
    return rc;
}

int mpi_all_live(const void *comm)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm};
    return all_say(&m, mpi_damage(&m) == PCOLL_OK, 1 | LIVED);
}

int mpi_all_have(const void *comm, struct watch *watch, int rc)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm, .watch = watch};
    struct reason reason;
    fail_reason(&reason);
    int agreed = all_say(&m, rc == PCOLL_OK, 1);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* See recovery.h. */
#include "transport/mpi/recovery.h"

#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include "base/bitset.h"
#include "base/check.h"
#include "base/error.h"
#include "transport/mpi/internal.h"
#include "transport/mpi/completion.h"
#include "transport/mpi/rank_failure.h"
#include "transport/mpi/tree.h"

#ifdef OPEN_MPI

/* Not there before 5.0. */
extern int PMPIX_Comm_revoke(MPI_Comm comm) __attribute__((weak));
extern int PMPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm) __attribute__((weak));
extern int PMPIX_Comm_iagree(MPI_Comm comm, int *flag, MPI_Request *request)
    __attribute__((weak));

static int revoke(MPI_Comm comm)
{
    return PMPIX_Comm_revoke(comm);
}

static int shrink(MPI_Comm comm, MPI_Comm *out)
{
    return PMPIX_Comm_shrink(comm, out);
}

static int begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    return PMPIX_Comm_iagree(comm, flag, request);
}

#else /* pcoll_tells_of_failures() is 0: never called */

static int revoke(MPI_Comm comm)
{
    (void)comm;
    return MPI_ERR_UNSUPPORTED_OPERATION;
}

static int shrink(MPI_Comm comm, MPI_Comm *out)
{
    (void)comm;
    (void)out;
    return MPI_ERR_UNSUPPORTED_OPERATION;
}

static int begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    (void)comm;
    (void)flag;
    (void)request;
    return MPI_ERR_UNSUPPORTED_OPERATION;
}

#endif

static struct mpi_transport *of(struct transport *t)
{
    return (struct mpi_transport *)t;
}

void mpi_revoke(struct transport *t)
{
    CHECK(of(t)->comm != MPI_COMM_NULL);
    revoke(of(t)->comm);
}

void mpi_revoke_comm(void *comm)
{
    revoke(*(MPI_Comm *)comm);
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
static int agree_on(const struct mpi_transport *m, int *bits)
{
    MPI_Request request;
    int flag = *bits;
    int rc = begin_agreement(m->comm, &flag, &request);
    if (rc != MPI_SUCCESS)
        return mpi_check_in(m, rc, "MPIX_Comm_iagree");
    rc = await_agreement(m, &request);
    *bits = flag;
    return rc;
}

int mpi_agree_bits(struct transport *t, int *bits)
{
    CHECK(*bits >= 0);
    return agree_on(of(t), bits);
}

int mpi_all_have(const void *comm, struct watch *watch, int rc)
{
    const struct mpi_transport m = {.comm = *(const MPI_Comm *)comm, .watch = watch};
    int all = rc == PCOLL_OK;
    struct reason reason;
    fail_reason(&reason);
    int agreed = agree_on(&m, &all);
    if (rc != PCOLL_OK)
        return rc == PCOLL_EFAILED ? rc : fail(rc, "%s", reason.text);
    if (agreed == PCOLL_OK && !all)
        agreed = fail(PCOLL_EFAILED, "a rank has died while this was made");
    return agreed;
}

/* Whose number in the new communicator is whose here; who is missing has died. */
static int number_ranks(struct mpi_transport *m, const struct mpi_transport *old)
{
    int living, *theirs, *ours;
    MPI_Group before, now;
    MPI_Comm_size(m->comm, &living);
    m->base.living = (uint32_t)living;
    theirs = calloc((size_t)living, sizeof *theirs);
    ours = calloc((size_t)living, sizeof *ours);
    if (!theirs || !ours) {
        free(theirs);
        free(ours);
        return fail(PCOLL_ENOMEM, "no memory for %d ranks", living);
    }
    for (int i = 0; i < living; i++)
        theirs[i] = i;
    MPI_Comm_group(old->comm, &before);
    MPI_Comm_group(m->comm, &now);
    MPI_Group_translate_ranks(now, living, theirs, before, ours);
    MPI_Group_free(&before);
    MPI_Group_free(&now);
    bitset_fill(m->failed, m->base.size);
    for (int i = 0; i < living; i++) {
        uint32_t rank = mpi_rank_of(old, ours[i]);
        m->numbers[rank] = i;
        m->ranks[i] = rank;
        m->failed[rank / 64] &= ~((uint64_t)1 << rank % 64);
    }
    free(theirs);
    free(ours);
    return PCOLL_OK;
}

static struct mpi_transport *allocate(const struct mpi_transport *old)
{
    struct mpi_transport *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->comm = MPI_COMM_NULL;
    m->block = MPI_DATATYPE_NULL;
    m->watch = old->watch;
    m->base = (struct transport){.ops = &mpi_ops,
                                 .rank = old->base.rank,
                                 .size = old->base.size,
                                 .tags = old->base.tags,
                                 .threads = old->base.threads};
    m->numbers = calloc(m->base.size, sizeof *m->numbers);
    m->ranks = calloc(m->base.size, sizeof *m->ranks);
    m->failed = calloc(bitset_words(m->base.size), sizeof *m->failed);
    m->base.failed = m->failed;
    if (m->numbers && m->ranks && m->failed)
        return m;
    mpi_free_transport(m);
    return NULL;
}

bool mpi_has_lost_hosts(struct transport *t)
{
    return mpi_check_hosts(of(t)) != PCOLL_OK;
}

int mpi_await_deaths(struct transport *t)
{
    return mpi_await_told(of(t));
}

int mpi_shrink(struct transport *old, const struct doorbell *own,
               struct transport **out)
{
    *out = NULL;
    struct mpi_transport *m = allocate(of(old));
    if (!m)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    int rc = mpi_check_in(of(old), shrink(of(old)->comm, &m->comm), "MPIX_Comm_shrink");
    if (rc != PCOLL_OK) {
        mpi_free_transport(m);
        return rc;
    }
    *out = &m->base;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    rc = number_ranks(m, of(old));
    return rc == PCOLL_OK ? mpi_settle(m, own) : rc;
}

int mpi_share(struct transport *t, uint32_t root, void *data, size_t bytes)
{
    CHECK(bytes % BLOCK == 0 && bytes / BLOCK <= INT_MAX);
    return tree_broadcast(of(t), mpi_number_of(of(t), root), data, bytes);
}

/* Shrinking what is whole is duplicating it, and ends well or badly on all. */
int mpi_give_comm(struct transport *t, void *comm)
{
    struct mpi_transport *m = of(t);
    int rc = mpi_check_in(m, shrink(m->comm, &m->made), "MPIX_Comm_shrink");
    if (rc == PCOLL_OK)
        *(MPI_Comm *)comm = m->made;
    return rc;
}

/* What was begun ends with an error once the communicator has been revoked. Sends that were
 * under way are never freed, nor what they send. */
bool mpi_abandon(struct transport *t)
{
    struct mpi_transport *m = of(t);
    for (int i = 0; i < m->count; i++) {
        int over = m->requests[i] == MPI_REQUEST_NULL;
        if (m->info[i].held != MPI_REQUEST_NULL)
            return false;
        if (!over && i < CONTROL_RECEIVES && !m->arrived[i])
            MPI_Cancel(&m->requests[i]);
        if (!over)
            mpi_test(&m->requests[i], &over);
        if (!over)
            return false;
    }
    for (int i = 0; i < m->count && i < CONTROL_RECEIVES; i++)
        if (m->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_free(&m->requests[i]);
    mpi_free_transport(m);
    return true;
}

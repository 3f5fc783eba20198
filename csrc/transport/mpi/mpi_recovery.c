/* SPDX-License-Identifier: Apache-2.0 */
/* What all that live agree on, and communicators of theirs, where ranks may die; each of it ends
 * alike on all of them. See mpi_recovery.h. */
#include "transport/mpi/mpi_recovery.h"

#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include "base/bitset.h"
#include "base/check.h"
#include "base/error.h"
#include "include/partialcoll.h"
#include "transport/mpi/mpi_calls.h"
#include "transport/mpi/mpi_internal.h"

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

static struct mpi_transport *mpi_recovery_of(struct transport *t)
{
    return (struct mpi_transport *)t;
}

void mpi_revoke(struct transport *t)
{
    CHECK(mpi_recovery_of(t)->comm != MPI_COMM_NULL);
    ulfm_revoke(mpi_recovery_of(t)->comm);
}

void mpi_revoke_comm(void *comm)
{
    ulfm_revoke(*(MPI_Comm *)comm);
}

bool mpi_is_damaged(struct transport *t)
{
    return mpi_damage(mpi_recovery_of(t)) != PCOLL_OK;
}

/* Whose number in the new communicator is whose here; who is missing has died. */
static int mpi_number_ranks(struct mpi_transport *m, const struct mpi_transport *old)
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

/* `like` has the rank, the size and what MPI can. */
static struct mpi_transport *mpi_allocate_transport(const struct transport *like,
                                                    struct watch *watch)
{
    struct mpi_transport *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->comm = MPI_COMM_NULL;
    m->block = MPI_DATATYPE_NULL;
    m->watch = watch;
    m->base = (struct transport){.ops = &mpi_ops,
                                 .rank = like->rank,
                                 .size = like->size,
                                 .tags = like->tags,
                                 .threads = like->threads};
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
    return mpi_check_hosts(mpi_recovery_of(t)) != PCOLL_OK;
}

int mpi_shrink(struct transport *old, const struct doorbell *own,
               struct transport **out)
{
    *out = NULL;
    struct mpi_transport *m = mpi_allocate_transport(old, mpi_recovery_of(old)->watch);
    if (!m)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    int rc = mpi_check_in(mpi_recovery_of(old),
                          mpi_shrink_comm(mpi_recovery_of(old)->comm, &m->comm),
                          "MPIX_Comm_shrink");
    if (rc != PCOLL_OK) {
        mpi_free_transport(m);
        return rc;
    }
    *out = &m->base;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    rc = mpi_number_ranks(m, mpi_recovery_of(old));
    return rc == PCOLL_OK ? mpi_settle(m, own) : rc;
}

/* Who of `before` is not in `now`, by the numbers of those before. */
static int mpi_fail_missing(MPI_Comm before, MPI_Comm now, const uint32_t *numbers)
{
    struct failed_ranks who = {.mpi_error = MPI_SUCCESS};
    MPI_Group all, left;
    int size;
    MPI_Comm_size(before, &size);
    MPI_Comm_group(before, &all);
    MPI_Comm_group(now, &left);
    for (int i = 0; i < size; i++) {
        int there;
        MPI_Group_translate_ranks(all, 1, &i, left, &there);
        if (there == MPI_UNDEFINED &&
            who.count < (int)(sizeof who.rank / sizeof *who.rank))
            who.rank[who.count++] = (int32_t)numbers[i];
    }
    MPI_Group_free(&all);
    MPI_Group_free(&left);
    return who.count ? fail_ranks(&who) : PCOLL_OK;
}

/* Those of `comm`, by their numbers here; all others have died. */
static int mpi_number_members(struct mpi_transport *m, MPI_Comm comm,
                              const uint32_t *numbers)
{
    int living;
    MPI_Comm_size(m->comm, &living);
    m->base.living = (uint32_t)living;
    int rc = mpi_fail_missing(comm, m->comm, numbers);
    if (rc != PCOLL_OK)
        return rc;
    bitset_fill(m->failed, m->base.size);
    for (int i = 0; i < living; i++) {
        CHECK(numbers[i] < m->base.size && bitset_has(m->failed, numbers[i]));
        m->numbers[numbers[i]] = i;
        m->ranks[i] = numbers[i];
        m->failed[numbers[i] / 64] &= ~((uint64_t)1 << numbers[i] % 64);
    }
    return PCOLL_OK;
}

/* Shrinking what is whole is duplicating it, and who is there then is the same on all. */
int mpi_regroup(const void *members, const uint32_t *numbers, uint32_t ranks,
                const struct doorbell *own, struct watch *watch, struct transport **out)
{
    MPI_Comm comm = *(const MPI_Comm *)members;
    int rank;
    *out = NULL;
    MPI_Comm_rank(comm, &rank);
    struct transport like = {.rank = numbers[rank], .size = ranks};
    mpi_describe(comm, &like);
    struct mpi_transport *m = mpi_allocate_transport(&like, watch);
    int rc = m ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a communicator");
    if ((rc = mpi_all_have(members, watch, rc)) == PCOLL_OK)
        rc = mpi_check_on(comm, mpi_shrink_comm(comm, &m->comm), "MPIX_Comm_shrink");
    if (rc != PCOLL_OK) {
        if (m)
            mpi_free_transport(m);
        return rc;
    }
    *out = &m->base;
    mpi_await_all(m->comm);
    rc = mpi_number_members(m, comm, numbers);
    return rc == PCOLL_OK ? mpi_settle(m, own) : rc;
}

int mpi_share(struct transport *t, uint32_t root, void *data, size_t bytes)
{
    CHECK(bytes % BLOCK == 0 && bytes / BLOCK <= INT_MAX);
    return tree_broadcast(mpi_recovery_of(t), mpi_number_of(mpi_recovery_of(t), root),
                          data, bytes);
}

/* Shrinking what is whole is duplicating it, and ends well or badly on all. */
int mpi_give_comm(struct transport *t, void *comm)
{
    struct mpi_transport *m = mpi_recovery_of(t);
    int rc = mpi_check_in(m, mpi_shrink_comm(m->comm, &m->made), "MPIX_Comm_shrink");
    if (rc == PCOLL_OK)
        *(MPI_Comm *)comm = m->made;
    return rc;
}

/* What was begun ends with an error once the communicator has been revoked. Sends that were
 * under way are never freed, nor what they send. */
bool mpi_abandon(struct transport *t)
{
    struct mpi_transport *m = mpi_recovery_of(t);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* See rank_failure.h. */
#include "transport/mpi/rank_failure.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "transport/mpi/completion.h"
#include "transport/mpi/internal.h"
#include "transport/mpi/recovery.h"
#include "transport/mpi/ulfm.h"

static int mpi_by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Who has died, as MPI has it, by their numbers in the communicator. */
static bool mpi_find_failed(MPI_Comm comm, struct failed_ranks *who)
{
    enum { MOST = sizeof who->rank / sizeof *who->rank };
    int theirs[MOST], ours[MOST], count = 0;
    MPI_Group all, failed;
    if (ulfm_get_failed(comm, &failed) != MPI_SUCCESS)
        return false;
    MPI_Group_size(failed, &count);
    count = count < MOST ? count : MOST;
    for (int i = 0; i < count; i++)
        theirs[i] = i;
    MPI_Comm_group(comm, &all);
    MPI_Group_translate_ranks(failed, count, theirs, all, ours);
    MPI_Group_free(&all);
    MPI_Group_free(&failed);
    qsort(ours, (size_t)count, sizeof *ours, mpi_by_number);
    for (int i = 0; i < count; i++)
        who->rank[i] = ours[i];
    who->count = count;
    return true;
}

/* Not all calls say so by their error: a dup'ed communicator's may be an internal one. */
int mpi_check_on(MPI_Comm comm, int mpi_error, const char *what)
{
    CHECK(comm != MPI_COMM_NULL);
    if (mpi_error == MPI_SUCCESS)
        return PCOLL_OK;
    struct failed_ranks who = {.mpi_error = mpi_error};
    if (pcoll_tells_of_failures())
        mpi_find_failed(comm, &who);
    return who.count || ulfm_is_rank_failure(mpi_error) ? fail_ranks(&who)
                                                        : mpi_check(mpi_error, what);
}

/* By the numbers that ranks have here. */
int mpi_check_in(const struct mpi_transport *m, int mpi_error, const char *what)
{
    int rc = mpi_check_on(m->comm, mpi_error, what);
    if (rc == PCOLL_EFAILED && mpi_check_hosts(m) != PCOLL_OK)
        return rc; /* all who were there, of whom MPI may know some */
    if (rc != PCOLL_EFAILED || !m->ranks)
        return rc;
    struct failed_ranks who = *fail_last_ranks();
    for (int i = 0; i < who.count; i++)
        who.rank[i] = (int32_t)mpi_rank_of(m, who.rank[i]);
    return fail_ranks(&who);
}

int mpi_fail_somebody(void)
{
    return fail_ranks(&(struct failed_ranks){.mpi_error = ulfm_rank_failure()});
}

int mpi_damage(const struct mpi_transport *m)
{
    struct failed_ranks who = {.mpi_error = ulfm_rank_failure()};
    int rc = mpi_check_hosts(m); /* all who were there, of whom MPI may know some */
    if (rc != PCOLL_OK)
        return rc;
    mpi_find_failed(m->comm, &who);
    return who.count || ulfm_is_revoked(m->comm) ? fail_ranks(&who) : PCOLL_OK;
}

static bool mpi_failed_has(const struct failed_ranks *who, int rank)
{
    for (int i = 0; i < who->count; i++)
        if (who->rank[i] == rank)
            return true;
    return false;
}

static bool mpi_knows_all(MPI_Comm comm, const struct failed_ranks *wanted)
{
    struct failed_ranks known = {0};
    if (!mpi_find_failed(comm, &known))
        return false;
    for (int i = 0; i < wanted->count; i++)
        if (!mpi_failed_has(&known, wanted->rank[i]))
            return false;
    return true;
}

/* MPI finds out while it makes progress. */
int mpi_await_deaths(const struct transport *t)
{
    const struct mpi_transport *m = (const struct mpi_transport *)t;
    const int64_t end = clock_us() + 3000000;
    if (mpi_check_hosts(m) == PCOLL_OK)
        return PCOLL_OK;
    struct failed_ranks lost = *fail_last_ranks(), numbers = lost;
    for (int i = 0; i < lost.count; i++)
        numbers.rank[i] = mpi_number_of(m, (uint32_t)lost.rank[i]);
    while (!mpi_knows_all(m->comm, &numbers)) {
        if (clock_us() > end)
            return fail_ranks(&lost);
        mpi_make_progress();
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return PCOLL_OK;
}

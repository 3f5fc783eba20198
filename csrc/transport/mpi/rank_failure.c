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
#include "transport/mpi/ulfm.h"

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Members of a group, by their numbers in the communicator. */
static void translate(MPI_Comm comm, MPI_Group failed, struct failed_ranks *who)
{
    enum { MOST = sizeof who->rank / sizeof *who->rank };
    int theirs[MOST], ours[MOST], count = 0;
    MPI_Group all;
    MPI_Group_size(failed, &count);
    count = count < MOST ? count : MOST;
    for (int i = 0; i < count; i++)
        theirs[i] = i;
    MPI_Comm_group(comm, &all);
    MPI_Group_translate_ranks(failed, count, theirs, all, ours);
    MPI_Group_free(&all);
    qsort(ours, (size_t)count, sizeof *ours, by_number);
    for (int i = 0; i < count; i++)
        who->rank[i] = ours[i];
    who->count = count;
}

/* Not all calls say so by their error: a dup'ed communicator's may be an internal one. */
int mpi_check_on(MPI_Comm comm, int mpi_error, const char *what)
{
    CHECK(comm != MPI_COMM_NULL);
    if (mpi_error == MPI_SUCCESS)
        return PCOLL_OK;
    struct failed_ranks who = {.mpi_error = mpi_error};
    MPI_Group failed;
    if (pcoll_tells_of_failures() && ulfm_get_failed(comm, &failed) == MPI_SUCCESS) {
        translate(comm, failed, &who);
        MPI_Group_free(&failed);
    }
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
    MPI_Group failed;
    int rc = mpi_check_hosts(m); /* all who were there, of whom MPI may know some */
    if (rc != PCOLL_OK)
        return rc;
    if (ulfm_get_failed(m->comm, &failed) == MPI_SUCCESS) {
        translate(m->comm, failed, &who);
        MPI_Group_free(&failed);
    }
    return who.count || ulfm_is_revoked(m->comm) ? fail_ranks(&who) : PCOLL_OK;
}

static bool has(const struct failed_ranks *who, int rank)
{
    for (int i = 0; i < who->count; i++)
        if (who->rank[i] == rank)
            return true;
    return false;
}

static bool knows_all(MPI_Comm comm, const struct failed_ranks *wanted)
{
    struct failed_ranks known = {0};
    MPI_Group failed;
    if (ulfm_get_failed(comm, &failed) != MPI_SUCCESS)
        return false;
    translate(comm, failed, &known);
    MPI_Group_free(&failed);
    for (int i = 0; i < wanted->count; i++)
        if (!has(&known, wanted->rank[i]))
            return false;
    return true;
}

/* MPI finds out while it makes progress. */
int mpi_await_told(const struct mpi_transport *m)
{
    const int64_t end = clock_us() + 3000000;
    if (mpi_check_hosts(m) == PCOLL_OK)
        return PCOLL_OK;
    struct failed_ranks lost = *fail_last_ranks(), numbers = lost;
    for (int i = 0; i < lost.count; i++)
        numbers.rank[i] = mpi_number_of(m, (uint32_t)lost.rank[i]);
    while (!knows_all(m->comm, &numbers)) {
        if (clock_us() > end)
            return fail_ranks(&lost);
        mpi_make_progress();
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return PCOLL_OK;
}

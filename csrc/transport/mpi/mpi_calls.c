/* SPDX-License-Identifier: Apache-2.0 */
/* See mpi_calls.h. */
#include "transport/mpi/mpi_calls.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/lock.h"
#include "include/partialcoll.h"
#include "transport/mpi/mpi_internal.h"
#include "transport/mpi/mpi_recovery.h"

/* Open MPI's numbers since 5.0; before, and in others, no error has them. */
enum { PROC_FAILED = 75, PROC_FAILED_PENDING = 76, REVOKED = 77 };

#ifdef OPEN_MPI

/* Not there before 5.0. */
#define LATER __attribute__((weak))
extern int PMPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *failed) LATER;
extern int PMPIX_Comm_is_revoked(MPI_Comm comm, int *flag) LATER;
extern int PMPIX_Comm_revoke(MPI_Comm comm) LATER;
extern int PMPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm) LATER;
extern int PMPIX_Comm_iagree(MPI_Comm comm, int *flag, MPI_Request *request) LATER;
/* Open MPI's parameter async_mpi_finalize: MPI_Finalize skips the launcher's barrier. */
extern bool ompi_async_mpi_finalize LATER;
/* Communicators that span several jobs. MPI_Finalize waits on each if there are two. */
extern int ompi_comm_num_dyncomm LATER;

#define IN_OPEN_MPI(function) function

#else

/* Others may have such functions, but jobs do not go on with them. */
#define IN_OPEN_MPI(function) NULL

#endif

static int (*const get_failed)(MPI_Comm,
                               MPI_Group *) = IN_OPEN_MPI(PMPIX_Comm_get_failed);
static int (*const is_revoked)(MPI_Comm, int *) = IN_OPEN_MPI(PMPIX_Comm_is_revoked);
static int (*const revoke)(MPI_Comm) = IN_OPEN_MPI(PMPIX_Comm_revoke);
static int (*const shrink)(MPI_Comm, MPI_Comm *) = IN_OPEN_MPI(PMPIX_Comm_shrink);
static int (*const iagree)(MPI_Comm, int *,
                           MPI_Request *) = IN_OPEN_MPI(PMPIX_Comm_iagree);

int pcoll_tells_of_failures(void)
{
    const char *enabled = environment_get("OMPI_MCA_mpi_ft_enable"); /* by mpiexec */
    return get_failed && enabled && strcmp(enabled, "0") != 0;
}

int ulfm_rank_failure(void)
{
    return pcoll_tells_of_failures() ? PROC_FAILED : MPI_ERR_OTHER;
}

bool ulfm_is_rank_failure(int mpi_error)
{
    int class = mpi_error;
    if (!get_failed)
        return false;
    MPI_Error_class(mpi_error, &class);
    return class == PROC_FAILED || class == PROC_FAILED_PENDING || class == REVOKED;
}

int ulfm_get_failed(MPI_Comm comm, MPI_Group *failed)
{
    return get_failed ? get_failed(comm, failed) : MPI_ERR_UNSUPPORTED_OPERATION;
}

bool ulfm_is_revoked(MPI_Comm comm)
{
    int flag = 0;
    return is_revoked && is_revoked(comm, &flag) == MPI_SUCCESS && flag;
}

int ulfm_revoke(MPI_Comm comm)
{
    return revoke ? revoke(comm) : MPI_ERR_UNSUPPORTED_OPERATION;
}

int ulfm_shrink(MPI_Comm comm, MPI_Comm *out)
{
    return shrink ? shrink(comm, out) : MPI_ERR_UNSUPPORTED_OPERATION;
}

void mpi_prepare_finalize(void)
{
#ifdef OPEN_MPI
    if (!pcoll_tells_of_failures())
        return;
    if (&ompi_async_mpi_finalize)
        ompi_async_mpi_finalize = true;
    if (&ompi_comm_num_dyncomm)
        ompi_comm_num_dyncomm = INT_MIN / 2; /* others may still be made and freed */
#endif
}

int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    return iagree ? iagree(comm, flag, request) : MPI_ERR_UNSUPPORTED_OPERATION;
}

enum { PATIENCE_NS = 200000000, PAUSE_NS = 100000 };

static struct lock in_mpi = LOCK_INIT(LOCK_IN_MPI);
static pthread_once_t asked = PTHREAD_ONCE_INIT;
static bool ranks_may_die;

static void exclusion_ask(void)
{
    ranks_may_die = pcoll_tells_of_failures();
}

/* pthread_mutex_timedlock waits by the wall clock. */
static bool exclusion_wait(void)
{
    int64_t until = clock_ns() + PATIENCE_NS;
    bool held = false;
    lock_waits(LOCK_IN_MPI);
    while (!held && clock_ns() < until) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        held = lock_try(&in_mpi);
    }
    return held;
}

bool exclusion_begin(void)
{
    pthread_once(&asked, exclusion_ask);
    return ranks_may_die && (lock_try(&in_mpi) || exclusion_wait());
}

void exclusion_end(bool begun)
{
    if (begun)
        lock_release(&in_mpi);
}

/* Open MPI's switch is found once, by its name (mpi_calls.h). */

/* Sets whether an idle test yields; returns whether it did. */
typedef bool set_yield(bool yields);

static pthread_once_t looked_up = PTHREAD_ONCE_INIT;
static set_yield *set; /* NULL if tests do not yield */

static void completion_yield(void)
{
    if (set)
        set(true);
}

/* In the library that MPI comes from and those that it needs: the symbol is not global
 * in a Python process. */
static void completion_look_up(void)
{
    int (*test)(MPI_Request *, int *, MPI_Status *) = PMPI_Test;
    void *address;
    memcpy(&address, &test, sizeof address);
    Dl_info library;
    if (!dladdr(address, &library) || !library.dli_fname)
        return;
    void *handle = dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return;
    void *symbol = dlsym(handle, "opal_progress_set_yield_when_idle");
    memcpy(&set, &symbol, sizeof set);
    dlclose(handle); /* it stays: this library needs it */
    if (set && !set(false))
        set = NULL;
    completion_yield();
}

/* What comes back belongs into `leave`. */
static bool completion_enter(void)
{
    bool alone = exclusion_begin();
    pthread_once(&looked_up, completion_look_up);
    if (set)
        set(false);
    return alone;
}

static void completion_leave(bool alone)
{
    completion_yield();
    exclusion_end(alone);
}

int mpi_test_one(MPI_Request *request, int *done, MPI_Status *status)
{
    bool alone = completion_enter();
    int rc = MPI_Test(request, done, status);
    completion_leave(alone);
    return rc;
}

int mpi_test(MPI_Request *request, int *done)
{
    return mpi_test_one(request, done, MPI_STATUS_IGNORE);
}

int mpi_test_all(int count, MPI_Request *requests, int *done)
{
    bool alone = completion_enter();
    int rc = MPI_Testall(count, requests, done, MPI_STATUSES_IGNORE);
    completion_leave(alone);
    return rc;
}

int mpi_test_some(int count, MPI_Request *requests, int *finished, int *done,
                  MPI_Status *statuses)
{
    bool alone = completion_enter();
    int rc = MPI_Testsome(count, requests, finished, done, statuses);
    completion_leave(alone);
    return rc;
}

int mpi_get_status(MPI_Request request, int *done)
{
    bool alone = completion_enter();
    int rc = MPI_Request_get_status(request, done, MPI_STATUS_IGNORE);
    completion_leave(alone);
    return rc;
}

void mpi_make_progress(void)
{
    int there;
    bool alone = completion_enter();
    MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_SELF, &there, MPI_STATUS_IGNORE);
    completion_leave(alone);
}

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

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of MPI that need care; see mpi_internal.h. */
#include "transport/mpi/mpi_internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/file.h"

/* The exclusion. */

enum { MOST_NAPS = 2000, NAP_NS = 100000 };

static struct lock in_mpi = LOCK_INIT(LOCK_IN_MPI);
static atomic_bool holder_waits; /* Its call waits for other ranks. */

/* Found out once about this MPI. */
static pthread_once_t looked_up = PTHREAD_ONCE_INIT;
static bool ranks_may_die;
/* Sets whether an idle test yields; returns whether it did. NULL if tests do not yield. */
static bool (*yield_switch)(bool yields);

/* Look for the switch in the library that MPI comes from and in those that it needs: the symbol is
 * not global in a Python process. */
static void exclusion_look_up(void)
{
    int (*test)(MPI_Request *, int *, MPI_Status *) = PMPI_Test;
    void *address, *symbol = NULL;
    Dl_info library;
    ranks_may_die = pcoll_tells_of_failures();
    memcpy(&address, &test, sizeof address);
    void *file = dladdr(address, &library) && library.dli_fname
                     ? dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                     : NULL;
    if (file) {
        symbol = dlsym(file, "opal_progress_set_yield_when_idle");
        dlclose(file); /* It stays loaded: this library needs it. */
    }
    memcpy(&yield_switch, &symbol, sizeof yield_switch);
    if (yield_switch && !yield_switch(false))
        yield_switch = NULL;
    if (yield_switch)
        yield_switch(true);
}

/* Naps are counted, not time: while this process is suspended, no holder could finish. */
bool exclusion_begin(bool waits)
{
    pthread_once(&looked_up, exclusion_look_up);
    if (!ranks_may_die)
        return false;
    bool held = lock_try(&in_mpi);
    if (!held)
        lock_waits(LOCK_IN_MPI);
    for (int naps = 0; !held && naps < MOST_NAPS;) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        held = lock_try(&in_mpi);
        naps += atomic_load(&holder_waits);
    }
    if (held)
        atomic_store(&holder_waits, waits);
    return held;
}

void exclusion_end(bool begun)
{
    if (!begun)
        return;
    atomic_store(&holder_waits, false);
    lock_release(&in_mpi);
}

/* ULFM. */

/* Open MPI's numbers since 5.0. An older Open MPI and other MPIs have no error with them. The MPI
 * that is loaded may be newer or older than the header: the numbers are part of its ABI. */
enum { PROC_FAILED = 75, PROC_FAILED_PENDING = 76, REVOKED = 77 };
#if defined(OPEN_MPI) && defined(MPI_ERR_PROC_FAILED)
_Static_assert(PROC_FAILED == MPI_ERR_PROC_FAILED &&
                   PROC_FAILED_PENDING == MPI_ERR_PROC_FAILED_PENDING &&
                   REVOKED == MPI_ERR_REVOKED,
               "Open MPI's error codes are as before");
#endif

#ifdef OPEN_MPI

#define WEAK __attribute__((weak)) /* NULL before 5.0 */
extern int PMPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *failed) WEAK;
extern int PMPIX_Comm_is_revoked(MPI_Comm comm, int *flag) WEAK;
extern int PMPIX_Comm_revoke(MPI_Comm comm) WEAK;
extern int PMPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm) WEAK;
extern int PMPIX_Comm_iagree(MPI_Comm comm, int *flag, MPI_Request *request) WEAK;
/* Open MPI's parameter async_mpi_finalize: MPI_Finalize skips the launcher's barrier. */
extern bool ompi_async_mpi_finalize WEAK;
/* Communicators that span several jobs. MPI_Finalize waits on each if there are two. */
extern int ompi_comm_num_dyncomm WEAK;
#define IN_OPEN_MPI(function) function

#else

/* Other MPIs may have such functions, but jobs do not go on with them. */
#define IN_OPEN_MPI(function) NULL

#endif

static int (*const get_failed)(MPI_Comm,
                               MPI_Group *) = IN_OPEN_MPI(PMPIX_Comm_get_failed);
static int (*const is_revoked)(MPI_Comm, int *) = IN_OPEN_MPI(PMPIX_Comm_is_revoked);
static int (*const mpix_revoke)(MPI_Comm) = IN_OPEN_MPI(PMPIX_Comm_revoke);
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

static bool ulfm_is_rank_failure(int mpi_error)
{
    int class = mpi_error;
    if (!get_failed)
        return false;
    MPI_Error_class(mpi_error, &class);
    return class == PROC_FAILED || class == PROC_FAILED_PENDING || class == REVOKED;
}

bool ulfm_is_revoked(MPI_Comm comm)
{
    int flag = 0;
    return is_revoked && is_revoked(comm, &flag) == MPI_SUCCESS && flag;
}

int ulfm_revoke(MPI_Comm comm)
{
    return mpix_revoke ? mpix_revoke(comm) : MPI_ERR_UNSUPPORTED_OPERATION;
}

int ulfm_shrink(MPI_Comm comm, MPI_Comm *out)
{
    bool alone = exclusion_begin(true);
    int error = shrink ? shrink(comm, out) : MPI_ERR_UNSUPPORTED_OPERATION;
    exclusion_end(alone);
    return error;
}

int ulfm_begin_agreement(MPI_Comm comm, int *flag, MPI_Request *request)
{
    bool alone = exclusion_begin(false);
    int error = iagree ? iagree(comm, flag, request) : MPI_ERR_UNSUPPORTED_OPERATION;
    exclusion_end(alone);
    return error;
}

void mpi_prepare_finalize(void)
{
#ifdef OPEN_MPI
    if (!pcoll_tells_of_failures())
        return;
    if (&ompi_async_mpi_finalize)
        ompi_async_mpi_finalize = true;
    if (&ompi_comm_num_dyncomm)
        ompi_comm_num_dyncomm = INT_MIN / 2; /* Others may still be made and freed. */
#endif
}

int mpi_translate(MPI_Comm from, int number, MPI_Comm to)
{
    MPI_Group known, asked;
    int there;
    MPI_Comm_group(from, &known);
    MPI_Comm_group(to, &asked);
    MPI_Group_translate_ranks(known, 1, &number, asked, &there);
    MPI_Group_free(&known);
    MPI_Group_free(&asked);
    return there;
}

uint64_t *mpi_find_failed(MPI_Comm comm)
{
    MPI_Group all, failed;
    int size, count = 0;
    if (!get_failed || get_failed(comm, &failed) != MPI_SUCCESS)
        return NULL;
    MPI_Comm_size(comm, &size);
    MPI_Comm_group(comm, &all);
    MPI_Group_size(failed, &count);
    uint64_t *set = calloc(bitset_words((uint32_t)size), sizeof *set);
    for (int i = 0, rank; set && i < count; i++) {
        MPI_Group_translate_ranks(failed, 1, &i, all, &rank);
        bitset_add(set, (uint32_t)rank);
    }
    MPI_Group_free(&all);
    MPI_Group_free(&failed);
    return set;
}

void mpi_name_ranks(const uint64_t *set, uint32_t size, struct failed_ranks *who)
{
    enum { MOST = sizeof who->rank / sizeof *who->rank };
    who->count = 0;
    for (uint32_t i = 0; set && i < size && who->count < MOST; i++)
        if (bitset_has(set, i))
            who->rank[who->count++] = (int32_t)i;
}

void mpi_name_failed(MPI_Comm comm, struct failed_ranks *who)
{
    uint64_t *failed = mpi_find_failed(comm);
    int size;
    MPI_Comm_size(comm, &size);
    mpi_name_ranks(failed, (uint32_t)size, who);
    free(failed);
}

/* Ask MPI who has died, whatever the error: a call on a communicator that MPI has duplicated can
 * return an internal code. */
int mpi_check_on(MPI_Comm comm, int mpi_error, const char *what)
{
    if (mpi_error == MPI_SUCCESS)
        return PCOLL_OK;
    struct failed_ranks who = {.mpi_error = mpi_error};
    if (pcoll_tells_of_failures())
        mpi_name_failed(comm, &who);
    return who.count || ulfm_is_rank_failure(mpi_error) ? fail_ranks(&who)
                                                        : mpi_check(mpi_error, what);
}

/* Tests. */

bool completion_enter(void)
{
    bool alone = exclusion_begin(false);
    if (yield_switch)
        yield_switch(false);
    return alone;
}

int completion_leave(bool alone, int rc)
{
    if (yield_switch)
        yield_switch(true);
    exclusion_end(alone);
    return rc;
}

void mpi_back_off(long *us, long most)
{
    nanosleep(&(struct timespec){.tv_nsec = *us * 1000}, NULL);
    *us = 2 * *us < most ? 2 * *us : most;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Open MPI's switch is found once, by its name; see completion.h. */
#include "transport/mpi/completion.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "transport/mpi/exclusion.h"

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

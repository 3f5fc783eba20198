/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI_Init and the end. Rounds that do not wait for everybody need an agent, and that
 * needs MPI_THREAD_MULTIPLE: if the environment asks for such rounds, MPI is asked for
 * it.
 *
 * The end is an attribute of MPI_COMM_SELF: MPI_Finalize deletes these first, the last
 * one set first, so ours, set right after the beginning, sees everything done. Our threads
 * are gone before: compat/linked/ends.c says why, and may be what comes next.
 */
#include "compat/interposer/process.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stddef.h>

#include "compat/mpi_shaped/cache.h"
#include "compat/interposer/full.h"
#include "compat/interposer/report.h"
#include "compat/interposer/settings.h"
#include "compat/interposer/completion_thread.h"

static atomic_bool begun;
static int reports; /* on all ranks, if one of them has been asked to */
static MPI_Comm trials = MPI_COMM_NULL; /* of this process alone; errors come back */

bool process_begun(void)
{
    return atomic_load(&begun);
}

void *process_next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* A message to nobody is looked at all the same. The reduction itself would tell, but
 * to the wrong error handler. */
bool process_type_works(MPI_Datatype type)
{
    char nothing;
    return !process_begun() ||
           PMPI_Send(&nothing, 1, type, MPI_PROC_NULL, 0, trials) == MPI_SUCCESS;
}

/* From here on calls are MPI's: those that callbacks make inside MPI_Finalize too. */
static void leave(void)
{
    if (atomic_exchange(&begun, false))
        full_end();
}

static int end(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm;
    (void)key;
    (void)value;
    (void)extra;
    leave();
    completion_thread_stop();
    PMPI_Comm_free(&trials);
    if (reports)
        report_print();
    return MPI_SUCCESS;
}

static void begin(void)
{
    int key, rank;
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end, &key, NULL);
    PMPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    PMPI_Comm_free_keyval(&key);
    PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &trials);
    PMPI_Comm_set_errhandler(trials, MPI_ERRORS_RETURN);
    reports = settings()->report;
    PMPI_Allreduce(MPI_IN_PLACE, &reports, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    full_begin();
    atomic_store(&begun, true);
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && settings()->complaint[0])
        warn("rank 0: %s", settings()->complaint);
}

static bool wants_threads(void)
{
    return policy_is_partial(&settings()->quorum);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int level = wants_threads() ? MPI_THREAD_MULTIPLE : required;
    int rc = PMPI_Init_thread(argc, argv, level, provided);
    if (rc == MPI_SUCCESS)
        begin();
    return rc;
}

int MPI_Init(int *argc, char ***argv)
{
    int provided;
    if (wants_threads())
        return MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
    int rc = PMPI_Init(argc, argv);
    if (rc == MPI_SUCCESS)
        begin();
    return rc;
}

int MPI_Finalize(void)
{
    int (*next)(void) = (int (*)(void))process_next("MPI_Finalize");
    leave();
    completion_thread_stop();
    pcoll_quiet();
    return next ? next() : PMPI_Finalize();
}

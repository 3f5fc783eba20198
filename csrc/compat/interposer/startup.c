/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment and the report; MPI_Init and MPI_Finalize. Rounds that do not wait for all
 * ranks need an agent, and an agent needs MPI_THREAD_MULTIPLE: if the environment asks for such
 * rounds, MPI_Init asks MPI for it.
 *
 * The end is an attribute of MPI_COMM_SELF. MPI_Finalize deletes these attributes first, the one
 * set last first, so ours, set right after the beginning, sees everything done. Our threads
 * end before that (compat/linked says why).
 */
#include <dlfcn.h>
#include <link.h>
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/error.h"
#include "compat/interposer/interposer.h"

static struct settings the_settings;

/* Note that a value means nothing and counts as none. */
static void settings_complain(struct settings *s, const char *name)
{
    size_t used = strlen(s->complaint);
    snprintf(s->complaint + used, sizeof s->complaint - used, "%s%s is ignored: %s",
             used ? "; " : "", name, pcoll_last_error());
}

static bool settings_is_on(struct settings *s, const char *name)
{
    const char *text = environment_get(name);
    if (!text || !strcmp(text, "0"))
        return false;
    if (!strcmp(text, "1"))
        return true;
    fail(PCOLL_EINVAL, "expected 0 or 1, got \"%.50s\"", text);
    settings_complain(s, name);
    return false;
}

static void settings_read_environment(void)
{
    struct settings *s = &the_settings;
    s->all = settings_is_on(s, "PARTIALCOLL_ALL");
    s->report = settings_is_on(s, "PARTIALCOLL_REPORT");
    s->choice.quorum = QUORUM_FULL;
    for (int i = 0; i < CHOICE_PROGRESS; i++)
        if (choice_read(&s->choice, (enum choice_variable)i) != PCOLL_OK)
            settings_complain(s, choice_names[i]);
}

const struct settings *settings(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, settings_read_environment);
    return &the_settings;
}

void report_warn(const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "partialcoll: %s\n", line);
}

static const char *const reasons[OUTCOMES] = {
#define OUTCOME_REASON(outcome, reason) [outcome] = reason,
    OUTCOME_REASONS(OUTCOME_REASON)};

_Atomic uint64_t report_counts[OUTCOMES];
bool report_wanted = true;

/* Add up the counts of all ranks; rank 0 prints them. Collective over MPI_COMM_WORLD. */
static void report_print(void)
{
    uint64_t own[OUTCOMES], sum[OUTCOMES], passed = 0;
    int rank;
    for (int i = 0; i < OUTCOMES; i++)
        own[i] = atomic_load(&report_counts[i]);
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Reduce(own, sum, OUTCOMES, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank)
        return;
    for (int i = TAKEN + 1; i < OUTCOMES; i++)
        passed += sum[i];
    report_warn(
        "calls of MPI_Allreduce on all ranks: %llu taken over, %llu passed to MPI",
        (unsigned long long)sum[TAKEN], (unsigned long long)passed);
    for (int i = TAKEN + 1; i < OUTCOMES; i++)
        if (sum[i])
            report_warn("  passed: %llu (%s)", (unsigned long long)sum[i], reasons[i]);
    if (sum[TAKEN] + passed == 0)
        report_warn("  no call came here: see \"Calls that do not come here\" in "
                    "docs/interposer.md");
    else if (quorum_is_partial(&settings()->choice.quorum) && !settings()->all &&
             !sum[PASSED_FIRST])
        report_warn("  PARTIALCOLL_QUORUM is set, but no communicator asks for partial "
                    "sums: set PARTIALCOLL_ALL=1 or the info key partialcoll_quorum");
}

_Thread_local bool core_inside;

int core_raise(MPI_Comm comm, int rc)
{
    bool of_mpi = rc == PCOLL_EMPI || rc == PCOLL_EFAILED;
    int code = of_mpi ? pcoll_last_mpi_error() : MPI_SUCCESS;
    if (code == MPI_SUCCESS) /* Another process or thread has had MPI's error. */
        code = rc == PCOLL_ENOMEM ? MPI_ERR_NO_MEM : MPI_ERR_INTERN;
    report_warn("MPI_Allreduce: %s", pcoll_last_error());
    PMPI_Comm_call_errhandler(comm, code);
    return code;
}

static atomic_bool begun;
static bool seen;   /* MPI has begun by a call that came here. */
static int reports; /* Equal on all ranks: one of them has been asked to report. */
static MPI_Comm trials = MPI_COMM_NULL; /* of this process alone, returning errors */

bool startup_is_running(void)
{
    return atomic_load(&begun);
}

void *startup_next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* A program that was linked with another MPI than this library has both loaded: its handles
 * would reach functions to which they mean nothing. Such a program ends with one sentence when it
 * is loaded, or in MPI_Init if the other MPI was loaded later. */

enum { MOST_FILES = 16 };

struct startup_files {
    char path[MOST_FILES][1024];
    int count;
};

/* Keep the path of a loaded file that may be an MPI. */
static int startup_note_file(struct dl_phdr_info *file, size_t size, void *files)
{
    struct startup_files *f = files;
    const char *slash = strrchr(file->dlpi_name, '/');
    (void)size;
    if (slash && strstr(slash, "libmpi") && f->count < MOST_FILES)
        snprintf(f->path[f->count++], sizeof f->path[0], "%s", file->dlpi_name);
    return 0;
}

/* Return the address of a name in a loaded file or in a library that this file needs. */
static void *startup_symbol_of(const char *path, const char *name)
{
    void *file = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = file ? dlsym(file, name) : NULL;
    if (file)
        dlclose(file);
    return symbol;
}

static const char *startup_file_of(const void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) ? info.dli_fname : "";
}

static bool startup_is_of_this_kind(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    PMPI_Get_library_version(version, &length);
    return (strstr(version, "Open MPI") != NULL) == CACHE_OPEN_MPI;
}

static void __attribute__((constructor)) startup_refuse_other_mpi(void)
{
    static const char name[] = "PMPI_Init";
    struct startup_files files = {.count = 0};
    void *own = startup_symbol_of(startup_file_of(&begun), name), *other = NULL;
    dl_iterate_phdr(startup_note_file, &files);
    for (int i = 0; i < files.count && !other; i++) {
        void *found = startup_symbol_of(files.path[i], name);
        if (found != own)
            other = found;
    }
    if (!other && startup_is_of_this_kind())
        return;
    seen = true; /* so there is nothing more to report */
    report_warn(
        "the preloaded library %s was built for another MPI than the program's (%s): "
        "preload what `partialcoll preload` prints with the Python of that MPI",
        startup_file_of(&begun), startup_file_of(other ? other : own));
    exit(EXIT_FAILURE);
}

/* If mpiexec has started several processes and each is alone, then MPI does not know this
 * mpiexec. That happens with mpi4py, which uses whatever MPI is loaded: the preloaded library's. */
static void startup_refuse_other_launcher(void)
{
    const char *of_mpich = environment_get("PMI_SIZE"),
               *of_open_mpi = environment_get("OMPI_COMM_WORLD_SIZE"),
               *text = of_mpich ? of_mpich : of_open_mpi;
    int size;
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > 1 || !text || atoi(text) <= 1)
        return;
    report_warn(
        "mpiexec has started %.10s processes, but each is alone in MPI_COMM_WORLD: the "
        "preloaded library %s was built for another MPI than that of mpiexec",
        text, startup_file_of(&begun));
    exit(EXIT_FAILURE);
}

/* MPI also checks a message to MPI_PROC_NULL. The reduction itself would call the wrong
 * error handler. */
bool startup_type_works(MPI_Datatype type)
{
    char nothing;
    return !startup_is_running() ||
           PMPI_Send(&nothing, 1, type, MPI_PROC_NULL, 0, trials) == MPI_SUCCESS;
}

/* Leave all calls to MPI from now on, also those of callbacks inside MPI_Finalize. */
static void startup_leave(void)
{
    if (!atomic_exchange(&begun, false))
        return;
    full_watch(1);
    PMPI_Group_free(&full_facts.all);
}

static int startup_end(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    startup_leave();
    persistent_stop();
    PMPI_Comm_free(&trials);
    if (reports)
        report_print();
    return MPI_SUCCESS;
}

/* Begin, if MPI has: `rc` is MPI's code, and the result. */
static int startup_begin(int rc)
{
    int key, rank;
    if (rc != MPI_SUCCESS)
        return rc;
    seen = true;
    startup_refuse_other_launcher();
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, startup_end, &key, NULL);
    PMPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    PMPI_Comm_free_keyval(&key);
    PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &trials);
    PMPI_Comm_set_errhandler(trials, MPI_ERRORS_RETURN);
    reports = settings()->report;
    PMPI_Allreduce(MPI_IN_PLACE, &reports, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    report_wanted = reports;
    full_begin();
    atomic_store(&begun, true);
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && settings()->complaint[0])
        report_warn("rank 0: %s", settings()->complaint);
    return MPI_SUCCESS;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    if (quorum_is_partial(&settings()->choice.quorum))
        required = MPI_THREAD_MULTIPLE;
    startup_refuse_other_mpi();
    return startup_begin(PMPI_Init_thread(argc, argv, required, provided));
}

int MPI_Init(int *argc, char ***argv)
{
    int provided;
    if (quorum_is_partial(&settings()->choice.quorum))
        return MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
    startup_refuse_other_mpi();
    return startup_begin(PMPI_Init(argc, argv));
}

int MPI_Finalize(void)
{
    int (*next)(void) = (int (*)(void))startup_next("MPI_Finalize");
    startup_leave();
    persistent_stop();
    pcoll_quiet();
    return next ? next() : PMPI_Finalize();
}

/* Say so if a program ran MPI and its MPI_Init never came here: there is no report then. */
static void __attribute__((destructor)) startup_unloaded(void)
{
    int ran = 0;
    uint64_t calls = 0;
    if (seen || !settings()->report)
        return;
    for (int i = 0; i < OUTCOMES; i++)
        calls += atomic_load(&report_counts[i]);
    PMPI_Initialized(&ran);
    if (ran || calls)
        report_warn(
            "MPI began without passing through this library, so all calls are MPI's "
            "(%llu of MPI_Allreduce came here): see \"Calls that do not come here\" in "
            "docs/interposer.md",
            (unsigned long long)calls);
}

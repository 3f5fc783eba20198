/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of `bench/run.py calltrace`. The core of this program is compiled with
 * -finstrument-functions: the compiler calls the two functions below whenever a function of the core
 * begins and ends.
 *
 *   calltrace FOLDER contribution|recovery QUORUM DOMAIN
 *
 * All ranks trace the creation of the handle. Then
 * contribution: all ranks trace one round. With the policy solo the last rank arrives alone.
 * recovery: all ranks trace rounds without a death, then the last rank kills itself, and the others
 * trace until they have completed a round without it.
 *
 * Each rank writes FOLDER/RANK, by lines: "T thread function" is the function that a thread began with (0:
 * main), "S thread part function" one that it has passed in a part of the run, "C thread depth function" a
 * call of the traced part, in order.
 */
#include <mpi.h>
#include <partialcoll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 64, SLOTS = 1 << 13, CALLS = 1 << 14, COUNT = 64 };
enum part { OFF = -1, CREATING, BEFORE, TRACED, PARTS };

struct call {
    int depth;
    void *function;
};

struct trace {
    void *first; /* The function that the thread began with. */
    void *passed[PARTS][SLOTS];
    struct call call[CALLS];
    int calls, depth;
};

static struct trace traces[THREADS];
static _Atomic int threads;
static _Atomic int part = OFF;
static _Thread_local struct trace *own;

void __cyg_profile_func_enter(void *function, void *site);
void __cyg_profile_func_exit(void *function, void *site);

void __cyg_profile_func_enter(void *function, void *site)
{
    (void)site;
    if (!own) {
        int n = atomic_fetch_add(&threads, 1);
        if (n >= THREADS)
            abort();
        own = &traces[n];
        own->first = function;
    }
    own->depth++;
    int now = atomic_load(&part);
    if (now == OFF)
        return;
    if (now == TRACED && own->calls < CALLS)
        own->call[own->calls++] = (struct call){own->depth, function};
    void **passed = own->passed[now];
    size_t at = ((uintptr_t)function >> 4) % SLOTS;
    while (passed[at] && passed[at] != function)
        at = (at + 1) % SLOTS;
    passed[at] = function;
}

void __cyg_profile_func_exit(void *function, void *site)
{
    (void)function;
    (void)site;
    if (own)
        own->depth--;
}

static void check(int rc)
{
    if (rc == PCOLL_OK)
        return;
    fprintf(stderr, "partialcoll: %s\n", pcoll_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Return the ranks that had died before this round, the same set on all ranks. */
static uint64_t one_round(pcoll_handle *handle)
{
    double mine[COUNT] = {1}, sum[COUNT];
    const void *const send[] = {mine};
    void *const recv[] = {sum};
    uint64_t masks[3]; /* of at most 64 ranks */
    pcoll_round round;
    int rc;
    check(pcoll_handle_start(handle, send));
    do
        rc = pcoll_handle_take(handle, 100000, recv, &round, masks);
    while (rc == PCOLL_EAGAIN);
    check(rc);
    return masks[2];
}

static void trace_contribution(pcoll_handle *handle, int rank, int size,
                               const char *quorum)
{
    bool alone = !strcmp(quorum, "solo");
    atomic_store(&part, TRACED);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!alone || rank == size - 1)
        one_round(handle);
    MPI_Barrier(MPI_COMM_WORLD);
    atomic_store(&part, OFF);
    if (alone && rank != size - 1)
        one_round(handle);
}

/* Rounds in which each rank is late now and then, so that the others sleep. */
static void late_rounds(pcoll_handle *handle, int rank, int size)
{
    for (int i = 0; i < 100; i++) {
        if (i % size == rank)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        one_round(handle);
    }
}

static void trace_recovery(pcoll_handle *handle, int rank, int size)
{
    atomic_store(&part, BEFORE);
    late_rounds(handle, rank, size);
    if (rank == size - 1)
        raise(SIGKILL);
    atomic_store(&part, TRACED);
    while (!one_round(handle))
        ;
    atomic_store(&part, OFF);
}

static void write_trace(FILE *file, int thread)
{
    const struct trace *t = &traces[thread];
    fprintf(file, "T %d %p\n", thread, thread ? t->first : NULL);
    for (int p = 0; p < PARTS; p++)
        for (int i = 0; i < SLOTS; i++)
            if (t->passed[p][i])
                fprintf(file, "S %d %d %p\n", thread, p, t->passed[p][i]);
    for (int i = 0; i < t->calls; i++)
        fprintf(file, "C %d %d %p\n", thread, t->call[i].depth, t->call[i].function);
}

static void write_traces(const char *folder, int rank)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    FILE *file = fopen(path, "w");
    if (!file)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < atomic_load(&threads); i++)
        write_trace(file, i);
    fclose(file);
}

int main(int argc, char **argv)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    pcoll_buffer buffer = {.count = COUNT, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    pcoll_options options;
    pcoll_handle *handle;
    int level, rank, size;
    if (argc != 5)
        return 2;
    own = &traces[atomic_fetch_add(&threads, 1)];
    bool recovers = !strcmp(argv[2], "recovery");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    pcoll_options_init(&options);
    options.on_failure = recovers ? PCOLL_FAILURE_CONTINUE : PCOLL_FAILURE_RAISE;
    check(pcoll_policy_parse(argv[3], &options.policy));
    check(pcoll_domain_parse(argv[4], &options.domain, &options.domain_ranks));
    atomic_store(&part, CREATING);
    check(pcoll_allreduce_create(&comm, &buffer, 1, &options, &handle));
    atomic_store(&part, OFF);
    for (int i = 0; i < 20; i++)
        one_round(handle);
    if (recovers)
        trace_recovery(handle, rank, size);
    else
        trace_contribution(handle, rank, size, argv[3]);
    write_traces(argv[1], rank);
    while (pcoll_handle_free(&handle, 1000000) == PCOLL_EAGAIN)
        ;
    MPI_Finalize();
    return 0;
}

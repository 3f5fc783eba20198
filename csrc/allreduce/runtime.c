/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a process and its end. */
#include "runtime.h"

#include <stdlib.h>

#include "../base/error.h"
#include "../transport/mpi.h"
#include "agree.h"

struct runtime {
    struct progress *progress;
    pthread_mutex_t mutex; /* the lists */
    struct runtime_entry *entries;
    _Atomic uint64_t handles; /* ever asked for */
    struct known_context {
        struct context *context;
        struct waiting *parting;
        struct known_context *next;
    } *contexts;
};

/* The one piece of state that cannot hang on a communicator: a forked child must know
 * without calling MPI. */
static _Atomic bool in_child;

static void note_fork(void)
{
    atomic_store(&in_child, true);
}

bool runtime_forked(void)
{
    return atomic_load(&in_child);
}

/* A barrier: nobody asks who is missing any more, nothing is under way. */
static void begin_parting(struct known_context *k)
{
    uint64_t nothing = 0;
    if (agree_begin(k->context, AGREE_MAX, &nothing, 1, &k->parting) != PCOLL_OK)
        k->parting = NULL;
}

/* Without its transport a context is a shell that waits for its communicator to go. */
static void part(struct runtime *r, struct known_context *k)
{
    uint64_t nothing;
    if (k->parting)
        agree_end(k->parting, &nothing);
    progress_remove(r->progress, &k->context->source);
    context_end_transport(k->context);
}

/* MPI_Finalize has begun: end what the application has left. What is collective is
 * begun on all communicators before it is waited for on any: their order differs
 * between ranks. */
static void end_process(void *state)
{
    struct runtime *r = state;
    for (struct runtime_entry *e = r->entries; e; e = e->next)
        e->begin_end(e);
    for (struct runtime_entry *e = r->entries; e; e = e->next)
        e->end(e);
    for (struct known_context *k = r->contexts; k; k = k->next)
        begin_parting(k);
    while (r->contexts) {
        struct known_context *k = r->contexts;
        r->contexts = k->next;
        part(r, k);
        free(k);
    }
    progress_destroy(&r->progress);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

static int get_runtime(struct runtime **out)
{
    *out = mpi_process_state();
    if (*out)
        return PCOLL_OK;
    struct runtime *r = calloc(1, sizeof *r);
    if (!r)
        return fail(PCOLL_ENOMEM, "no memory for the runtime");
    pthread_mutex_init(&r->mutex, NULL);
    int rc = progress_create(&r->progress);
    if (rc == PCOLL_OK && (rc = mpi_set_process_state(r, end_process)) != PCOLL_OK)
        progress_destroy(&r->progress);
    if (rc != PCOLL_OK) {
        free(r);
        return rc;
    }
    pthread_atfork(NULL, NULL, note_fork);
    *out = r;
    return PCOLL_OK;
}

uint64_t runtime_next_number(void)
{
    struct runtime *r = mpi_process_state();
    return atomic_fetch_add(&r->handles, 1);
}

int runtime_start_agent(struct context *c, int progress, bool here)
{
    if (progress == PCOLL_PROGRESS_MANUAL)
        return PCOLL_OK;
    if (!c->transport->threads)
        return fail(PCOLL_ETHREAD,
                    "progress: the agent needs MPI_THREAD_MULTIPLE, and MPI was "
                    "initialised with less; initialise it with MPI_THREAD_MULTIPLE or "
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
    bool gone = runtime_forked() || !mpi_is_running();
    struct runtime *r = gone ? NULL : mpi_process_state();
    if (r)
        progress_stop_agent(r->progress);
    return PCOLL_OK;
}

/* The agent spins as long as somebody is there who asked for that. With the mutex. */
static void set_pace(struct runtime *r)
{
    bool spins = false;
    for (const struct runtime_entry *e = r->entries; e; e = e->next)
        spins |= e->progress == PCOLL_PROGRESS_SPIN;
    progress_spin(r->progress, spins);
}

void runtime_add(struct runtime_entry *entry)
{
    struct runtime *r = mpi_process_state();
    entry->runtime = r;
    pthread_mutex_lock(&r->mutex);
    struct runtime_entry **at = &r->entries;
    while (*at && (*at)->slot <= entry->slot)
        at = &(*at)->next;
    entry->next = *at;
    *at = entry;
    set_pace(r);
    pthread_mutex_unlock(&r->mutex);
}

void runtime_remove(struct runtime_entry *entry)
{
    struct runtime *r = entry->runtime;
    pthread_mutex_lock(&r->mutex);
    struct runtime_entry **at = &r->entries;
    while (*at && *at != entry)
        at = &(*at)->next;
    if (*at)
        *at = entry->next;
    set_pace(r);
    pthread_mutex_unlock(&r->mutex);
}

static void drop_context(struct runtime *r, struct context *c)
{
    pthread_mutex_lock(&r->mutex);
    struct known_context **at = &r->contexts;
    while (*at && (*at)->context != c)
        at = &(*at)->next;
    struct known_context *k = *at;
    *at = k->next;
    pthread_mutex_unlock(&r->mutex);
    begin_parting(k);
    part(r, k);
    free(k);
    context_destroy(&c);
}

/* The communicator is being freed, or MPI is about to be gone. */
static void comm_gone(void *state)
{
    struct context *c = state;
    if (!c->transport) {
        context_destroy(&c);
        return;
    }
    c->abandoned = true;
    runtime_release(c);
}

void runtime_release(struct context *c)
{
    if (c->abandoned && !c->handles)
        drop_context(mpi_process_state(), c);
}

static int create_context(struct runtime *r, const void *comm, struct context **out)
{
    struct known_context *k = calloc(1, sizeof *k);
    if (!k)
        return fail(PCOLL_ENOMEM, "no memory for a communicator");
    struct transport *t;
    int rc = transport_mpi_create(comm, progress_bell(r->progress), &t);
    if (rc != PCOLL_OK) {
        free(k);
        return rc;
    }
    rc = context_create(t, r->progress, &k->context);
    if (rc != PCOLL_OK) {
        t->ops->destroy(t);
        free(k);
        return rc;
    }
    mpi_lock_states();
    rc = mpi_set_comm_state(comm, k->context, comm_gone);
    mpi_unlock_states();
    if (rc != PCOLL_OK) {
        context_destroy(&k->context);
        free(k);
        return rc;
    }
    pthread_mutex_lock(&r->mutex);
    k->next = r->contexts;
    r->contexts = k;
    pthread_mutex_unlock(&r->mutex);
    progress_add(r->progress, &k->context->source);
    *out = k->context;
    return PCOLL_OK;
}

int runtime_context(const void *comm, struct context **out)
{
    struct runtime *r;
    mpi_lock_states();
    int rc = get_runtime(&r);
    mpi_unlock_states();
    if (rc != PCOLL_OK)
        return rc;
    *out = mpi_comm_state(comm);
    return *out ? PCOLL_OK : create_context(r, comm, out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One thread, asleep while nothing is active. Tokens come to it
 * through `incoming`; `mine` is its own. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "allreduce/handle.h"
#include "base/lock.h"
#include "base/thread.h"
#include "compat/interposer/interposer.h"

enum { TAGS = 32768 }; /* every MPI has as many */

static struct {
    struct lock mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool running, stop;
    _Atomic(struct token *) incoming;
    MPI_Comm self; /* for the messages to ourselves */
    bool tag_taken[TAGS];
    int next_tag;
} completion_thread = {.mutex = LOCK_INIT(LOCK_COMPLETION),
                       .changed = PTHREAD_COND_INITIALIZER,
                       .self = MPI_COMM_NULL};

static struct token *mine;

static bool completion_thread_is_over(struct token *t)
{
    uint64_t complete, delivered;
    return atomic_load(&t->handle->base.communicator->failure) ||
           pcoll_handle_rounds(t->handle, &complete, &delivered) != PCOLL_OK ||
           complete > delivered;
}

static bool completion_thread_has_work(void *unused)
{
    (void)unused;
    bool work = atomic_load(&completion_thread.incoming) != NULL;
    for (struct token *t = mine; t && !work; t = t->next_active)
        work = completion_thread_is_over(t);
    return work;
}

/* Without a result the message goes out as well: who waits for it has been told through
 * the error handler. */
static void completion_thread_complete(struct token *t, int rc)
{
    if (rc != PCOLL_OK)
        core_raise(t->comm, rc);
    int tag = t->tag; /* the token may be freed as soon as it is not active */
    atomic_store(&t->active, false);
    PMPI_Send(NULL, 0, MPI_BYTE, 0, tag, completion_thread.self);
}

static void completion_thread_deliver(struct token *t)
{
    int rc = cache_take(t->handle, &t->key, t->type, t->result);
    completion_thread_complete(t,
                               rc == PCOLL_OK ? mirror_buffers_push(&t->mirrors) : rc);
}

/* Take over what has come; false when the end has come instead. */
static bool completion_thread_collect(void)
{
    lock_take(&completion_thread.mutex);
    while (!atomic_load(&completion_thread.incoming) && !mine &&
           !completion_thread.stop)
        lock_sleep(&completion_thread.mutex, &completion_thread.changed);
    struct token *t = atomic_exchange(&completion_thread.incoming, NULL);
    lock_release(&completion_thread.mutex);
    for (struct token *next; t; t = next) {
        next = t->next_active;
        t->next_active = mine;
        mine = t;
    }
    return mine != NULL;
}

static void *completion_thread_main(void *unused)
{
    (void)unused;
    core_enter();
    while (completion_thread_collect()) {
        progress_wait(mine->handle->base.communicator->progress,
                      completion_thread_has_work, NULL, 1000000);
        for (struct token **at = &mine; *at;) {
            struct token *t = *at;
            if (!completion_thread_is_over(t)) {
                at = &t->next_active;
                continue;
            }
            *at = t->next_active; /* before the program may start it again */
            completion_thread_deliver(t);
        }
    }
    return NULL;
}

/* MPI_Wait of MPICH 4.0.2 (Debian 12 has it) and of those before never returns when the
 * message that it waits for comes from another thread of its own process. */
bool completion_thread_works(void)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, major, minor, patch = 0;
    PMPI_Get_library_version(text, &length);
    if (sscanf(text, "MPICH Version: %d.%d.%d", &major, &minor, &patch) < 2)
        return true;
    return major > 4 || (major == 4 && (minor > 0 || patch > 2));
}

/* Under the mutex. */
static int completion_thread_begin(void)
{
    if (completion_thread.running)
        return MPI_SUCCESS;
    int rc = PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &completion_thread.self);
    if (rc != MPI_SUCCESS)
        return rc;
    completion_thread.running =
        thread_start(&completion_thread.thread, completion_thread_main, NULL) == 0;
    if (!completion_thread.running)
        PMPI_Comm_free(&completion_thread.self);
    return completion_thread.running ? MPI_SUCCESS : MPI_ERR_OTHER;
}

/* One that no other token has, which keeps it for its next requests. Under the mutex. */
static int completion_thread_take_tag(struct token *t)
{
    bool *taken = completion_thread.tag_taken;
    for (int i = 0; i < TAGS && !t->has_tag; i++) {
        t->tag = completion_thread.next_tag;
        t->has_tag = !taken[t->tag];
        taken[t->tag] = true;
        completion_thread.next_tag = (t->tag + 1) % TAGS;
    }
    return t->has_tag ? MPI_SUCCESS : MPI_ERR_OTHER;
}

void completion_thread_give_tag_back(struct token *t)
{
    lock_take(&completion_thread.mutex);
    if (t->has_tag)
        completion_thread.tag_taken[t->tag] = false;
    t->has_tag = false;
    lock_release(&completion_thread.mutex);
}

int completion_thread_init_request(struct token *t)
{
    lock_take(&completion_thread.mutex);
    int rc = completion_thread_begin();
    if (rc == MPI_SUCCESS)
        rc = completion_thread_take_tag(t);
    lock_release(&completion_thread.mutex);
    if (rc == MPI_SUCCESS)
        rc = PMPI_Recv_init(NULL, 0, MPI_BYTE, 0, t->tag, completion_thread.self,
                            &t->request);
    return rc;
}

static void completion_thread_hand_over(struct token *t)
{
    struct progress *p = t->handle->base.communicator->progress;
    lock_take(&completion_thread.mutex);
    t->next_active = atomic_load(&completion_thread.incoming);
    atomic_store(&completion_thread.incoming, t);
    pthread_cond_signal(&completion_thread.changed);
    lock_release(&completion_thread.mutex);
    progress_lock(p);
    progress_wake_waiters(p);
    progress_unlock(p);
}

int completion_thread_start(struct token *t)
{
    const void *send = t->send == MPI_IN_PLACE ? t->recv : t->send;
    t->result = t->recv;
    int rc = mirror_buffers_pull(&t->mirrors, t->type, t->key.count, &send, &t->result);
    if (rc == PCOLL_OK)
        rc = cache_start(t->handle, send);
    atomic_store(&t->active, true);
    if (rc != PCOLL_OK)
        completion_thread_complete(t, rc);
    else
        completion_thread_hand_over(t);
    return rc;
}

void completion_thread_stop(void)
{
    if (!completion_thread.running)
        return;
    lock_take(&completion_thread.mutex);
    completion_thread.stop = true;
    pthread_cond_signal(&completion_thread.changed);
    lock_release(&completion_thread.mutex);
    pthread_join(completion_thread.thread, NULL);
    PMPI_Comm_free(&completion_thread.self);
    completion_thread.running = false;
}

/*
 * Persistent allreduces. Each has a handle of its own. MPI_Request_free is local, so it
 * cannot free the handle; a later MPI_Allreduce_init, which is collective, takes it
 * over, or frees it, if all ranks have freed their request by then: each communicator
 * has as many places as there are bits in a word, so one allreduce tells. When the communicator
 * is freed, idle handles are retired (runtime/process.h).
 */

enum { PLACES = 64 };

struct places {
    struct token *token[PLACES];
};

/* Tokens whose requests the program holds. */
static struct lock persistent_mutex = LOCK_INIT(LOCK_PERSISTENT);
static struct token *persistent_live;
static _Atomic int count_live; /* most programs have none: one look, no lock */

static struct token *persistent_find(MPI_Request request)
{
    if (atomic_load(&count_live) == 0 || request == MPI_REQUEST_NULL)
        return NULL;
    lock_take(&persistent_mutex);
    struct token *t = persistent_live;
    while (t && t->request != request)
        t = t->next_live;
    lock_release(&persistent_mutex);
    return t;
}

static void persistent_list(struct token *t)
{
    lock_take(&persistent_mutex);
    atomic_store(&t->live, true);
    t->next_live = persistent_live;
    persistent_live = t;
    atomic_fetch_add(&count_live, 1);
    lock_release(&persistent_mutex);
}

void persistent_forget(MPI_Request request)
{
    struct token *t = persistent_find(request);
    if (!t)
        return;
    lock_take(&persistent_mutex);
    struct token **at = &persistent_live;
    while (*at != t)
        at = &(*at)->next_live;
    *at = t->next_live;
    atomic_fetch_sub(&count_live, 1);
    atomic_store(&t->live, false);
    lock_release(&persistent_mutex);
}

int persistent_started(int count, const MPI_Request *requests)
{
    int rc = MPI_SUCCESS;
    for (int i = 0; i < count; i++) {
        struct token *t = persistent_find(requests[i]);
        if (t && completion_thread_start(t) != PCOLL_OK)
            rc = MPI_ERR_INTERN;
    }
    return rc;
}

static bool persistent_is_idle(const struct token *t)
{
    return !t || (!atomic_load(&t->live) && !atomic_load(&t->active));
}

/* The places that are idle on all ranks. */
static uint64_t persistent_common_places(const struct places *p, MPI_Comm comm)
{
    uint64_t idle = 0;
    for (int i = 0; i < PLACES; i++)
        idle |= (uint64_t)persistent_is_idle(p->token[i]) << i;
    PMPI_Allreduce(MPI_IN_PLACE, &idle, 1, MPI_UINT64_T, MPI_BAND, comm);
    return idle;
}

static void persistent_free_token(struct token *t)
{
    if (t->handle)
        handle_retire(t->handle);
    mirror_buffers_free(&t->mirrors);
    completion_thread_give_tag_back(t);
    free(t);
}

/* The communicator is being freed. Requests that the program still has outlive it, and with them
 * the tokens and the handles, which end with MPI. */
static void persistent_free_places(void *more)
{
    struct places *p = more;
    for (int i = 0; i < PLACES; i++)
        if (p->token[i] && persistent_is_idle(p->token[i]))
            persistent_free_token(p->token[i]);
    free(p);
}

static struct places *persistent_places_of(struct record *r)
{
    if (!r->more) {
        r->more = calloc(1, sizeof(struct places));
        r->free_more = persistent_free_places;
    }
    return r->more;
}

/* One that has this signature already, else an empty one, else any; -1: all in use. */
static int persistent_choose_place(const struct places *p, uint64_t idle,
                                   const struct cache_key *key)
{
    int empty = -1, any = -1;
    for (int i = PLACES - 1; i >= 0; i--) {
        struct token *t = p->token[i];
        if (!(idle >> i & 1))
            continue;
        if (t && t->handle && cache_same_key(&t->key, key))
            return i;
        if (!t)
            empty = i;
        else
            any = i;
    }
    return empty >= 0 ? empty : any;
}

/* A token with a handle for this key in that place. Collective. */
static int persistent_fill_place(struct token **place, const struct call *c,
                                 const struct cache_key *key)
{
    struct token *t = *place;
    if (t && t->handle && cache_same_key(&t->key, key))
        return PCOLL_OK;
    if (!t && !(t = *place = calloc(1, sizeof *t)))
        return PCOLL_ENOMEM;
    cache_free_handle(t->handle);
    t->handle = NULL;
    t->key = *key;
    return cache_create(c->comm, key, &t->handle);
}

static enum outcome persistent_make_token(const struct call *c, struct record *r,
                                          const struct cache_key *key,
                                          struct token **token)
{
    struct places *p = persistent_places_of(r);
    if (!p)
        return PASSED_REFUSED;
    if (!intercept_admit(r, c->comm))
        return PASSED_LIMIT;
    int at = persistent_choose_place(p, persistent_common_places(p, c->comm), key);
    if (at < 0)
        return PASSED_CACHE;
    int rc = persistent_fill_place(&p->token[at], c, key);
    *token = p->token[at];
    return rc == PCOLL_OK ? TAKEN : PASSED_REFUSED;
}

enum outcome persistent_init(const struct call *c, MPI_Request *request, int *error)
{
    struct record *record;
    struct cache_key key;
    struct token *t;
    enum outcome outcome = intercept_plan(c, &record, &key);
    if (outcome != TAKEN)
        return outcome;
    if (!record->partial && !full_facts()->asked)
        return PASSED_FULL;
    if (record->level < MPI_THREAD_MULTIPLE || !startup_is_running() ||
        !completion_thread_works())
        return PASSED_THREADS;
    if (key.signature.of_user) /* it may be freed before the request is started */
        return PASSED_OP_OF_USER;
    key.progress = PCOLL_PROGRESS_AGENT;
    bool before = core_enter();
    outcome = persistent_make_token(c, record, &key, &t);
    core_leave(before);
    if (outcome != TAKEN)
        return outcome;
    t->send = c->send;
    t->recv = c->recv;
    t->comm = c->comm;
    t->type = c->type;
    *error = completion_thread_init_request(t);
    if (*error == MPI_SUCCESS) {
        *request = t->request;
        persistent_list(t);
    }
    return TAKEN;
}

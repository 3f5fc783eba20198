/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Persistent allreduces. Each has a handle of its own. MPI_Request_free is local, so it
 * cannot free the handle; a later MPI_Allreduce_init, which is collective, takes it
 * over, or frees it, if all ranks have freed their request by then: each communicator
 * has as many places as there are bits in a word, so one allreduce tells. When the communicator
 * is freed, idle handles are retired (runtime/process.h).
 */
#include "compat/interposer/persistent.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "allreduce/handle.h"
#include "base/lock.h"
#include "compat/interposer/core_call.h"
#include "compat/interposer/full.h"
#include "compat/interposer/process.h"
#include "compat/interposer/completion_thread.h"

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
                               const struct cache_key *key, struct token **token)
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

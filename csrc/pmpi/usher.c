/* SPDX-License-Identifier: Apache-2.0 */
/* The usher: one thread, asleep while nothing is active. Tokens come to it through
 * `incoming`; `mine` is its own. */
#include "usher.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "../allreduce/handle.h"
#include "takeover.h"

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool running, stop;
    _Atomic(struct token *) incoming;
    MPI_Comm self; /* for the messages to ourselves */
    int tags;
} usher = {.mutex = PTHREAD_MUTEX_INITIALIZER,
           .changed = PTHREAD_COND_INITIALIZER,
           .self = MPI_COMM_NULL};

static struct token *mine;

static bool is_over(struct token *t)
{
    uint64_t complete, delivered;
    return atomic_load(&t->handle->context->failure) ||
           pcoll_handle_rounds(t->handle, &complete, &delivered) != PCOLL_OK ||
           complete > delivered;
}

static bool has_work(void *unused)
{
    (void)unused;
    bool work = atomic_load(&usher.incoming) != NULL;
    for (struct token *t = mine; t && !work; t = t->next_active)
        work = is_over(t);
    return work;
}

/* Without a result the message goes out as well: who waits for it has been told through
 * the error handler. */
static void complete(struct token *t, int rc)
{
    if (rc != PCOLL_OK)
        takeover_raise(t->comm, rc);
    atomic_store(&t->active, false);
    PMPI_Send(NULL, 0, MPI_BYTE, 0, t->tag, usher.self);
}

static void deliver(struct token *t)
{
    pcoll_round round;
    void *recv = t->recv;
    complete(t, pcoll_handle_take(t->handle, INT64_MAX / 2, &recv, &round, NULL));
}

/* Take over what has come; false when the end has come instead. */
static bool collect(void)
{
    pthread_mutex_lock(&usher.mutex);
    while (!atomic_load(&usher.incoming) && !mine && !usher.stop)
        pthread_cond_wait(&usher.changed, &usher.mutex);
    struct token *t = atomic_exchange(&usher.incoming, NULL);
    pthread_mutex_unlock(&usher.mutex);
    for (struct token *next; t; t = next) {
        next = t->next_active;
        t->next_active = mine;
        mine = t;
    }
    return mine != NULL;
}

static void *usher_main(void *unused)
{
    (void)unused;
    takeover_enter();
    while (collect()) {
        progress_wait(mine->handle->context->progress, has_work, NULL, 1000000);
        for (struct token **at = &mine; *at;) {
            struct token *t = *at;
            if (!is_over(t)) {
                at = &t->next_active;
                continue;
            }
            *at = t->next_active; /* before the program may start it again */
            deliver(t);
        }
    }
    return NULL;
}

/* Under the mutex. Signals are for the program's threads. */
static int begin(void)
{
    sigset_t all, old;
    if (usher.running)
        return MPI_SUCCESS;
    int rc = PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &usher.self);
    if (rc != MPI_SUCCESS)
        return rc;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    usher.running = pthread_create(&usher.thread, NULL, usher_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!usher.running)
        PMPI_Comm_free(&usher.self);
    return usher.running ? MPI_SUCCESS : MPI_ERR_OTHER;
}

int usher_init_request(struct token *t)
{
    pthread_mutex_lock(&usher.mutex);
    int rc = begin();
    t->tag = usher.tags++ % 32768; /* every MPI has as many */
    pthread_mutex_unlock(&usher.mutex);
    if (rc == MPI_SUCCESS)
        rc = PMPI_Recv_init(NULL, 0, MPI_BYTE, 0, t->tag, usher.self, &t->request);
    return rc;
}

static void hand_over(struct token *t)
{
    struct progress *p = t->handle->context->progress;
    pthread_mutex_lock(&usher.mutex);
    t->next_active = atomic_load(&usher.incoming);
    atomic_store(&usher.incoming, t);
    pthread_cond_signal(&usher.changed);
    pthread_mutex_unlock(&usher.mutex);
    progress_lock(p);
    progress_notify(p);
    progress_unlock(p);
}

int usher_start(struct token *t)
{
    const void *send = t->send == MPI_IN_PLACE ? t->recv : t->send;
    int rc = pcoll_handle_start(t->handle, &send);
    atomic_store(&t->active, true);
    if (rc != PCOLL_OK)
        complete(t, rc);
    else
        hand_over(t);
    return rc;
}

void usher_stop(void)
{
    if (!usher.running)
        return;
    pthread_mutex_lock(&usher.mutex);
    usher.stop = true;
    pthread_cond_signal(&usher.changed);
    pthread_mutex_unlock(&usher.mutex);
    pthread_join(usher.thread, NULL);
    PMPI_Comm_free(&usher.self);
    usher.running = false;
}

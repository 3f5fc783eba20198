/* SPDX-License-Identifier: Apache-2.0 */
/* See graves.h. */
#include "runtime/graves.h"

#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "transport/mpi/recovery.h"

struct grave {
    void (*end)(void *);
    void *what;
    struct grave *next;
};

void graves_init(struct graves *g)
{
    CHECK(g);
    *g = (struct graves){0};
    pthread_mutex_init(&g->mutex, NULL);
}

void graves_destroy(struct graves *g)
{
    CHECK(g);
    pthread_mutex_destroy(&g->mutex);
}

void graves_add(struct graves *g, void (*end)(void *), void *what)
{
    CHECK(end && what);
    struct grave *grave = malloc(sizeof *grave);
    if (!grave)
        return; /* lost */
    *grave = (struct grave){.end = end, .what = what};
    pthread_mutex_lock(&g->mutex);
    grave->next = g->first;
    g->first = grave;
    pthread_mutex_unlock(&g->mutex);
}

void graves_retire(struct graves *g, struct transport *t)
{
    CHECK(t);
    if (g->olds < GRAVES_TRANSPORTS)
        g->old[g->olds++] = t;
}

static struct grave *take_first(struct graves *g)
{
    pthread_mutex_lock(&g->mutex);
    struct grave *grave = g->first;
    if (grave)
        g->first = grave->next;
    pthread_mutex_unlock(&g->mutex);
    return grave;
}

/* Transports whose requests are over by now go, and when all have, so does what they may have
 * written to. */
void graves_bury(struct graves *g)
{
    CHECK(g->olds >= 0);
    struct grave *grave;
    int kept = 0;
    for (int i = 0; i < g->olds; i++)
        if (!mpi_abandon(g->old[i]))
            g->old[kept++] = g->old[i];
    g->olds = kept;
    while (!kept && (grave = take_first(g))) {
        grave->end(grave->what);
        free(grave);
    }
}

void graves_await(struct graves *g)
{
    enum { TRIES = 20 };
    CHECK(g);
    graves_bury(g);
    for (int i = 0; i < TRIES && g->olds; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        graves_bury(g);
    }
}

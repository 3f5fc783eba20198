/* SPDX-License-Identifier: Apache-2.0 */
/* See graves.h. */
#include "runtime/graves.h"

#include <stdlib.h>

#include "base/check.h"
#include "transport/mpi/recovery.h"

struct grave {
    void (*end)(void *);
    void *what;
    uint32_t after; /* so many have been retired */
    struct grave *next;
};

void graves_init(struct graves *g)
{
    CHECK(g);
    *g = (struct graves){0};
    lock_init(&g->mutex, LOCK_RETIRED);
}

void graves_destroy(struct graves *g)
{
    CHECK(g);
    lock_destroy(&g->mutex);
}

void graves_add(struct graves *g, void (*end)(void *), void *what, bool in_use)
{
    CHECK(end && what);
    struct grave *grave = malloc(sizeof *grave);
    if (!grave)
        return; /* lost */
    lock_take(&g->mutex);
    *grave = (struct grave){.end = end, .what = what, .after = g->retired + in_use};
    grave->next = g->first;
    g->first = grave;
    lock_release(&g->mutex);
}

void graves_retire(struct graves *g, struct transport *t)
{
    CHECK(t);
    lock_take(&g->mutex);
    g->retired++;
    lock_release(&g->mutex);
    if (g->olds < GRAVES_TRANSPORTS)
        g->old[g->olds++] = t;
}

/* One whose time has come. */
static struct grave *take(struct graves *g)
{
    lock_take(&g->mutex);
    struct grave **at = &g->first;
    while (*at && (*at)->after > g->retired)
        at = &(*at)->next;
    struct grave *grave = *at;
    if (grave)
        *at = grave->next;
    lock_release(&g->mutex);
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
    while (!kept && (grave = take(g))) {
        grave->end(grave->what);
        free(grave);
    }
}

void graves_leave(struct graves *g, struct graves *heir)
{
    CHECK(g != heir);
    struct grave *grave;
    for (int i = 0; i < g->olds; i++)
        graves_retire(heir, g->old[i]);
    g->olds = 0;
    while ((grave = take(g))) {
        graves_add(heir, grave->end, grave->what, false);
        free(grave);
    }
}

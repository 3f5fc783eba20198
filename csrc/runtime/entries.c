/* SPDX-License-Identifier: Apache-2.0 */
/* See entries.h. */
#include "runtime/entries.h"

#include <pthread.h>

#include "base/check.h"
#include "include/partialcoll.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct entry *first;

void entries_add(struct entry *entry)
{
    CHECK(entry->begin_end && entry->end);
    pthread_mutex_lock(&mutex);
    struct entry **at = &first;
    while (*at && (*at)->slot <= entry->slot)
        at = &(*at)->next;
    entry->next = *at;
    *at = entry;
    pthread_mutex_unlock(&mutex);
}

void entries_remove(struct entry *entry)
{
    CHECK(entry);
    pthread_mutex_lock(&mutex);
    struct entry **at = &first;
    while (*at && *at != entry)
        at = &(*at)->next;
    if (*at)
        *at = entry->next;
    pthread_mutex_unlock(&mutex);
}

void entries_each(void (*visit)(struct entry *, void *), void *arg)
{
    CHECK(visit);
    pthread_mutex_lock(&mutex);
    for (struct entry *e = first; e; e = e->next)
        visit(e, arg);
    pthread_mutex_unlock(&mutex);
}

struct entry *entries_first(void)
{
    return first;
}

bool entries_spin(void)
{
    bool spins = false;
    pthread_mutex_lock(&mutex);
    for (const struct entry *e = first; e; e = e->next) {
        CHECK(!e->next || e->slot <= e->next->slot);
        spins |= e->progress == PCOLL_PROGRESS_SPIN;
    }
    pthread_mutex_unlock(&mutex);
    return spins;
}

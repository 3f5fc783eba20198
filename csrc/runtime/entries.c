/* SPDX-License-Identifier: Apache-2.0 */
/* See entries.h. */
#include "runtime/entries.h"

#include "base/check.h"
#include "base/lock.h"
#include "include/partialcoll.h"

static struct lock mutex = LOCK_INIT(LOCK_ENTRIES);
static struct entry *first;

void entries_add(struct entry *entry)
{
    CHECK(entry->begin_end && entry->end);
    lock_take(&mutex);
    struct entry **at = &first;
    while (*at && (*at)->slot <= entry->slot)
        at = &(*at)->next;
    entry->next = *at;
    *at = entry;
    lock_release(&mutex);
}

void entries_remove(struct entry *entry)
{
    CHECK(entry);
    lock_take(&mutex);
    struct entry **at = &first;
    while (*at && *at != entry)
        at = &(*at)->next;
    if (*at)
        *at = entry->next;
    lock_release(&mutex);
}

void entries_each(void (*visit)(struct entry *, void *), void *arg)
{
    CHECK(visit);
    lock_take(&mutex);
    for (struct entry *e = first; e; e = e->next)
        visit(e, arg);
    lock_release(&mutex);
}

struct entry *entries_first(void)
{
    return first;
}

bool entries_spin(void)
{
    bool spins = false;
    lock_take(&mutex);
    for (const struct entry *e = first; e; e = e->next) {
        CHECK(!e->next || e->slot <= e->next->slot);
        spins |= e->progress == PCOLL_PROGRESS_SPIN;
    }
    lock_release(&mutex);
    return spins;
}

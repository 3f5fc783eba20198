/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which addresses are held, and what was disposed of while they were. Both lists belong
 * to who holds the mutex, both are short. A block is in `disposed` if and only if an
 * address in it is held; it is ended without the mutex, by who took it from the list,
 * when nobody else knows of it any more.
 */
#include "base/held_memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "base/lock.h"
#include "include/partialcoll.h"

struct hold {
    uintptr_t address;
    size_t count;
    struct hold *next;
};

struct memory_block {
    uintptr_t begin;
    size_t bytes;
    void (*end)(void *memory, size_t bytes);
    struct memory_block *next;
};

static struct lock mutex = LOCK_INIT(LOCK_HELD_MEMORY);
static struct hold *holds;
static struct memory_block *disposed;

static bool memory_block_has(const struct memory_block *b, uintptr_t address)
{
    return address - b->begin < b->bytes;
}

static bool memory_is_held(const struct memory_block *b)
{
    for (const struct hold *h = holds; h; h = h->next)
        if (memory_block_has(b, h->address))
            return true;
    return false;
}

static struct hold **memory_find_hold(uintptr_t address)
{
    struct hold **at = &holds;
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    return at;
}

int pcoll_memory_hold(const void *address)
{
    int rc = fail_if_null(address);
    if (rc != PCOLL_OK)
        return rc;
    lock_take(&mutex);
    struct hold **at = memory_find_hold((uintptr_t)address);
    if (!*at && (*at = malloc(sizeof **at)))
        **at = (struct hold){.address = (uintptr_t)address};
    if (*at)
        (*at)->count++;
    else
        rc = fail(PCOLL_ENOMEM, "no memory to hold a view");
    lock_release(&mutex);
    return rc;
}

/* Out of the list with the block of this address, if nothing in it is held. */
static struct memory_block *memory_take_block(uintptr_t address)
{
    struct memory_block **at = &disposed;
    while (*at && !memory_block_has(*at, address))
        at = &(*at)->next;
    struct memory_block *b = *at;
    if (!b || memory_is_held(b))
        return NULL;
    *at = b->next;
    return b;
}

void pcoll_memory_release(const void *address)
{
    struct memory_block *free_now = NULL;
    if (!address)
        return;
    lock_take(&mutex);
    struct hold **at = memory_find_hold((uintptr_t)address), *h = *at;
    CHECK(h && h->count > 0);
    if (!--h->count) {
        *at = h->next;
        free(h);
        free_now = memory_take_block((uintptr_t)address);
    }
    lock_release(&mutex);
    if (free_now)
        free_now->end((void *)free_now->begin, free_now->bytes);
    free(free_now);
}

void memory_dispose(void *memory, size_t bytes, void (*end)(void *memory, size_t bytes))
{
    CHECK(memory && bytes && end);
    struct memory_block block = {
        .begin = (uintptr_t)memory, .bytes = bytes, .end = end};
    lock_take(&mutex);
    bool held = memory_is_held(&block);
    struct memory_block *b = held ? malloc(sizeof *b) : NULL;
    if (b) { /* without memory for it the block is lost, which is better than gone */
        *b = block;
        b->next = disposed;
        disposed = b;
    }
    lock_release(&mutex);
    if (!held)
        end(memory, bytes);
}

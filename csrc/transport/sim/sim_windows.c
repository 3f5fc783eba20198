/* SPDX-License-Identifier: Apache-2.0 */
/* Windows in virtual time; see sim_windows.h. */
#include "transport/sim/sim_windows.h"

#include <string.h>
#include <sys/queue.h>

#include "base/check.h"
#include "kernels/reduce.h"
#include "transport/sim/sim_network.h"

/* What is done with data: the elements of a dtype are added, or one of these. */
enum { PUT = -1, COUNT = -2, SWAP = -3 };

struct piece {
    struct piece *next;
    int kind;
    size_t offset, bytes;
    double data[];
};

struct parcel {
    LIST_ENTRY(parcel) others;
    uint32_t peer;
    bool flushed;
    struct piece *first, **end; /* in the order in which they were written */
};

struct sim_window {
    struct window base;
    struct sim_windows *all;
    struct parcel *open, *sent; /* NULL: none */
};

struct sim_windows {
    uint32_t ranks;
    size_t bytes;
    bool parcels;
    struct sim_window *windows; /* by rank */
    LIST_HEAD(, parcel) under_way;
};

static struct sim_window *of(struct window *w)
{
    return (struct sim_window *)w;
}

static char *memory_of(struct window *w, uint32_t peer, size_t offset)
{
    CHECK(peer < of(w)->all->ranks && offset < of(w)->all->bytes);
    return of(w)->all->windows[peer].base.memory + offset;
}

static void write_now(char *at, int kind, const void *data, size_t bytes)
{
    int64_t *word = (int64_t *)(void *)at;
    const int64_t *values = data;
    if (kind == PUT)
        memcpy(at, data, bytes);
    else if (kind == COUNT)
        *word += values[0];
    else if (kind == SWAP)
        *word = *word == values[0] ? values[1] : *word;
    else
        reduce_buffer(PCOLL_SUM, kind, at, at, data, bytes / dtype_find(kind)->size);
}

/* Parcels. */

static void pack(struct sim_window *w, uint32_t peer, int kind, size_t offset,
                 const void *data, size_t bytes)
{
    struct parcel *p = w->open;
    if (!p) {
        p = w->open = must(calloc(1, sizeof *p));
        p->peer = peer;
        p->end = &p->first;
        LIST_INSERT_HEAD(&w->all->under_way, p, others);
    }
    CHECK(p->peer == peer);
    struct piece *piece = must(malloc(sizeof *piece + bytes));
    *piece = (struct piece){.kind = kind, .offset = offset, .bytes = bytes};
    memcpy(piece->data, data, bytes);
    *p->end = piece;
    p->end = &piece->next;
}

static void free_parcel(struct parcel *p)
{
    LIST_REMOVE(p, others);
    while (p->first) {
        struct piece *piece = p->first;
        p->first = piece->next;
        free(piece);
    }
    free(p);
}

struct parcel *sim_windows_sent(struct sim_windows *s, uint32_t rank)
{
    CHECK(rank < s->ranks);
    struct parcel *p = s->windows[rank].sent;
    s->windows[rank].sent = NULL;
    return p;
}

uint32_t sim_windows_land(struct sim_windows *s, struct parcel **parcel)
{
    struct parcel *p = *parcel;
    CHECK(p && p->peer < s->ranks && p->flushed);
    uint32_t peer = p->peer;
    for (const struct piece *i = p->first; i; i = i->next)
        write_now(s->windows[peer].base.memory + i->offset, i->kind, i->data, i->bytes);
    free_parcel(p);
    *parcel = NULL;
    return peer;
}

/* The calls of the seam. */

static int get(struct window *w, uint32_t peer, size_t offset, void *into, size_t bytes)
{
    memcpy(into, memory_of(w, peer, offset), bytes);
    return PCOLL_OK;
}

static int get_sums(struct window *w, uint32_t peer, size_t offset, void *into,
                    int dtype, size_t count)
{
    return get(w, peer, offset, into, count * dtype_find(dtype)->size);
}

static int begin_get(struct window *w, uint32_t peer, size_t offset, void *into,
                     size_t bytes, struct window_get *request)
{
    (void)request; /* near: over at once */
    return get(w, peer, offset, into, bytes);
}

static int send(struct window *w, uint32_t peer, int kind, size_t offset,
                const void *data, size_t bytes)
{
    if (of(w)->all->parcels && peer != w->rank)
        pack(of(w), peer, kind, offset, data, bytes);
    else
        write_now(memory_of(w, peer, offset), kind, data, bytes);
    return PCOLL_OK;
}

static int put(struct window *w, uint32_t peer, size_t offset, const void *from,
               size_t bytes)
{
    return send(w, peer, PUT, offset, from, bytes);
}

static int add(struct window *w, uint32_t peer, size_t offset, const void *from,
               int dtype, size_t count)
{
    return send(w, peer, dtype, offset, from, count * dtype_find(dtype)->size);
}

static int flush(struct window *w, uint32_t peer)
{
    struct parcel *p = of(w)->open;
    if (p && p->peer == peer)
        p->flushed = true;
    return PCOLL_OK;
}

/* At once, or with the parcel that it tells of. */
static int change(struct window *w, uint32_t peer, int kind, size_t offset,
                  const int64_t values[2], int64_t *before)
{
    struct sim_window *own = of(w);
    size_t bytes = 2 * sizeof *values;
    char *at = memory_of(w, peer, offset);
    memcpy(before, at, sizeof *before);
    if (!own->open || !own->open->flushed || own->open->peer != peer) {
        write_now(at, kind, values, bytes);
        return PCOLL_OK;
    }
    CHECK(!own->sent);
    pack(own, peer, kind, offset, values, bytes);
    own->sent = own->open;
    own->open = NULL;
    return PCOLL_OK;
}

static int fetch_add(struct window *w, uint32_t peer, size_t offset, int64_t delta,
                     int64_t *before)
{
    return change(w, peer, COUNT, offset, (int64_t[2]){delta}, before);
}

static int compare_swap(struct window *w, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before)
{
    return change(w, peer, SWAP, offset, (int64_t[2]){expected, desired}, before);
}

static int complete(struct window *w, uint32_t peer)
{
    (void)w, (void)peer;
    return PCOLL_OK;
}

static int sync_stores(struct window *w)
{
    (void)w;
    return PCOLL_OK;
}

static const struct window_ops ops = {.get = get,
                                      .put = put,
                                      .add = add,
                                      .get_sums = get_sums,
                                      .complete = complete,
                                      .begin_get = begin_get,
                                      .flush = flush,
                                      .fetch_add = fetch_add,
                                      .compare_swap = compare_swap,
                                      .sync = sync_stores};

struct sim_windows *sim_windows_create(uint32_t ranks, size_t bytes, bool parcels)
{
    struct sim_windows *s = must(calloc(1, sizeof *s));
    *s = (struct sim_windows){.ranks = ranks, .bytes = bytes, .parcels = parcels};
    s->windows = must(calloc(ranks, sizeof *s->windows));
    for (uint32_t r = 0; r < ranks; r++) {
        char *memory = must(calloc(1, bytes));
        s->windows[r].base =
            (struct window){.ops = &ops, .rank = r, .size = ranks, .memory = memory};
        s->windows[r].all = s;
    }
    return s;
}

void sim_windows_free(struct sim_windows **at)
{
    struct sim_windows *s = *at;
    while (!LIST_EMPTY(&s->under_way))
        free_parcel(LIST_FIRST(&s->under_way));
    for (uint32_t r = 0; r < s->ranks; r++)
        free(s->windows[r].base.memory);
    free(s->windows);
    free(s);
    *at = NULL;
}

struct window *sim_window(struct sim_windows *s, uint32_t rank)
{
    CHECK(rank < s->ranks);
    return &s->windows[rank].base;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Windows; see sim_transport.h. */
#include "transport/sim/sim_transport.h"

#include <string.h>
#include <sys/queue.h>

#include "base/check.h"
#include "kernels/reduce.h"

/* Kinds of a write, beside the dtype: of elements that are added, or bytes (PCOLL_UINT8). */
enum { COUNT = -1, SWAP = -2 };

struct sim_piece {
    struct sim_piece *next;
    int kind;
    size_t offset, bytes;
    double data[];
};

struct sim_parcel {
    LIST_ENTRY(sim_parcel) others;
    uint32_t peer;
    bool flushed;
    struct sim_piece *first, **end; /* in the order of the writes */
};

struct sim_window {
    struct window base;
    struct sim_windows *all;
    struct sim_parcel *open, *sent; /* NULL: none */
};

struct sim_windows {
    uint32_t ranks;
    size_t bytes;
    bool parcels;
    struct sim_window *windows; /* by rank */
    LIST_HEAD(, sim_parcel) under_way;
};

static struct sim_window *sim_window_of(struct window *window)
{
    return (struct sim_window *)window;
}

static char *sim_window_memory(struct window *window, uint32_t peer, size_t offset)
{
    CHECK(peer < sim_window_of(window)->all->ranks &&
          offset < sim_window_of(window)->all->bytes);
    return sim_window_of(window)->all->windows[peer].base.memory + offset;
}

static void sim_window_write(char *at, int kind, const void *data, size_t bytes)
{
    int64_t *word = (int64_t *)(void *)at;
    const int64_t *values = data;
    if (kind == PCOLL_UINT8)
        memcpy(at, data, bytes);
    else if (kind == COUNT)
        *word += values[0];
    else if (kind == SWAP)
        *word = *word == values[0] ? values[1] : *word;
    else
        reduce_buffer(PCOLL_SUM, kind, at, at, data, bytes / dtype_find(kind)->size);
}

/* Parcels. */

static void sim_window_pack(struct sim_window *window, uint32_t peer, int kind,
                            size_t offset, const void *data, size_t bytes)
{
    struct sim_parcel *parcel = window->open;
    if (!parcel) {
        parcel = window->open = sim_must(calloc(1, sizeof *parcel));
        parcel->peer = peer;
        parcel->end = &parcel->first;
        LIST_INSERT_HEAD(&window->all->under_way, parcel, others);
    }
    CHECK(parcel->peer == peer);
    struct sim_piece *piece = sim_must(malloc(sizeof *piece + bytes));
    *piece = (struct sim_piece){.kind = kind, .offset = offset, .bytes = bytes};
    memcpy(piece->data, data, bytes);
    *parcel->end = piece;
    parcel->end = &piece->next;
}

static void sim_window_free_parcel(struct sim_parcel *parcel)
{
    LIST_REMOVE(parcel, others);
    while (parcel->first) {
        struct sim_piece *piece = parcel->first;
        parcel->first = piece->next;
        free(piece);
    }
    free(parcel);
}

struct sim_parcel *sim_windows_sent(struct sim_windows *all, uint32_t rank)
{
    struct sim_parcel *parcel = all->windows[rank].sent;
    all->windows[rank].sent = NULL;
    return parcel;
}

uint32_t sim_windows_land(struct sim_windows *all, struct sim_parcel **at)
{
    struct sim_parcel *parcel = *at;
    CHECK(parcel && parcel->peer < all->ranks && parcel->flushed);
    uint32_t peer = parcel->peer;
    for (const struct sim_piece *i = parcel->first; i; i = i->next)
        sim_window_write(all->windows[peer].base.memory + i->offset, i->kind, i->data,
                         i->bytes);
    sim_window_free_parcel(parcel);
    *at = NULL;
    return peer;
}

/* Operations of the window. */

static int sim_window_access(struct window *window, enum window_access kind,
                             uint32_t peer, size_t offset, const void *from, void *into,
                             int dtype, size_t count)
{
    size_t bytes = count * dtype_find(dtype)->size;
    char *at = sim_window_memory(window, peer, offset);
    if (kind == WINDOW_GET || kind == WINDOW_SUMS)
        memcpy(into, at, bytes);
    else if (sim_window_of(window)->all->parcels && peer != window->rank)
        sim_window_pack(sim_window_of(window), peer, dtype, offset, from, bytes);
    else
        sim_window_write(at, dtype, from, bytes);
    return PCOLL_OK;
}

static int sim_window_flush(struct window *window, uint32_t peer)
{
    struct sim_parcel *parcel = sim_window_of(window)->open;
    if (parcel && parcel->peer == peer)
        parcel->flushed = true;
    return PCOLL_OK;
}

/* Change a word: at once, or with the parcel that it announces. */
static int sim_window_change(struct window *window, uint32_t peer, int kind,
                             size_t offset, const int64_t values[2], int64_t *before)
{
    struct sim_window *own = sim_window_of(window);
    size_t bytes = 2 * sizeof *values;
    char *at = sim_window_memory(window, peer, offset);
    memcpy(before, at, sizeof *before);
    if (!own->open || !own->open->flushed || own->open->peer != peer) {
        sim_window_write(at, kind, values, bytes);
        return PCOLL_OK;
    }
    CHECK(!own->sent);
    sim_window_pack(own, peer, kind, offset, values, bytes);
    own->sent = own->open;
    own->open = NULL;
    return PCOLL_OK;
}

static int sim_window_fetch_add(struct window *window, uint32_t peer, size_t offset,
                                int64_t delta, int64_t *before)
{
    return sim_window_change(window, peer, COUNT, offset, (int64_t[2]){delta}, before);
}

static int sim_window_compare_swap(struct window *window, uint32_t peer, size_t offset,
                                   int64_t expected, int64_t desired, int64_t *before)
{
    return sim_window_change(window, peer, SWAP, offset,
                             (int64_t[2]){expected, desired}, before);
}

static int sim_window_complete(struct window *window, uint32_t peer)
{
    (void)window, (void)peer;
    return PCOLL_OK;
}

static int sim_window_sync(struct window *window)
{
    (void)window;
    return PCOLL_OK;
}

static const struct window_ops ops = {.access = sim_window_access,
                                      .complete = sim_window_complete,
                                      .flush = sim_window_flush,
                                      .fetch_add = sim_window_fetch_add,
                                      .compare_swap = sim_window_compare_swap,
                                      .sync = sim_window_sync};

struct sim_windows *sim_windows_create(uint32_t ranks, size_t bytes, bool parcels)
{
    struct sim_windows *all = sim_must(calloc(1, sizeof *all));
    *all = (struct sim_windows){.ranks = ranks, .bytes = bytes, .parcels = parcels};
    all->windows = sim_must(calloc(ranks, sizeof *all->windows));
    for (uint32_t r = 0; r < ranks; r++) {
        char *memory = sim_must(calloc(1, bytes));
        all->windows[r].base =
            (struct window){.ops = &ops, .rank = r, .size = ranks, .memory = memory};
        all->windows[r].all = all;
    }
    return all;
}

void sim_windows_free(struct sim_windows **at)
{
    struct sim_windows *all = *at;
    while (!LIST_EMPTY(&all->under_way))
        sim_window_free_parcel(LIST_FIRST(&all->under_way));
    for (uint32_t r = 0; r < all->ranks; r++)
        free(all->windows[r].base.memory);
    free(all->windows);
    free(all);
    *at = NULL;
}

struct window *sim_window(struct sim_windows *all, uint32_t rank)
{
    return &all->windows[rank].base;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * THE SEAM of the gossip buffers: memory of every rank that the others read and write
 * without its help. mpi/mpi_window.c is one, over MPI; the tests have one whose every step
 * is a point at which somebody else may go on.
 *
 * What get, put and add begin is over, as far as the caller's buffers are concerned,
 * after complete, and has happened at the peer after flush. The words (8 bytes, at
 * multiples of 8) are changed by fetch_add and compare_swap alone, each of which is one
 * atomic step and is over when it returns; one word is only ever changed by one of the
 * two. add is atomic for each element, and only add and get_sums touch those elements.
 * The owner's own stores are plain: sync stands between them and the word that tells
 * of them.
 *
 * All return a result code. A call that fails returns only when nothing uses the caller's
 * buffers any more that get, put, add, get_sums or fetch_add were given before: the
 * caller may leave at once, and its buffers may be gone then. (begin_get is separate: its
 * buffer stays in use until `over` says so.)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct window;

/* One that is under way: the window's business. */
struct window_get {
    uint64_t request;
};

struct window_ops {
    int (*get)(struct window *w, uint32_t peer, size_t offset, void *into,
               size_t bytes);
    int (*put)(struct window *w, uint32_t peer, size_t offset, const void *from,
               size_t bytes);
    /* float32 or float64: added to what is there */
    int (*add)(struct window *w, uint32_t peer, size_t offset, const void *from,
               int dtype, size_t count);
    /* The same elements, or words (int64), each read in one step */
    int (*get_sums)(struct window *w, uint32_t peer, size_t offset, void *into,
                    int dtype, size_t count);
    int (*complete)(struct window *w, uint32_t peer);
    /* A get of its own, for those who must not wait: when `over` says so, or at once if
     * the peer is near. */
    int (*begin_get)(struct window *w, uint32_t peer, size_t offset, void *into,
                     size_t bytes, struct window_get *get);
    int (*over)(struct window *w, struct window_get *get, bool *over);
    int (*flush)(struct window *w, uint32_t peer);

    int (*fetch_add)(struct window *w, uint32_t peer, size_t offset, int64_t delta,
                     int64_t *before);
    int (*compare_swap)(struct window *w, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before);
    int (*sync)(struct window *w);
    /* Local: nobody uses it any more; give the memory back as far as that can be done.
     */
    void (*retire)(struct window *w);
    /* Collective, unless it is `local`. */
    void (*destroy)(struct window *w);
};

struct window {
    const struct window_ops *ops;
    uint32_t rank, size;
    char *memory;        /* of this rank, zero at the start */
    const bool *far;     /* by rank: takes its target's help; NULL: nobody */
    bool local;          /* its end needs nobody else */
    struct window *next; /* in a list of windows that nobody uses */
};

static inline bool window_is_far(const struct window *w, uint32_t peer)
{
    return w->far && w->far[peer];
}

static inline int window_read_word(struct window *w, uint32_t peer, size_t offset,
                                   int64_t *value)
{
    return w->ops->fetch_add(w, peer, offset, 0, value);
}

/* The same for a word that compare_swap changes. */
static inline int window_read_swapped(struct window *w, uint32_t peer, size_t offset,
                                      int64_t *value)
{
    return w->ops->compare_swap(w, peer, offset, 0, 0, value);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of gossip buffers to memory of every rank that the others read and write without
 * its help: mpi/mpi_window.c over MPI, shared memory, simulated memory; tests have one that lets
 * other ranks run before each step.
 *
 * An access no longer uses the caller's buffer after `complete`, and has taken effect at the peer
 * after `flush`. Only fetch_add and compare_swap change words (8 bytes, at multiples of 8). Each call
 * is one atomic step, complete when it returns; each word is changed by only one of the two.
 * WINDOW_ADD is atomic for each element, and only it and WINDOW_SUMS access those elements. The
 * owner's stores are plain: it calls sync between them and the word that announces them.
 *
 * All return a result code. A call that fails returns only when nothing uses the caller's buffers
 * any more that earlier calls of access or fetch_add were given: the caller may free them at once.
 * (begin_get is separate: its buffer stays in use until `over` says so.)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct window;

/* A get under way; only the window reads it. */
struct window_get {
    uint64_t request;
};

enum window_access {
    WINDOW_GET, /* bytes (PCOLL_UINT8) */
    WINDOW_PUT, /* bytes */
    WINDOW_ADD, /* to elements of float32 or float64 */
    WINDOW_SUMS /* read such elements, or words (int64), each in one step */
};

struct window_ops {
    /* Begin an access to `count` elements. It reads `from` or writes `into`; the other is NULL. */
    int (*access)(struct window *w, enum window_access kind, uint32_t peer,
                  size_t offset, const void *from, void *into, int dtype, size_t count);
    int (*complete)(struct window *w, uint32_t peer);
    /* A separate get from a far peer, for callers that must not wait: complete when `over` says so. */
    int (*begin_get)(struct window *w, uint32_t peer, size_t offset, void *into,
                     size_t bytes, struct window_get *get);
    int (*over)(struct window *w, struct window_get *get, bool *over);
    int (*flush)(struct window *w, uint32_t peer);

    int (*fetch_add)(struct window *w, uint32_t peer, size_t offset, int64_t delta,
                     int64_t *before);
    int (*compare_swap)(struct window *w, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before);
    int (*sync)(struct window *w);
    /* Local: the window is no longer used. Give back its memory, as far as possible. */
    void (*retire)(struct window *w);
    void (*destroy)(struct window *w); /* Collective, unless it is `local`. */
};

struct window {
    const struct window_ops *ops;
    uint32_t rank, size;
    char *memory;        /* Of this rank, initially zeros. */
    const bool *far;     /* By rank: accesses need the rank's help. NULL: none do. */
    bool local;          /* `destroy` is local. */
    struct window *next; /* In a list of retired windows. */
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

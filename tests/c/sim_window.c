/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of simulated ranks; see sim_window.h. */
#include "sim_window.h"

#include <string.h>

#include "check.h"

enum { LONGEST_GET_NS = 300000 };

struct get {
    int64_t due;
    uint32_t peer;
    size_t offset, bytes;
    void *into;
    bool used;
};

struct sim_window {
    struct window base;
    struct sim *sim;
    struct window **all;
    const bool *stands;
    bool *far;
    struct get *gets;
    uint64_t capacity;
};

static struct sim_window *of(struct window *w)
{
    return (struct sim_window *)w;
}

static char *memory_of(struct window *w, uint32_t peer, size_t offset)
{
    return of(w)->all[peer]->memory + offset;
}

static int access(struct window *w, enum window_access kind, uint32_t peer,
                  size_t offset, const void *from, void *into, int dtype, size_t count)
{
    EXPECT(dtype == PCOLL_UINT8, "elements of dtype %d", dtype);
    EXPECT(kind == WINDOW_GET || !window_is_far(w, peer), "a put to a far rank");
    if (kind == WINDOW_GET)
        memcpy(into, memory_of(w, peer, offset), count);
    else
        memcpy(memory_of(w, peer, offset), from, count);
    return PCOLL_OK;
}

static int nothing(struct window *w, uint32_t peer)
{
    (void)w, (void)peer;
    return PCOLL_OK;
}

/* Return an unused entry for the next get. */
static struct get *free_get(struct sim_window *w, uint64_t *number)
{
    for (*number = 0; *number < w->capacity; ++*number)
        if (!w->gets[*number].used)
            return &w->gets[*number];
    w->capacity = 2 * w->capacity + 8;
    w->gets = realloc(w->gets, w->capacity * sizeof *w->gets);
    memset(w->gets + *number, 0, (w->capacity - *number) * sizeof *w->gets);
    return &w->gets[*number];
}

static int begin_get(struct window *w, uint32_t peer, size_t offset, void *into,
                     size_t bytes, struct window_get *handle)
{
    EXPECT(window_is_far(w, peer), "a get of its own from a near rank");
    struct get *g = free_get(of(w), &handle->request);
    memset(into, 0xee, bytes);
    *g = (struct get){.due =
                          sim_now(of(w)->sim) + sim_random(of(w)->sim, LONGEST_GET_NS),
                      .peer = peer,
                      .offset = offset,
                      .bytes = bytes,
                      .into = into,
                      .used = true};
    return PCOLL_OK;
}

static int is_over(struct window *w, struct window_get *handle, bool *over)
{
    struct get *g = &of(w)->gets[handle->request];
    EXPECT(g->used, "a get that was not begun, or is over already");
    *over = sim_now(of(w)->sim) >= g->due && !of(w)->stands[g->peer];
    if (!*over)
        return PCOLL_OK;
    g->used = false;
    memcpy(g->into, memory_of(w, g->peer, g->offset), g->bytes);
    return PCOLL_OK;
}

static int compare_swap(struct window *w, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before)
{
    EXPECT(!window_is_far(w, peer), "a word of a far rank");
    int64_t *word = (int64_t *)(void *)memory_of(w, peer, offset);
    *before = *word;
    if (*word == expected)
        *word = desired;
    return PCOLL_OK;
}

static int sync_stores(struct window *w)
{
    (void)w;
    return PCOLL_OK;
}

static void retire(struct window *w)
{
    for (uint64_t i = 0; i < of(w)->capacity; i++)
        EXPECT(!of(w)->gets[i].used, "a get is under way at the end");
}

static void destroy(struct window *w)
{
    (void)w; /* far_windows_destroy frees all of them */
}

static const struct window_ops ops = {.access = access,
                                      .complete = nothing,
                                      .begin_get = begin_get,
                                      .over = is_over,
                                      .flush = nothing,
                                      .compare_swap = compare_swap,
                                      .sync = sync_stores,
                                      .retire = retire,
                                      .destroy = destroy};

void far_windows_create(struct sim *s, uint32_t ranks, uint32_t ranks_of_node,
                        size_t bytes, const bool *stands, struct window **windows)
{
    for (uint32_t r = 0; r < ranks; r++) {
        struct sim_window *w = calloc(1, sizeof *w);
        *w = (struct sim_window){
            .base = {.ops = &ops, .rank = r, .size = ranks, .memory = calloc(1, bytes)},
            .sim = s,
            .all = windows,
            .stands = stands,
            .far = calloc(ranks, sizeof *w->far)};
        for (uint32_t p = 0; p < ranks; p++)
            w->far[p] = p / ranks_of_node != r / ranks_of_node;
        w->base.far = w->far;
        windows[r] = &w->base;
    }
}

void far_windows_destroy(uint32_t ranks, struct window **windows)
{
    for (uint32_t r = 0; r < ranks; r++) {
        free(windows[r]->memory);
        free(of(windows[r])->far);
        free(of(windows[r])->gets);
        free(windows[r]);
    }
}

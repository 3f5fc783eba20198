/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_window.h"

#include <string.h>

#include "base/check.h"
#include "check.h"
#include "stepper.h"

void (*memory_window_watch)(void);

enum { PIECE = 1600 }; /* bytes that arrive at once */

/* A piece of a put or of an addition that has not arrived yet. */
struct parcel {
    struct parcel *next;
    uint32_t peer;
    size_t offset, bytes;
    int dtype; /* PCOLL_UINT8: a put */
    _Alignas(8) char data[PIECE];
};

struct memory_window {
    struct window base;
    struct memory_window **all;
    struct parcel *under_way;
    size_t size;
};

static struct memory_window *of(struct window *w)
{
    return (struct memory_window *)w;
}

static char *memory_of(struct window *w, uint32_t peer, size_t offset, size_t bytes)
{
    struct memory_window *m = of(w)->all[peer];
    EXPECT(offset + bytes <= m->size, "%zu bytes at %zu of %zu", bytes, offset,
           m->size);
    return m->base.memory + offset;
}

static void deliver(struct window *w, struct parcel *p)
{
    char *at = memory_of(w, p->peer, p->offset, p->bytes);
    if (p->dtype == PCOLL_UINT8)
        memcpy(at, p->data, p->bytes);
    for (size_t i = 0; p->dtype == PCOLL_FLOAT64 && i < p->bytes / 8; i++)
        ((double *)at)[i] += ((double *)p->data)[i];
    for (size_t i = 0; p->dtype == PCOLL_FLOAT32 && i < p->bytes / 4; i++)
        ((float *)at)[i] += ((float *)p->data)[i];
    free(p);
}

/* Deliver one of the pieces on their way to the peer, drawn at random. */
static bool deliver_one(struct window *w, uint32_t peer)
{
    uint32_t count = 0;
    for (struct parcel *p = of(w)->under_way; p; p = p->next)
        count += p->peer == peer;
    if (!count)
        return false;
    uint32_t which = stepper_random(count);
    struct parcel **at = &of(w)->under_way;
    while ((*at)->peer != peer || which--)
        at = &(*at)->next;
    struct parcel *p = *at;
    *at = p->next;
    deliver(w, p);
    return true;
}

static void send(struct window *w, uint32_t peer, size_t offset, const void *from,
                 size_t bytes, int dtype)
{
    for (size_t at = 0; at < bytes; at += PIECE) {
        struct parcel *p = malloc(sizeof *p);
        EXPECT(p, "no memory");
        *p = (struct parcel){.next = of(w)->under_way,
                             .peer = peer,
                             .offset = offset + at,
                             .bytes = bytes - at < PIECE ? bytes - at : PIECE,
                             .dtype = dtype};
        memcpy(p->data, (const char *)from + at, p->bytes);
        of(w)->under_way = p;
        if (stepper_random(2))
            deliver_one(w, peer);
        INTERLEAVE();
    }
}

static int get(struct window *w, uint32_t peer, size_t offset, void *into, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        INTERLEAVE();
        memcpy((char *)into + at, memory_of(w, peer, offset + at, n), n);
    }
    return PCOLL_OK;
}

static int access(struct window *w, enum window_access kind, uint32_t peer,
                  size_t offset, const void *from, void *into, int dtype, size_t count)
{
    size_t element = dtype == PCOLL_UINT8 ? 1 : dtype == PCOLL_FLOAT32 ? 4 : 8;
    if (kind == WINDOW_GET || kind == WINDOW_SUMS)
        get(w, peer, offset, into, count * element);
    else
        send(w, peer, offset, from, count * element, dtype);
    return PCOLL_OK;
}

static int complete(struct window *w, uint32_t peer)
{
    (void)w, (void)peer;
    INTERLEAVE();
    return PCOLL_OK;
}

static int flush(struct window *w, uint32_t peer)
{
    while (deliver_one(w, peer))
        INTERLEAVE();
    return PCOLL_OK;
}

static int64_t *word_of(struct window *w, uint32_t peer, size_t offset)
{
    EXPECT(offset % 8 == 0, "a word at %zu", offset);
    return (int64_t *)memory_of(w, peer, offset, 8);
}

static void changed(void)
{
    if (memory_window_watch)
        memory_window_watch();
    INTERLEAVE();
}

static int fetch_add(struct window *w, uint32_t peer, size_t offset, int64_t delta,
                     int64_t *before)
{
    INTERLEAVE();
    int64_t *word = word_of(w, peer, offset);
    *before = *word;
    *word = (int64_t)((uint64_t)*word + (uint64_t)delta);
    changed();
    return PCOLL_OK;
}

static int compare_swap(struct window *w, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before)
{
    INTERLEAVE();
    int64_t *word = word_of(w, peer, offset);
    *before = *word;
    if (*word == expected)
        *word = desired;
    changed();
    return PCOLL_OK;
}

static int sync(struct window *w)
{
    (void)w;
    INTERLEAVE();
    return PCOLL_OK;
}

static void destroy(struct window *w)
{
    (void)w; /* all windows are freed together, below */
}

static const struct window_ops ops = {.access = access,
                                      .complete = complete,
                                      .flush = flush,
                                      .fetch_add = fetch_add,
                                      .compare_swap = compare_swap,
                                      .sync = sync,
                                      .destroy = destroy};

void memory_windows_create(uint32_t ranks, size_t bytes, struct window **windows)
{
    static struct memory_window *all[MEMORY_RANKS];
    for (uint32_t i = 0; i < ranks; i++) {
        all[i] = calloc(1, sizeof *all[i]);
        EXPECT(all[i], "no memory");
        *all[i] = (struct memory_window){
            .base = {.ops = &ops, .rank = i, .size = ranks, .memory = calloc(1, bytes)},
            .all = all,
            .size = bytes};
        EXPECT(all[i]->base.memory, "no memory");
        windows[i] = &all[i]->base;
    }
}

void memory_windows_destroy(uint32_t ranks, struct window **windows)
{
    for (uint32_t i = 0; i < ranks; i++) {
        EXPECT(!of(windows[i])->under_way, "rank %u left something under way", i);
        free(windows[i]->memory);
        free(windows[i]);
    }
}

void memory_window_die(struct window *w)
{
    while (of(w)->under_way) {
        struct parcel *p = of(w)->under_way;
        of(w)->under_way = p->next;
        deliver(w, p);
    }
}

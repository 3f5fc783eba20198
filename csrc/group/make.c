/* SPDX-License-Identifier: Apache-2.0 */
/* The local part of making and unmaking a grouped allreduce. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "group.h"

/* Of the timeout: the patience of matchmaking, which is a fifth of the window at most
 * (match.h), and the window where none is given. With static keys that ends only if
 * somebody is lost: after those who wait for the same rank in mid-round have given up.
 */
enum {
    PATIENCE_PARTS = 10,
    STATIC_WINDOW_TIMES = 2,
    DYNAMIC_WINDOW_PARTS = 5,
    PATIENCES_IN_WINDOW = 5
};

/* What can be said of the options without the others. */
static int check(const pcoll_group_options *o)
{
    if (o->dtype != PCOLL_FLOAT16 && o->dtype != PCOLL_BFLOAT16 &&
        o->dtype != PCOLL_FLOAT32 && o->dtype != PCOLL_FLOAT64)
        return fail(PCOLL_EINVAL,
                    "dtype: expected float16, bfloat16, float32 or float64");
    if (o->keys < PCOLL_KEYS_AUTO || o->keys > PCOLL_KEYS_DYNAMIC)
        return fail(PCOLL_EINVAL, "keys: expected auto, static or dynamic, got %d",
                    o->keys);
    if (!(o->bandwidth >= 0) || !isfinite(o->bandwidth))
        return fail(PCOLL_EINVAL, "bandwidth: expected a number above 0, got %g",
                    o->bandwidth);
    if (o->timeout_us <= 0)
        return fail(PCOLL_EINVAL,
                    "timeout: expected more than 0 microseconds, got %" PRId64,
                    o->timeout_us);
    if (o->window_us < 0)
        return fail(PCOLL_EINVAL,
                    "window: expected more than 0 microseconds, got %" PRId64,
                    o->window_us);
    if (o->count > SIZE_MAX / 64)
        return fail(PCOLL_EINVAL, "sendbuf: %" PRIu64 " elements are beyond all memory",
                    o->count);
    return PCOLL_OK;
}

static int lay_out(struct pcoll_group *g, uint32_t ranks)
{
    pcoll_group_options *o = &g->options;
    int rc = PCOLL_OK;
    if (o->axes)
        rc = grid_init(&g->grid, o->side, o->axes, ranks);
    else
        grid_auto(&g->grid, ranks);
    if (rc != PCOLL_OK)
        return rc;
    bool full = grid_full(&g->grid, ranks);
    g->dynamic = o->keys == PCOLL_KEYS_DYNAMIC || (o->keys == PCOLL_KEYS_AUTO && !full);
    if (!o->window_us)
        o->window_us = g->dynamic ? o->timeout_us / DYNAMIC_WINDOW_PARTS + 1
                                  : o->timeout_us * STATIC_WINDOW_TIMES;
    g->place = place_of(ranks, dtype_find(o->dtype)->size, o->count);
    return PCOLL_OK;
}

/* No group is larger than the longest side, nor than all. */
static uint32_t most_members(const struct pcoll_group *g, uint32_t ranks)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < g->grid.axes; i++)
        if (g->grid.side[i] > most)
            most = g->grid.side[i];
    return most < ranks ? most : ranks;
}

static int allocate(struct pcoll_group *g, uint32_t ranks)
{
    uint32_t most = most_members(g, ranks);
    g->line = calloc(ranks, sizeof *g->line);
    g->notices = calloc(ranks, sizeof *g->notices);
    g->heard = calloc(ranks, sizeof *g->heard);
    g->entries = calloc(ranks, sizeof *g->entries);
    g->served = calloc(ranks, sizeof *g->served);
    g->words = calloc((size_t)ranks * ENTRY_WORDS, sizeof *g->words);
    g->bandwidths = calloc(most, sizeof *g->bandwidths);
    g->outcome_ranks = calloc(most, sizeof *g->outcome_ranks);
    g->outcome_shares = calloc(most, sizeof *g->outcome_shares);
    g->now.heard = calloc(most, sizeof *g->now.heard);
    g->spent = calloc(1, sizeof *g->spent);
    g->now.data.most = most;
    return g->line && g->notices && g->heard && g->entries && g->served && g->words &&
                   g->bandwidths && g->outcome_ranks && g->outcome_shares &&
                   g->now.heard && g->spent
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a grouped allreduce");
}

static int64_t patience(const pcoll_group_options *o)
{
    int64_t by_timeout = o->timeout_us * 1000 / PATIENCE_PARTS;
    int64_t by_window = o->window_us * 1000 / PATIENCES_IN_WINDOW;
    return by_timeout < by_window ? by_timeout : by_window;
}

int group_prepare(struct pcoll_group *g, uint32_t rank, uint32_t ranks)
{
    g->base = participant_init(&group_participant);
    g->drain.again_at = g->due = INT64_MAX;
    g->time = context_now(g->context);
    pthread_mutex_init(&g->mutex, NULL);
    int rc = check(&g->options);
    if (rc == PCOLL_OK)
        rc = lay_out(g, ranks);
    if (rc == PCOLL_OK)
        rc = allocate(g, ranks);
    if (rc == PCOLL_OK)
        rc = roll_init(&g->roll, ranks);
    if (rc == PCOLL_OK)
        rc = match_init(&g->match, rank, ranks, patience(&g->options));
    if (rc == PCOLL_OK && !g->options.measure)
        group_tell_bandwidth(g, g->options.bandwidth);
    return rc;
}

int group_attach(struct pcoll_group *g)
{
    struct round *r = &g->now.data;
    r->window = g->window;
    r->place = g->place;
    r->dtype = dtype_find(g->options.dtype);
    r->notice = group_notify;
    r->breathe = group_breathe;
    r->arg = g;
    memset(g->window->memory, 0, g->place.input_at);
    int rc = g->window->ops->sync(g->window);
    return rc == PCOLL_OK ? round_init(r) : rc;
}

void group_dispose(struct pcoll_group *g)
{
    round_destroy(&g->now.data);
    match_destroy(&g->match);
    roll_destroy(&g->roll);
    void *const all[] = {g->cells,          g->line,       g->notices,
                         g->heard,          g->entries,    g->served,
                         g->words,          g->bandwidths, g->outcome_ranks,
                         g->outcome_shares, g->now.heard,  g->spent};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    pthread_mutex_destroy(&g->mutex);
}

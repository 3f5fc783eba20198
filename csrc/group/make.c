/* SPDX-License-Identifier: Apache-2.0 */
/* The local part of making and unmaking a grouped allreduce. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "group/group.h"

#include "base/check.h"

/* Of the timeout: the answer timeout of matchmaking, which is a fifth of the window at
 * most (matchmaking.h), and the window where none is given. With static keys that ends
 * only if somebody is lost: after those who wait for the same rank in mid-round have
 * given up. */
enum {
    ANSWER_TIMEOUT_PARTS = 10,
    STATIC_WINDOW_TIMES = 2,
    DYNAMIC_WINDOW_PARTS = 5,
    ANSWER_TIMEOUTS_IN_WINDOW = 5
};

void pcoll_group_options_init(pcoll_group_options *options)
{
    if (!options)
        return;
    *options = (pcoll_group_options){
        .keys = PCOLL_KEYS_AUTO,
        .cell = -1,
        .every = 16,
        .timeout_us = 10 * 1000000,
        .progress = PCOLL_PROGRESS_AGENT,
    };
}

/* What can be said of the options without the others. */
static int group_object_check_options(const pcoll_group_options *o)
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

static int group_object_lay_out(struct group *g, uint32_t ranks)
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
    g->place = group_window_layout(ranks, dtype_find(o->dtype)->size, o->count);
    return PCOLL_OK;
}

/* No group is larger than the longest side, nor than all. */
static uint32_t group_object_max_members(const struct group *g, uint32_t ranks)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < g->grid.axes; i++)
        if (g->grid.side[i] > most)
            most = g->grid.side[i];
    return most < ranks ? most : ranks;
}

static int group_object_allocate(struct group *g, uint32_t ranks)
{
    uint32_t most = group_object_max_members(g, ranks);
    g->matching.line = calloc(ranks, sizeof *g->matching.line);
    g->now.notices = calloc(ranks, sizeof *g->now.notices);
    g->wire.received_at = calloc(ranks, sizeof *g->wire.received_at);
    g->inquiry.entries = calloc(ranks, sizeof *g->inquiry.entries);
    g->matching.candidates = calloc(ranks, sizeof *g->matching.candidates);
    g->remote.served = calloc(ranks, sizeof *g->remote.served);
    g->remote.words = calloc((size_t)ranks * ENTRY_WORDS, sizeof *g->remote.words);
    g->now.bandwidths = calloc(most, sizeof *g->now.bandwidths);
    g->shared.outcome_ranks = calloc(most, sizeof *g->shared.outcome_ranks);
    g->shared.outcome_shares = calloc(most, sizeof *g->shared.outcome_shares);
    g->now.received_at = calloc(most, sizeof *g->now.received_at);
    g->spent = calloc(1, sizeof *g->spent);
    g->drain.counts = calloc(2, sizeof *g->drain.counts);
    g->now.data.max_members = most;
    return g->matching.line && g->matching.candidates && g->now.notices &&
                   g->wire.received_at && g->inquiry.entries && g->remote.served &&
                   g->remote.words && g->now.bandwidths && g->shared.outcome_ranks &&
                   g->shared.outcome_shares && g->now.received_at && g->spent &&
                   g->drain.counts
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a grouped allreduce");
}

static int64_t group_object_answer_timeout(const pcoll_group_options *o)
{
    int64_t by_timeout = o->timeout_us * 1000 / ANSWER_TIMEOUT_PARTS;
    int64_t by_window = o->window_us * 1000 / ANSWER_TIMEOUTS_IN_WINDOW;
    return by_timeout < by_window ? by_timeout : by_window;
}

int group_object_prepare(struct group *g, uint32_t rank, uint32_t ranks)
{
    CHECK(rank < ranks && g->communicator);
    g->base = object_init(&group_agent_ops);
    g->drain.again_at = g->clock.due = INT64_MAX;
    g->clock.time = communicator_now(g->communicator);
    lock_init(&g->shared.mutex, LOCK_GROUP);
    int rc = group_object_check_options(&g->options);
    if (rc == PCOLL_OK)
        rc = group_object_lay_out(g, ranks);
    if (rc == PCOLL_OK)
        rc = group_object_allocate(g, ranks);
    if (rc == PCOLL_OK)
        rc = membership_init(&g->membership, ranks);
    if (rc == PCOLL_OK)
        rc = match_init(&g->match, rank, ranks,
                        group_object_answer_timeout(&g->options));
    if (rc ==
        PCOLL_OK) /* the windows are equal, and a leader that was dismissed has 2P */
        g->match.longest_window =
            g->options.window_us * 1000 + 2 * g->match.answer_timeout;
    if (rc == PCOLL_OK && !g->options.measure)
        group_round_set_bandwidth(g, g->options.bandwidth);
    return rc;
}

int group_object_attach(struct group *g)
{
    struct group_data *r = &g->now.data;
    CHECK(g->window && g->window->size == g->membership.ranks);
    r->window = g->window;
    r->place = g->place;
    r->dtype = dtype_find(g->options.dtype);
    r->notice = group_round_notify;
    r->heartbeat = group_round_heartbeat;
    r->arg = g;
    memset(g->window->memory, 0, g->place.input_at);
    int rc = g->window->ops->sync(g->window);
    return rc == PCOLL_OK ? group_data_init(r) : rc;
}

void group_object_dispose(struct group *g)
{
    CHECK(!g->driven || atomic_load(&g->base.closed));
    group_data_destroy(&g->now.data);
    match_destroy(&g->match);
    membership_destroy(&g->membership);
    void *const all[] = {g->cells,
                         g->restart.words,
                         g->matching.line,
                         g->matching.candidates,
                         g->now.notices,
                         g->wire.received_at,
                         g->inquiry.entries,
                         g->remote.served,
                         g->remote.words,
                         g->now.bandwidths,
                         g->shared.outcome_ranks,
                         g->shared.outcome_shares,
                         g->now.received_at,
                         g->drain.counts,
                         g->spent};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    lock_destroy(&g->shared.mutex);
}

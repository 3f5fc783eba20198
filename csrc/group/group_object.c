/* SPDX-License-Identifier: Apache-2.0 */
/* Making and using a grouped allreduce on one rank. */
#include "group/group_agent.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"

/* The answer timeout of matchmaking as a part of the timeout; it is at most a fifth of the window
 * (matchmaking.h). And the default window. With static keys the window ends only if a rank is lost:
 * it ends after the ranks that wait for that rank in the middle of a round have given up. */
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
    /* So that the longest window, in nanoseconds, fits in 64 bits. */
    const int64_t longest_us = 1000000000000000;
    if (o->timeout_us <= 0 || o->timeout_us > longest_us)
        return fail(PCOLL_EINVAL,
                    "timeout: expected 1 to %" PRId64 " microseconds, got %" PRId64,
                    longest_us, o->timeout_us);
    if (o->window_us < 0 || o->window_us > longest_us)
        return fail(PCOLL_EINVAL,
                    "window: expected 0 to %" PRId64 " microseconds, got %" PRId64,
                    longest_us, o->window_us);
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
    bool full = grid_cells(&g->grid) == ranks;
    g->dynamic = o->keys == PCOLL_KEYS_DYNAMIC || (o->keys == PCOLL_KEYS_AUTO && !full);
    if (!o->window_us)
        o->window_us = g->dynamic ? o->timeout_us / DYNAMIC_WINDOW_PARTS + 1
                                  : o->timeout_us * STATIC_WINDOW_TIMES;
    g->place = group_window_layout(ranks, dtype_find(o->dtype)->size, o->count);
    return PCOLL_OK;
}

int group_object_prepare(struct group *g, uint32_t rank, uint32_t ranks)
{
    CHECK(rank < ranks && g->communicator);
    g->base = object_init(&group_agent_ops);
    g->drain.again_at = g->clock.due = INT64_MAX;
    g->clock.time = communicator_now(g->communicator);
    g->membership.ranks = ranks;
    int rc = group_object_check_options(&g->options) ?: group_object_lay_out(g, ranks);
    if (rc != PCOLL_OK)
        return rc;
    int64_t by_timeout = g->options.timeout_us * 1000 / ANSWER_TIMEOUT_PARTS;
    int64_t by_window = g->options.window_us * 1000 / ANSWER_TIMEOUTS_IN_WINDOW;
    uint32_t most = 1; /* No group exceeds the longest side, or all ranks. */
    for (uint32_t i = 0; i < g->grid.axes; i++)
        most = g->grid.side[i] > most ? g->grid.side[i] : most;
    g->now.data.max_members = most = most < ranks ? most : ranks;
    if (!GROUP_ALLOCATE(g->now.notices, ranks) ||
        !GROUP_ALLOCATE(g->wire.received_at, ranks) ||
        !GROUP_ALLOCATE(g->inquiry.entries, ranks) ||
        !GROUP_ALLOCATE(g->remote.found, ranks) ||
        !GROUP_ALLOCATE(g->remote.entries, ranks) ||
        !GROUP_ALLOCATE(g->membership.entries, ranks) ||
        !GROUP_ALLOCATE(g->shared.outcome_ranks, most) ||
        !GROUP_ALLOCATE(g->shared.outcome_shares, most) ||
        !GROUP_ALLOCATE(g->drain.counts, 2))
        return fail(PCOLL_ENOMEM, "no memory for a grouped allreduce");
    rc = match_init(&g->match, rank, ranks,
                    by_timeout < by_window ? by_timeout : by_window);
    if (rc != PCOLL_OK)
        return rc;
    /* All windows are equal, and a follower that was disbanded looks for another 2P. */
    g->match.longest_window = g->options.window_us * 1000 + 2 * g->match.answer_timeout;
    if (!g->options.measure)
        group_round_set_bandwidth(g, g->options.bandwidth);
    return PCOLL_OK;
}

int group_object_attach(struct group *g)
{
    struct group_data *r = &g->now.data;
    CHECK(g->window && g->window->size == g->membership.ranks);
    r->window = g->window;
    r->place = g->place;
    r->dtype = dtype_find(g->options.dtype);
    r->owner = g;
    memset(g->window->memory, 0, g->place.input_at);
    return g->window->ops->sync(g->window) ?: group_data_init(r);
}

void group_object_dispose(struct group *g)
{
    CHECK(!g->driven || atomic_load(&g->base.closed));
    group_data_destroy(&g->now.data);
    match_destroy(&g->match);
    void *const all[] = {g->cells,
                         g->restart.words,
                         g->now.notices,
                         g->wire.received_at,
                         g->inquiry.entries,
                         g->remote.found,
                         g->remote.entries,
                         g->membership.entries,
                         g->shared.outcome_ranks,
                         g->shared.outcome_shares,
                         g->drain.counts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* The calls of the application. */

static int group_object_enter_open(pcoll_group *p)
{
    int rc = fail_if_null_as("group", p) ?: user_object_enter_open(&p->base);
    if (rc == PCOLL_OK && p->base.incomplete)
        return user_object_leave(&p->base, outage_error(p->base.communicator->outage));
    return rc;
}

int pcoll_group_start(pcoll_group *p, const void *send)
{
    struct group *g = &p->group;
    int rc = fail_if_null(send) ?: group_object_enter_open(p);
    if (rc != PCOLL_OK)
        return rc;
    if (p->waiting)
        rc = fail(PCOLL_ESTATE, "started already: wait for the round first");
    else if (atomic_load(&g->shared.wants_away))
        rc = fail(PCOLL_ESTATE, "this rank has left the groups: rejoin first");
    if (rc != PCOLL_OK)
        return user_object_leave(&p->base, rc);
    char *input = g->window->memory + g->place.input_at;
    if (send != input)
        memcpy(input, send, g->place.count * g->place.element);
    p->waiting = true;
    atomic_fetch_add(&g->shared.started, 1);
    communicator_notify(p->base.communicator, &g->base);
    return user_object_leave(&p->base, PCOLL_OK);
}

static bool group_object_round_complete(void *arg)
{
    pcoll_group *p = arg;
    struct group *g = &p->group;
    return atomic_load(&g->shared.finished) >= atomic_load(&g->shared.started) ||
           atomic_load(&p->base.communicator->failure) || p->base.incomplete;
}

int pcoll_group_wait(pcoll_group *p, int64_t timeout_us, void *receive,
                     pcoll_group_round *round)
{
    struct group *g = &p->group;
    int rc = fail_if_null(receive, round) ?: group_object_enter_open(p);
    if (rc != PCOLL_OK)
        return rc;
    if (!p->waiting)
        return user_object_leave(
            &p->base, fail(PCOLL_ESTATE, "not started: there is nothing to wait for"));
    rc = progress_wait(p->base.communicator->progress, group_object_round_complete, p,
                       timeout_us)
             ?: communicator_check(p->base.communicator);
    if (rc == PCOLL_OK && p->base.incomplete)
        rc = outage_error(p->base.communicator->outage);
    if (rc != PCOLL_OK)
        return user_object_leave(&p->base, rc);
    CHECK(atomic_load(&g->shared.finished) == atomic_load(&g->shared.started));
    *round = g->shared.outcome;
    const char *from =
        round->is_void ? g->window->memory + g->place.input_at : g->now.data.landing;
    if (receive != from)
        memcpy(receive, from, g->place.count * g->place.element);
    p->waiting = false;
    return user_object_leave(&p->base, PCOLL_OK);
}

/* The end of a wait. It does not take the object: no thread that reads may make it fail. */
int pcoll_group_members(pcoll_group *p, uint32_t *ranks, double *shares)
{
    struct group *g = &p->group;
    int rc = fail_if_null_as("group, ranks, shares", p, ranks, shares);
    if (rc != PCOLL_OK)
        return rc;
    if (p->base.ended)
        return fail(PCOLL_ESTATE, "the grouped allreduce has been freed");
    memcpy(ranks, g->shared.outcome_ranks, g->shared.outcome.members * sizeof *ranks);
    memcpy(shares, g->shared.outcome_shares,
           g->shared.outcome.members * sizeof *shares);
    return PCOLL_OK;
}

/* Set what the driver does next. The driver need not see every one of several changes. */
static int group_object_set_away(pcoll_group *p, bool away)
{
    struct group *g = &p->group;
    int rc = group_object_enter_open(p);
    if (rc != PCOLL_OK)
        return rc;
    if (atomic_exchange(&g->shared.wants_away, away) != away)
        communicator_notify(p->base.communicator, &g->base);
    return user_object_leave(&p->base, PCOLL_OK);
}

int pcoll_group_leave(pcoll_group *p)
{
    return group_object_set_away(p, true);
}

int pcoll_group_rejoin(pcoll_group *p)
{
    return group_object_set_away(p, false);
}

int pcoll_group_look(pcoll_group *p, uint64_t *round, int32_t *away, uint8_t *statuses)
{
    struct group *g = &p->group;
    int rc = fail_if_null_as("group, round, away, statuses", p, round, away, statuses)
                 ?: user_object_enter(&p->base);
    if (rc != PCOLL_OK)
        return rc;
    *round = atomic_load(&g->shared.shown_round);
    *away = atomic_load(&g->shared.wants_away);
    progress_lock(p->base.communicator->progress);
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        statuses[r] = (uint8_t)g->membership.entries[r].status;
    if (atomic_load(&g->shared.wants_away)) /* The driver may not know that yet. */
        statuses[g->window->rank] = MEMBER_AWAY;
    progress_unlock(p->base.communicator->progress);
    return user_object_leave(&p->base, rc);
}

int pcoll_group_set_bandwidth(pcoll_group *p, double bandwidth)
{
    struct group *g = &p->group;
    int rc = group_object_enter_open(p);
    if (rc != PCOLL_OK)
        return rc;
    if (!(bandwidth > 0) || !isfinite(bandwidth))
        return user_object_leave(
            &p->base, fail(PCOLL_EINVAL, "bandwidth: expected a number above 0, got %g",
                           bandwidth));
    progress_lock(p->base.communicator->progress);
    group_round_set_bandwidth(g, bandwidth);
    progress_unlock(p->base.communicator->progress);
    return user_object_leave(&p->base, PCOLL_OK);
}

int pcoll_group_get_stats(pcoll_group *p, pcoll_group_stats *stats)
{
    struct group *g = &p->group;
    int rc = fail_if_null_as("group, stats", p, stats) ?: user_object_enter(&p->base);
    if (rc != PCOLL_OK)
        return rc;
    progress_lock(p->base.communicator->progress);
    *stats = g->shared.stats;
    progress_unlock(p->base.communicator->progress);
    return user_object_leave(&p->base, rc);
}

int pcoll_group_get_shape(pcoll_group *p, pcoll_group_shape *shape)
{
    struct group *g = &p->group;
    int rc = fail_if_null_as("group, shape", p, shape) ?: user_object_enter(&p->base);
    if (rc != PCOLL_OK)
        return rc;
    *shape = (pcoll_group_shape){
        .axes = g->grid.axes,
        .keys = g->dynamic ? PCOLL_KEYS_DYNAMIC : PCOLL_KEYS_STATIC,
        .timeout_us = g->options.timeout_us,
        .window_us = g->options.window_us,
        .bytes = g->place.bytes + group_data_bytes(&g->now.data),
    };
    memcpy(shape->side, g->grid.side, g->grid.axes * sizeof *shape->side);
    return user_object_leave(&p->base, rc);
}

/* Stall warnings: what a grouped allreduce waits for. */

/* Add a rank to a list that begins with `what`. */
static void group_object_list(struct text *t, const char *what, uint32_t rank)
{
    text_add(t, "%s %u", t->items++ ? "," : what, rank);
}

static void group_object_describe_round(struct text *t, const struct group_round *now)
{
    const struct group_data *r = &now->data;
    text_add(t, " in a group of %u led by rank %u", r->group.members, now->name.leader);
    if (now->contribution == CONTRIBUTION_OPEN)
        text_add(t, ", not started here");
    for (int part = 0; part < 2; part++, t->items = 0)
        for (uint32_t i = 0; i < r->group.members; i++)
            if (i != r->group.position && group_data_waits_for(r, i, part))
                group_object_list(
                    t, part ? ": no part yet of rank" : ": no input yet of rank",
                    r->group.rank[i]);
    if (now->marked)
        text_add(t, ": done here, the others have not all said so");
}

static void group_object_describe_matching(struct text *t, const struct group *g)
{
    text_add(t, " looks for its group");
    if (g->match.state == MATCH_FOLLOWING)
        text_add(t, ", waits for the list of rank %u", g->match.leader);
    if (g->dynamic)
        text_add(t, "; %u of %u ranks have come to this round", g->inquiry.counted,
                 membership_count(&g->membership, g->round));
    for (uint32_t r = 0; !g->dynamic && r < g->membership.ranks; r++)
        if (group_matching_is_on_line(g, r))
            group_object_list(t, "; expected: rank", r);
}

static void group_object_describe(struct text *t, const struct group *g)
{
    text_add(t, "round %" PRIu64 ":", g->round);
    if (g->phase == PHASE_ROUND)
        group_object_describe_round(t, &g->now);
    else if (g->phase == PHASE_MATCHING)
        group_object_describe_matching(t, g);
    else if (g->phase == PHASE_ASKING)
        text_add(t, " back again, asks the others where they are");
    else if (g->phase == PHASE_AWAY)
        text_add(t, " this rank has left");
    t->items = 0;
    for (uint32_t r = 0; r < g->membership.ranks; r++)
        if (g->membership.entries[r].status == MEMBER_SUSPECT)
            group_object_list(t, "; suspected: rank", r);
}

int pcoll_group_pending(pcoll_group *p, char *text, uint64_t capacity)
{
    struct group *g = &p->group;
    int rc = fail_if_null_as("group, text", p, text) ?: user_object_enter(&p->base);
    if (rc != PCOLL_OK)
        return rc;
    struct text t = {.at = text, .left = capacity};
    progress_lock(p->base.communicator->progress);
    if (capacity)
        group_object_describe(&t, g);
    progress_unlock(p->base.communicator->progress);
    return user_object_leave(&p->base, rc);
}

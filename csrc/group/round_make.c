/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending rounds: memory and schedules. */
#include <stdlib.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "group/round.h"

#include "base/check.h"

/* Elements that a processor's second cache holds twice; between nodes, as much as keeps
 * a link busy. */
enum { NEAR_BYTES = 1 << 18, FAR_BYTES = 1 << 20, LARGEST_SHIFT = 24 };

static bool group_data_some_far(const struct group_data *r)
{
    for (uint32_t i = 0; i < r->window->size; i++)
        if (window_is_far(r->window, i))
            return true;
    return false;
}

static size_t group_data_fetched_bytes(const struct group_data *r)
{
    size_t slots = group_data_some_far(r) ? 1 + 2 * (size_t)r->max_members : 1;
    return slots * r->piece * r->place.element;
}

/* Two pieces of each member's input, or its part, which may be a large one. */
static size_t group_data_max_fetches(const struct group_data *r)
{
    return 3 * (size_t)r->max_members + (r->place.bytes >> LARGEST_SHIFT) + 1;
}

static size_t group_data_vector_bytes(const struct group_data *r)
{
    return r->place.count * r->place.element;
}

/* What a get may write to, as far as it is not there. */
static int group_data_make_landing(struct group_data *r)
{
    if (!r->landing)
        r->landing = malloc(group_data_vector_bytes(r) + 1);
    r->fetched = malloc(group_data_fetched_bytes(r));
    r->max_fetches = group_data_max_fetches(r);
    r->fetches = malloc(r->max_fetches * sizeof *r->fetches);
    r->under_way = 0;
    return r->landing && r->fetched && r->fetches
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a group's round of %zu bytes",
                      group_data_vector_bytes(r));
}

size_t group_data_bytes(const struct group_data *r)
{
    CHECK(r->piece && r->held);
    return group_data_vector_bytes(r) + group_data_fetched_bytes(r) +
           3 * r->piece * r->held;
}

static int group_data_make_members(struct group_data *r)
{
    size_t most = r->max_members;
    r->group.rank = calloc(most, sizeof *r->group.rank);
    r->group.share = calloc(most, sizeof *r->group.share);
    r->group.bound = calloc(most + 1, sizeof *r->group.bound);
    r->empty = calloc(most, sizeof *r->empty);
    r->contributes = calloc(most, sizeof *r->contributes);
    r->known = calloc(most, sizeof *r->known);
    r->scratch = calloc(3 * most, sizeof *r->scratch);
    r->input_there = calloc(most, sizeof *r->input_there);
    r->part_done = calloc(most, sizeof *r->part_done);
    r->meter.begun = calloc(most, sizeof *r->meter.begun);
    r->meter.rate = calloc(most, sizeof *r->meter.rate);
    return r->group.rank && r->group.share && r->group.bound && r->empty &&
                   r->contributes && r->known && r->scratch && r->input_there &&
                   r->part_done && r->meter.begun && r->meter.rate
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a group of %u", r->max_members);
}

int group_data_init(struct group_data *r)
{
    CHECK(r->window && r->max_members && r->max_members <= r->window->size);
    const struct dtype *held = r->dtype->held ? r->dtype->held : r->dtype;
    r->held = held->size;
    r->add = held->reduce[PCOLL_SUM];
    r->piece = (group_data_some_far(r) ? FAR_BYTES : NEAR_BYTES) / r->held;
    for (int i = 0; i < 2; i++)
        r->sums[i] = malloc(r->piece * r->held);
    r->widened = malloc(r->piece * r->held);
    if (!r->sums[0] || !r->sums[1] || !r->widened)
        return fail(PCOLL_ENOMEM, "no memory for a group's sums");
    int rc = group_data_make_members(r);
    return rc == PCOLL_OK ? group_data_make_landing(r) : rc;
}

void group_data_destroy(struct group_data *r)
{
    void *const all[] = {r->group.rank,  r->group.share, r->group.bound, r->empty,
                         r->contributes, r->known,       r->scratch,     r->input_there,
                         r->part_done,   r->sums[0],     r->sums[1],     r->widened,
                         r->landing,     r->fetched,     r->fetches,     r->meter.begun,
                         r->meter.rate};
    CHECK(!r->under_way);
    engine_destroy(&r->engine);
    if (r->sched)
        sched_free(&r->sched);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    *r = (struct group_data){.window = NULL};
}

/* Which operations the members' notices complete. */
static void group_data_find_events(struct group_data *r)
{
    for (uint32_t j = 0; j < r->group.members; j++)
        r->input_there[j] = r->part_done[j] = -1;
    for (uint32_t id = 0; id < r->sched->count; id++) {
        const struct op *op = &r->sched->ops[id];
        if (op->kind != OP_RECV || op->class != OP_CONTROL)
            continue;
        int *events = op->edge == BUTTERFLY_INPUT ? r->input_there : r->part_done;
        events[op->peer] = (int)id;
    }
}

static uint32_t group_data_own_pieces(const struct group_data *r)
{
    const uint64_t *bound = r->group.bound + r->group.position;
    return (uint32_t)((bound[1] - bound[0] + r->piece - 1) / r->piece);
}

int group_data_prepare(struct group_data *r)
{
    struct group_members *c = &r->group;
    CHECK(!r->sched && !r->under_way);
    CHECK(c->position < c->members && c->members <= r->max_members);
    CHECK(c->bound[c->members] == r->place.count);
    for (uint32_t j = 0; j < c->members; j++) {
        r->empty[j] = c->bound[j] == c->bound[j + 1];
        r->contributes[j] = r->known[j] = false;
        r->meter.begun[j] = 0;
        r->meter.rate[j] = 0;
    }
    r->meter.began = 0;
    r->meter.bytes = 0;
    r->meter.download = 0;
    r->active = 0;
    struct butterfly_plan plan = {.members = c->members,
                                  .position = c->position,
                                  .pieces = group_data_own_pieces(r),
                                  .empty = r->empty};
    r->sched = sched_create();
    if (!r->sched)
        return fail(PCOLL_ENOMEM, "no memory for a group's schedule");
    r->start = sched_event(r->sched, "start");
    sched_end(r->sched, build_butterfly(r->sched, &plan, r->start, r->scratch));
    int rc = sched_commit(r->sched);
    if (rc == PCOLL_OK)
        rc = engine_init(&r->engine, r->sched);
    if (rc != PCOLL_OK)
        return rc;
    group_data_find_events(r);
    engine_release(&r->engine);
    return PCOLL_OK;
}

/* What MPI may still write to goes into a record of its own. The landing of a round
 * to which this rank gave nothing is that of an earlier one: it stays. */
static int group_data_abandon(struct group_data *r)
{
    struct group_abandoned *a = malloc(sizeof *a);
    if (!a)
        return fail(PCOLL_ENOMEM, "no memory for a void round");
    *a = (struct group_abandoned){.fetches = r->fetches,
                                  .count = r->under_way,
                                  .landing =
                                      group_data_contributes(r) ? r->landing : NULL,
                                  .fetched = r->fetched,
                                  .next = r->abandoned};
    r->abandoned = a;
    if (group_data_contributes(r))
        r->landing = NULL;
    return group_data_make_landing(r);
}

int group_data_end(struct group_data *r)
{
    CHECK(r->sched);
    engine_destroy(&r->engine);
    sched_free(&r->sched);
    return r->under_way ? group_data_abandon(r) : PCOLL_OK;
}

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

static bool some_are_far(const struct round *r)
{
    for (uint32_t i = 0; i < r->window->size; i++)
        if (window_is_far(r->window, i))
            return true;
    return false;
}

static size_t fetched_bytes(const struct round *r)
{
    size_t slots = some_are_far(r) ? 1 + 2 * (size_t)r->max_members : 1;
    return slots * r->piece * r->place.element;
}

/* Two pieces of each member's input, or its part, which may be a large one. */
static size_t max_fetches(const struct round *r)
{
    return 3 * (size_t)r->max_members + (r->place.bytes >> LARGEST_SHIFT) + 1;
}

static size_t data_bytes(const struct round *r)
{
    return r->place.count * r->place.element;
}

/* What a get may write to, as far as it is not there. */
static int make_landing(struct round *r)
{
    if (!r->landing)
        r->landing = malloc(data_bytes(r) + 1);
    r->fetched = malloc(fetched_bytes(r));
    r->max_fetches = max_fetches(r);
    r->fetches = malloc(r->max_fetches * sizeof *r->fetches);
    r->under_way = 0;
    return r->landing && r->fetched && r->fetches
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a group's round of %zu bytes",
                      data_bytes(r));
}

size_t round_bytes(const struct round *r)
{
    CHECK(r->piece && r->held);
    return data_bytes(r) + fetched_bytes(r) + 3 * r->piece * r->held;
}

static int make_members(struct round *r)
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

int round_init(struct round *r)
{
    CHECK(r->window && r->max_members && r->max_members <= r->window->size);
    const struct dtype *held = r->dtype->held ? r->dtype->held : r->dtype;
    r->held = held->size;
    r->add = held->reduce[PCOLL_SUM];
    r->piece = (some_are_far(r) ? FAR_BYTES : NEAR_BYTES) / r->held;
    for (int i = 0; i < 2; i++)
        r->sums[i] = malloc(r->piece * r->held);
    r->widened = malloc(r->piece * r->held);
    if (!r->sums[0] || !r->sums[1] || !r->widened)
        return fail(PCOLL_ENOMEM, "no memory for a group's sums");
    int rc = make_members(r);
    return rc == PCOLL_OK ? make_landing(r) : rc;
}

void round_destroy(struct round *r)
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
    *r = (struct round){.window = NULL};
}

/* Which operations the members' notices complete. */
static void find_events(struct round *r)
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

static uint32_t own_pieces(const struct round *r)
{
    const uint64_t *bound = r->group.bound + r->group.position;
    return (uint32_t)((bound[1] - bound[0] + r->piece - 1) / r->piece);
}

int round_prepare(struct round *r)
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
                                  .pieces = own_pieces(r),
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
    find_events(r);
    engine_release(&r->engine);
    return PCOLL_OK;
}

/* What MPI may still write to goes into a record of its own. The landing of a round
 * to which this rank gave nothing is that of an earlier one: it stays. */
static int abandon(struct round *r)
{
    struct abandoned *a = malloc(sizeof *a);
    if (!a)
        return fail(PCOLL_ENOMEM, "no memory for a void round");
    *a = (struct abandoned){.fetches = r->fetches,
                            .count = r->under_way,
                            .landing = round_contributes(r) ? r->landing : NULL,
                            .fetched = r->fetched,
                            .next = r->abandoned};
    r->abandoned = a;
    if (round_contributes(r))
        r->landing = NULL;
    return make_landing(r);
}

int round_end(struct round *r)
{
    CHECK(r->sched);
    engine_destroy(&r->engine);
    sched_free(&r->sched);
    return r->under_way ? abandon(r) : PCOLL_OK;
}

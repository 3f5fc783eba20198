/* SPDX-License-Identifier: Apache-2.0 */
/* The data of a group's round; see group_agent.h. */

#include "group/group_agent.h"

#include <stdlib.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "base/clock.h"
#include "kernels/reduce.h"

enum { LARGEST_GET = 1 << 24 };

/* Return the first element of a piece of this rank's part, and the piece's length. */
static size_t group_data_piece_begin(const struct group_data *r, uint32_t piece)
{
    return r->group.bound[r->group.position] + piece * r->piece;
}

static size_t group_data_piece_length(const struct group_data *r, uint32_t piece)
{
    size_t left =
        r->group.bound[r->group.position + 1] - group_data_piece_begin(r, piece);
    return left < r->piece ? left : r->piece;
}

static bool group_data_is_far(const struct group_data *r, uint32_t member)
{
    return window_is_far(r->window, r->group.rank[member]);
}

static char *group_data_in_window(const struct group_data *r, size_t at, size_t element)
{
    return r->window->memory + at + element * r->place.element;
}

/* Return where a piece is fetched to: each far member has two slots, near ones the first. */
static char *group_data_room_of(const struct group_data *r, uint32_t member,
                                uint32_t piece)
{
    size_t slot = group_data_is_far(r, member) ? 1 + 2 * (size_t)member + piece % 2 : 0;
    return r->fetched + slot * r->piece * r->place.element;
}

/* Measuring the speed. */

enum { MEASURABLE_BYTES = 1 << 16 };

static double group_data_per_second(uint64_t bytes, int64_t ns)
{
    return bytes < MEASURABLE_BYTES || ns <= 0 ? 0 : (double)bytes * 1e9 / (double)ns;
}

/* A piece of a far member's input has arrived. While several members send, the bytes of all so far
 * over the time so far are the least that this rank's link can receive. */
static void group_data_meter_end(struct group_data *r, const struct op *op,
                                 size_t bytes)
{
    struct group_meter *m = &r->meter;
    uint32_t member = (uint32_t)op->peer;
    int64_t now = clock_ns();
    m->bytes += bytes;
    double rate = group_data_per_second(m->bytes, now - m->began);
    if (rate > m->download)
        m->download = rate;
    uint64_t from_member = (op->slice.begin + 1) * r->piece * r->place.element;
    r->state[member].rate =
        group_data_per_second(from_member, now - r->state[member].begun);
}

/* Gets. */

/* Fetch for an operation, in gets of limited size. Gets from far members stay under way. */
static int group_data_begin_get(struct group_data *r, int op, uint32_t member,
                                size_t offset, char *into, size_t bytes)
{
    struct window *w = r->window;
    uint32_t peer = r->group.rank[member];
    int rc = PCOLL_OK;
    r->bytes_fetched += bytes;
    for (size_t done = 0; done < bytes && rc == PCOLL_OK;) {
        size_t n = bytes - done < LARGEST_GET ? bytes - done : LARGEST_GET;
        CHECK(offset + bytes <= r->place.bytes && r->under_way < r->max_fetches);
        struct group_fetch *f = &r->fetches[r->under_way];
        f->op = op;
        f->bytes = n;
        if (group_data_is_far(r, member))
            rc = w->ops->begin_get(w, peer, offset + done, into + done, n, &f->get);
        else
            rc = w->ops->access(w, WINDOW_GET, peer, offset + done, NULL, into + done,
                                PCOLL_UINT8, n)
                     ?: w->ops->complete(w, peer);
        r->under_way += rc == PCOLL_OK && group_data_is_far(r, member);
        done += n;
        if (rc == PCOLL_OK && done < bytes)
            rc = group_round_heartbeat(r->owner);
    }
    return rc;
}

static bool group_data_has_fetches(const struct group_data *r, int op)
{
    for (uint32_t i = 0; i < r->under_way; i++)
        if (r->fetches[i].op == op)
            return true;
    return false;
}

/* Remove the complete fetches from a list, which is that of the round or an abandoned one. */
static int group_data_poll_list(struct group_data *r, struct group_fetch *fetches,
                                uint32_t *count)
{
    for (uint32_t i = 0; i < *count;) {
        bool over;
        struct group_fetch f = fetches[i];
        int rc = r->window->ops->over(r->window, &fetches[i].get, &over);
        if (rc != PCOLL_OK)
            return rc;
        if (!over) {
            i++;
            continue;
        }
        fetches[i] = fetches[--*count];
        if (fetches != r->fetches)
            continue;
        if (r->sched->ops[f.op].edge == BUTTERFLY_INPUT)
            group_data_meter_end(r, &r->sched->ops[f.op], f.bytes);
        if (!group_data_has_fetches(r, f.op))
            engine_complete(&r->engine, r->engine.current, f.op);
    }
    return PCOLL_OK;
}

int group_data_poll(struct group_data *r, bool *ended)
{
    uint32_t before = r->under_way;
    int rc = PCOLL_OK;
    CHECK(!r->under_way || r->sched);
    for (struct group_abandoned *a, **at = &r->abandoned;
         rc == PCOLL_OK && (a = *at);) {
        rc = group_data_poll_list(r, a->fetches, &a->count);
        if (a->count) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        free(a->fetches);
        free(a->landing);
        free(a->fetched);
        free(a);
    }
    rc = rc ?: group_data_poll_list(r, r->fetches, &r->under_way);
    *ended = r->under_way < before;
    return rc;
}

/* Operations of the butterfly. */

/* Fetch a piece of a far member's input, or a member's part of the result. */
static int group_data_fetch(struct group_data *r, int id, const struct op *op)
{
    uint32_t member = (uint32_t)op->peer, piece = op->slice.begin;
    size_t first = r->group.bound[member] * r->place.element;
    size_t part = r->group.bound[member + 1] * r->place.element - first;
    if (op->edge != BUTTERFLY_INPUT)
        return group_data_contributes(r)
                   ? group_data_begin_get(r, id, member, r->place.part_at + first,
                                          r->landing + first, part)
                   : PCOLL_OK;
    if (!group_data_is_far(r, member) || !r->state[member].contributes)
        return PCOLL_OK;
    int64_t now = clock_ns();
    r->meter.began = r->meter.began ? r->meter.began : now;
    r->state[member].begun = r->state[member].begun ? r->state[member].begun : now;
    size_t offset =
        r->place.input_at + group_data_piece_begin(r, piece) * r->place.element;
    return group_data_begin_get(r, id, member, offset,
                                group_data_room_of(r, member, piece),
                                group_data_piece_length(r, piece) * r->place.element);
}

/* Add a member's piece to the sum, which the first one starts. Fetch that of a near member now. */
static int group_data_reduce(struct group_data *r, const struct op *op)
{
    uint32_t member = (uint32_t)op->peer, piece = op->slice.begin;
    if (!r->state[member].contributes)
        return PCOLL_OK;
    bool own = member == r->group.position, first = true;
    size_t begin = group_data_piece_begin(r, piece),
           n = group_data_piece_length(r, piece), bytes = n * r->place.element;
    char *elements = own ? group_data_in_window(r, r->place.input_at, begin)
                         : group_data_room_of(r, member, piece);
    int rc = own || group_data_is_far(r, member)
                 ? PCOLL_OK
                 : group_data_begin_get(r, -1, member,
                                        r->place.input_at + begin * r->place.element,
                                        elements, bytes);
    for (uint32_t j = 0; j < member; j++)
        first &= !r->state[j].contributes;
    char *sum = r->sums[piece % 2], *into = first ? sum : r->widened;
    if (rc != PCOLL_OK)
        return rc;
    if (r->dtype->held)
        r->dtype->widen(into, elements, n);
    else if (first)
        memcpy(sum, elements, bytes);
    if (!first)
        r->add(sum, sum, r->dtype->held ? into : elements, n);
    return PCOLL_OK;
}

static int group_data_average(struct group_data *r, const struct op *op)
{
    uint32_t piece = op->slice.begin;
    size_t begin = group_data_piece_begin(r, piece),
           n = group_data_piece_length(r, piece);
    CHECK(r->active <= r->group.members);
    char *sum = r->sums[piece % 2],
         *part = group_data_in_window(r, r->place.part_at, begin);
    if (!r->active)
        return PCOLL_OK;
    if (r->held == sizeof(double))
        divide_float64((double *)(void *)sum, r->active, n);
    else
        divide_float32((float *)(void *)sum, (float)r->active, n);
    if (r->dtype->held)
        r->dtype->narrow(part, sum, n);
    else
        memcpy(part, sum, n * r->held);
    if (group_data_contributes(r))
        memcpy(r->landing + begin * r->place.element, part, n * r->place.element);
    MOMENT("part reduced");
    return r->window->ops->sync(r->window);
}

static int group_data_issue(struct group_data *r, int id)
{
    const struct op *op = &r->sched->ops[id];
    if (op->kind == OP_SEND)
        return group_round_notify(r->owner, (uint32_t)op->peer, op->edge);
    if (op->kind == OP_RECV)
        return group_data_fetch(r, id, op);
    if (op->kind == OP_REDUCE)
        return group_data_reduce(r, op);
    if (op->kind == OP_COPY)
        return group_data_average(r, op);
    return fail(PCOLL_EPROTOCOL, "a butterfly does not %s", op->label);
}

int group_data_run(struct group_data *r)
{
    CHECK(r->sched);
    for (int id; r->sched && (id = engine_next(&r->engine)) >= 0;) {
        int rc = group_data_issue(r, id) ?: group_round_heartbeat(r->owner);
        if (rc != PCOLL_OK)
            return rc;
        if (!group_data_has_fetches(r, id))
            engine_complete(&r->engine, r->engine.current, id);
    }
    return PCOLL_OK;
}

/* Events. */

int group_data_start(struct group_data *r, bool own)
{
    CHECK(r->sched && !r->state[r->group.position].contributes);
    r->state[r->group.position].contributes = own;
    r->active += own;
    engine_complete(&r->engine, r->engine.current, r->start);
    return r->window->ops->sync(r->window);
}

void group_data_input(struct group_data *r, uint32_t member, bool contributes)
{
    CHECK(member < r->group.members);
    if (r->state[member].known)
        return;
    r->state[member].known = true;
    r->state[member].contributes = contributes;
    r->active += contributes;
    if (r->state[member].input_there >= 0)
        engine_complete(&r->engine, r->engine.current, r->state[member].input_there);
}

void group_data_part(struct group_data *r, uint32_t member)
{
    CHECK(member < r->group.members);
    if (r->state[member].part_done >= 0)
        engine_complete(&r->engine, r->engine.current, r->state[member].part_done);
}

bool group_data_waits_for(const struct group_data *r, uint32_t member, bool part)
{
    CHECK(member < r->group.members);
    int done = r->state[member].part_done;
    return part ? done >= 0 &&
                      engine_state(&r->engine, r->engine.current, done) != OP_DONE
                : r->state[member].input_there >= 0 && !r->state[member].known;
}

/* Memory and schedules. */

/* Bytes of a piece: near, what fits twice into a second-level cache; far, what fills a link. */
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

/* Allocate the memory that gets write to, where it is missing. */
static int group_data_make_landing(struct group_data *r)
{
    size_t vector = r->place.count * r->place.element;
    if (!r->landing)
        r->landing = malloc(vector + 1);
    r->fetched = malloc(group_data_fetched_bytes(r));
    /* Two pieces of each member's input, or its part, which may take several gets. */
    r->max_fetches = 3 * (size_t)r->max_members + (r->place.bytes >> LARGEST_SHIFT) + 1;
    r->fetches = malloc(r->max_fetches * sizeof *r->fetches);
    r->under_way = 0;
    return r->landing && r->fetched && r->fetches
               ? PCOLL_OK
               : fail(PCOLL_ENOMEM, "no memory for a group's round of %zu bytes",
                      vector);
}

size_t group_data_bytes(const struct group_data *r)
{
    CHECK(r->piece && r->held);
    return r->place.count * r->place.element + group_data_fetched_bytes(r) +
           3 * r->piece * r->held;
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
    size_t most = r->max_members;
    if (!r->sums[0] || !r->sums[1] || !r->widened ||
        !GROUP_ALLOCATE(r->group.rank, most) || !GROUP_ALLOCATE(r->group.share, most) ||
        !GROUP_ALLOCATE(r->group.bound, most + 1) || !GROUP_ALLOCATE(r->empty, most) ||
        !GROUP_ALLOCATE(r->state, most) || !GROUP_ALLOCATE(r->scratch, 3 * most))
        return fail(PCOLL_ENOMEM, "no memory for a group of %u", r->max_members);
    return group_data_make_landing(r);
}

void group_data_destroy(struct group_data *r)
{
    void *const all[] = {r->group.rank, r->group.share, r->group.bound, r->empty,
                         r->state,      r->scratch,     r->sums[0],     r->sums[1],
                         r->widened,    r->landing,     r->fetched,     r->fetches};
    CHECK(!r->under_way);
    engine_destroy(&r->engine);
    if (r->sched)
        sched_free(&r->sched);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    *r = (struct group_data){.window = NULL};
}

int group_data_prepare(struct group_data *r)
{
    struct group_members *c = &r->group;
    CHECK(!r->sched && !r->under_way);
    CHECK(c->position < c->members && c->members <= r->max_members);
    CHECK(c->bound[c->members] == r->place.count);
    for (uint32_t j = 0; j < c->members; j++) {
        r->empty[j] = c->bound[j] == c->bound[j + 1];
        r->state[j] = (struct group_member){.input_there = -1, .part_done = -1};
    }
    r->meter = (struct group_meter){.began = 0};
    r->active = 0;
    size_t own = c->bound[c->position + 1] - c->bound[c->position];
    struct butterfly_plan plan = {.members = c->members,
                                  .position = c->position,
                                  .pieces = (uint32_t)((own + r->piece - 1) / r->piece),
                                  .empty = r->empty};
    r->sched = sched_create();
    if (!r->sched)
        return fail(PCOLL_ENOMEM, "no memory for a group's schedule");
    r->start = sched_event(r->sched, "start");
    sched_end(r->sched, build_butterfly(r->sched, &plan, r->start, r->scratch));
    int rc = sched_commit(r->sched) ?: engine_init(&r->engine, r->sched);
    if (rc != PCOLL_OK)
        return rc;
    for (uint32_t id = 0; id < r->sched->count; id++) {
        const struct op *op = &r->sched->ops[id];
        if (op->kind == OP_RECV && op->class == OP_CONTROL) /* A notice completes it. */
            *(op->edge == BUTTERFLY_INPUT ? &r->state[op->peer].input_there
                                          : &r->state[op->peer].part_done) = (int)id;
    }
    engine_release(&r->engine);
    return PCOLL_OK;
}

/* Move memory that MPI may still write to into a separate record. The landing stays if this rank
 * has contributed nothing: it holds the result of an earlier round. */
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

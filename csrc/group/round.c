/* SPDX-License-Identifier: Apache-2.0 */
/* A butterfly on the members' windows; see round.h. */
#include "group/round.h"

#include <stdlib.h>
#include <string.h>

#include "algorithms/algorithms.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/moment.h"
#include "kernels/averaging.h"

enum { LARGEST_GET = 1 << 24 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Where a piece of the own part begins, and its length, in elements. */
static size_t piece_begin(const struct round *r, uint32_t piece)
{
    return r->group.bound[r->group.position] + piece * r->piece;
}

static size_t piece_length(const struct round *r, uint32_t piece)
{
    size_t end = r->group.bound[r->group.position + 1];
    return least(r->piece, end - piece_begin(r, piece));
}

static bool is_far(const struct round *r, uint32_t member)
{
    return window_is_far(r->window, r->group.rank[member]);
}

static char *in_window(const struct round *r, size_t at, size_t element)
{
    return r->window->memory + at + element * r->place.element;
}

/* Where a far member's pieces land; those of near ones pass through the first. */
static char *room_of(const struct round *r, uint32_t member, uint32_t piece)
{
    size_t slot = is_far(r, member) ? 1 + 2 * (size_t)member + piece % 2 : 0;
    return r->fetched + slot * r->piece * r->place.element;
}

/* How fast it goes. */

enum { MEASURABLE_BYTES = 1 << 16 };

static double per_second(uint64_t bytes, int64_t ns)
{
    return bytes < MEASURABLE_BYTES || ns <= 0 ? 0 : (double)bytes * 1e9 / (double)ns;
}

static void meter_begin(struct round *r, uint32_t member)
{
    int64_t now = clock_ns();
    if (!r->meter.began)
        r->meter.began = now;
    if (!r->meter.begun[member])
        r->meter.begun[member] = now;
}

/* A piece of a far member's input has come. While several come at once, the sum of all
 * so far over the time so far is what the own link can take at least. */
static void meter_end(struct round *r, const struct op *op, size_t bytes)
{
    struct meter *m = &r->meter;
    uint32_t member = (uint32_t)op->peer;
    int64_t now = clock_ns();
    m->bytes += bytes;
    double rate = per_second(m->bytes, now - m->began);
    if (rate > m->download)
        m->download = rate;
    uint64_t from_member = (op->slice.begin + 1) * r->piece * r->place.element;
    m->rate[member] = per_second(from_member, now - m->begun[member]);
}

/* Gets. */

/* For an operation, in as many gets as it takes; *over: nothing is under way. */
static int begin_get(struct round *r, int op, uint32_t member, size_t offset,
                     char *into, size_t bytes)
{
    uint32_t peer = r->group.rank[member];
    int rc = PCOLL_OK;
    r->bytes_fetched += bytes;
    for (size_t done = 0; done < bytes && rc == PCOLL_OK;) {
        size_t n = least(bytes - done, LARGEST_GET);
        CHECK(offset + bytes <= r->place.bytes && r->under_way < r->max_fetches);
        struct fetch *f = &r->fetches[r->under_way];
        f->op = op;
        f->bytes = n;
        rc = r->window->ops->begin_get(r->window, peer, offset + done, into + done, n,
                                       &f->get);
        r->under_way += rc == PCOLL_OK && is_far(r, member);
        done += n;
        if (rc == PCOLL_OK)
            rc = r->heartbeat(r->arg);
    }
    return rc;
}

static bool has_fetches(const struct round *r, int op)
{
    for (uint32_t i = 0; i < r->under_way; i++)
        if (r->fetches[i].op == op)
            return true;
    return false;
}

/* One that is over leaves the list; its operation is -1 if there is none. */
static int take_over(struct window *w, struct fetch *fetches, uint32_t *count,
                     struct fetch *taken)
{
    taken->op = -1;
    for (uint32_t i = 0; i < *count; i++) {
        bool over;
        int rc = w->ops->over(w, &fetches[i].get, &over);
        if (rc != PCOLL_OK)
            return rc;
        if (!over)
            continue;
        *taken = fetches[i];
        fetches[i] = fetches[--*count];
        return PCOLL_OK;
    }
    return PCOLL_OK;
}

static int poll_abandoned(struct round *r)
{
    for (struct abandoned **at = &r->abandoned; *at;) {
        struct abandoned *a = *at;
        struct fetch over;
        int rc;
        do
            rc = take_over(r->window, a->fetches, &a->count, &over);
        while (rc == PCOLL_OK && over.op >= 0);
        if (rc != PCOLL_OK)
            return rc;
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
    return PCOLL_OK;
}

int round_poll(struct round *r, bool *ended)
{
    int rc = poll_abandoned(r);
    CHECK(!r->under_way || r->sched);
    *ended = false;
    while (rc == PCOLL_OK && r->under_way) {
        struct fetch over;
        rc = take_over(r->window, r->fetches, &r->under_way, &over);
        if (rc != PCOLL_OK || over.op < 0)
            break;
        *ended = true;
        const struct op *op = &r->sched->ops[over.op];
        if (op->edge == BUTTERFLY_INPUT)
            meter_end(r, op, over.bytes);
        if (!has_fetches(r, over.op))
            engine_complete(&r->engine, r->engine.current, over.op);
    }
    return rc;
}

/* The operations. */

static int fetch_input(struct round *r, int id, const struct op *op)
{
    uint32_t member = (uint32_t)op->peer, piece = op->slice.begin;
    if (!is_far(r, member) || !r->contributes[member])
        return PCOLL_OK;
    size_t offset = r->place.input_at + piece_begin(r, piece) * r->place.element;
    meter_begin(r, member);
    return begin_get(r, id, member, offset, room_of(r, member, piece),
                     piece_length(r, piece) * r->place.element);
}

static int fetch_part(struct round *r, int id, const struct op *op)
{
    uint32_t member = (uint32_t)op->peer;
    if (!round_contributes(r))
        return PCOLL_OK;
    size_t first = r->group.bound[member] * r->place.element;
    size_t bytes = r->group.bound[member + 1] * r->place.element - first;
    return begin_get(r, id, member, r->place.part_at + first, r->landing + first,
                     bytes);
}

/* This member's elements of a piece, as the application has them. */
static int elements_of(struct round *r, uint32_t member, uint32_t piece,
                       const char **elements)
{
    size_t begin = piece_begin(r, piece), element = r->place.element;
    *elements = member == r->group.position ? in_window(r, r->place.input_at, begin)
                                            : room_of(r, member, piece);
    if (member == r->group.position || is_far(r, member))
        return PCOLL_OK;
    r->bytes_fetched += piece_length(r, piece) * element;
    struct window_get get;
    return r->window->ops->begin_get(
        r->window, r->group.rank[member], r->place.input_at + begin * element,
        room_of(r, member, piece), piece_length(r, piece) * element, &get);
}

/* The first one that contributes makes the sum, the others are added. */
static int reduce(struct round *r, const struct op *op)
{
    uint32_t member = (uint32_t)op->peer, piece = op->slice.begin;
    const char *elements;
    if (!r->contributes[member])
        return PCOLL_OK;
    int rc = elements_of(r, member, piece, &elements);
    if (rc != PCOLL_OK)
        return rc;
    size_t n = piece_length(r, piece);
    bool first = true;
    for (uint32_t j = 0; j < member; j++)
        first &= !r->contributes[j];
    char *sum = r->sums[piece % 2], *into = first ? sum : r->widened;
    if (r->dtype->held)
        r->dtype->widen(into, elements, n);
    else if (first)
        memcpy(sum, elements, n * r->place.element);
    if (!first)
        r->add(sum, sum, r->dtype->held ? into : elements, n);
    return PCOLL_OK;
}

static int average(struct round *r, const struct op *op)
{
    uint32_t piece = op->slice.begin;
    size_t begin = piece_begin(r, piece), n = piece_length(r, piece);
    CHECK(r->active <= r->group.members);
    char *sum = r->sums[piece % 2], *part = in_window(r, r->place.part_at, begin);
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
    if (round_contributes(r))
        memcpy(r->landing + begin * r->place.element, part, n * r->place.element);
    MOMENT("part reduced");
    return r->window->ops->sync(r->window);
}

static int issue(struct round *r, int id)
{
    const struct op *op = &r->sched->ops[id];
    switch (op->kind) {
    case OP_SEND:
        return r->notice(r->arg, (uint32_t)op->peer, op->edge);
    case OP_RECV:
        return op->edge == BUTTERFLY_INPUT ? fetch_input(r, id, op)
                                           : fetch_part(r, id, op);
    case OP_REDUCE:
        return reduce(r, op);
    case OP_COPY:
        return average(r, op);
    case OP_NOP:
    case OP_TIMER:
    case OP_NATIVE:
        break;
    }
    return fail(PCOLL_EPROTOCOL, "a butterfly does not %s", op->label);
}

int round_run(struct round *r)
{
    CHECK(r->sched);
    for (int id; r->sched && (id = engine_next(&r->engine)) >= 0;) {
        int rc = issue(r, id);
        if (rc == PCOLL_OK)
            rc = r->heartbeat(r->arg);
        if (rc != PCOLL_OK)
            return rc;
        if (!has_fetches(r, id))
            engine_complete(&r->engine, r->engine.current, id);
    }
    return PCOLL_OK;
}

/* Its events. */

int round_start(struct round *r, bool own)
{
    CHECK(r->sched && !r->contributes[r->group.position]);
    r->contributes[r->group.position] = own;
    r->active += own;
    engine_complete(&r->engine, r->engine.current, r->start);
    return r->window->ops->sync(r->window);
}

static void complete_event(struct round *r, int op)
{
    if (op >= 0)
        engine_complete(&r->engine, r->engine.current, op);
}

static bool is_done(const struct round *r, int op)
{
    return engine_state(&r->engine, r->engine.current, op) == OP_DONE;
}

void round_input(struct round *r, uint32_t member, bool contributes)
{
    CHECK(member < r->group.members);
    if (r->known[member])
        return;
    r->known[member] = true;
    r->contributes[member] = contributes;
    r->active += contributes;
    complete_event(r, r->input_there[member]);
}

void round_part(struct round *r, uint32_t member)
{
    CHECK(member < r->group.members);
    complete_event(r, r->part_done[member]);
}

bool round_waits_for_input(const struct round *r, uint32_t member)
{
    CHECK(member < r->group.members);
    return r->input_there[member] >= 0 && !r->known[member];
}

bool round_waits_for_part(const struct round *r, uint32_t member)
{
    CHECK(member < r->group.members);
    return r->part_done[member] >= 0 && !is_done(r, r->part_done[member]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Building and checking a schedule. */
#include "schedule/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"

struct sched *sched_create(void)
{
    struct sched *s = calloc(1, sizeof *s);
    if (s)
        s->end = -1;
    return s;
}

void sched_free(struct sched **s)
{
    CHECK(s);
    if (!*s)
        return;
    free((*s)->ops);
    free((*s)->edges);
    free((*s)->successor);
    free(*s);
    *s = NULL;
}

/* Make room for one more item in an array. False, with s->failed set, without
 * memory. */
static bool grow(struct sched *s, void **items, uint32_t count, uint32_t *capacity,
                 size_t size)
{
    if (s->committed)
        s->failed = true;
    if (s->failed)
        return false;
    if (count < *capacity)
        return true;
    uint32_t wanted = *capacity ? 2 * *capacity : 32;
    void *bigger = realloc(*items, wanted * size);
    if (!bigger) {
        s->failed = true;
        return false;
    }
    *items = bigger;
    *capacity = wanted;
    return true;
}

static int add(struct sched *s, struct op op)
{
    CHECK(op.label);
    void *ops = s->ops;
    if (!grow(s, &ops, s->count, &s->capacity, sizeof *s->ops))
        return -1;
    s->ops = ops;
    s->ops[s->count] = op;
    return (int)s->count++;
}

int sched_send(struct sched *s, const char *label, int peer, int edge, int from)
{
    CHECK(peer >= 0 && edge >= 0);
    return add(s, (struct op){.kind = OP_SEND,
                              .label = label,
                              .peer = peer,
                              .edge = edge,
                              .out = -1,
                              .a = from,
                              .b = -1});
}

int sched_recv(struct sched *s, const char *label, int peer, int edge, int into)
{
    CHECK(peer >= 0);
    return add(s, (struct op){.kind = OP_RECV,
                              .label = label,
                              .peer = peer,
                              .edge = edge,
                              .out = into,
                              .a = -1,
                              .b = -1});
}

static int add_control(struct sched *s, enum op_kind kind, const char *label, int peer,
                       int edge)
{
    return add(s, (struct op){.kind = kind,
                              .class = OP_CONTROL,
                              .label = label,
                              .peer = peer,
                              .edge = edge,
                              .out = -1,
                              .a = -1,
                              .b = -1});
}

int sched_control_send(struct sched *s, const char *label, int peer, int edge)
{
    CHECK(peer >= 0 && edge >= 0);
    return add_control(s, OP_SEND, label, peer, edge);
}

int sched_control_recv(struct sched *s, const char *label, int peer, int edge)
{
    CHECK(peer >= 0 && edge >= 0);
    return add_control(s, OP_RECV, label, peer, edge);
}

static int add_local(struct sched *s, enum op_kind kind, enum op_class class,
                     const char *label, int out, int a, int b)
{
    return add(s, (struct op){.kind = kind,
                              .class = class,
                              .label = label,
                              .peer = -1,
                              .edge = -1,
                              .out = out,
                              .a = a,
                              .b = b});
}

int sched_reduce(struct sched *s, const char *label, int out, int a, int b)
{
    return add_local(s, OP_REDUCE, OP_PLAIN, label, out, a, b);
}

int sched_copy(struct sched *s, const char *label, int into, int from)
{
    return add_local(s, OP_COPY, OP_PLAIN, label, into, from, -1);
}

int sched_native(struct sched *s, const char *label, int part)
{
    CHECK(part >= -1);
    return add_local(s, OP_NATIVE, OP_PLAIN, label, part, -1, -1);
}

int sched_nop(struct sched *s, const char *label)
{
    return add_local(s, OP_NOP, OP_PLAIN, label, -1, -1, -1);
}

int sched_timer(struct sched *s, const char *label)
{
    return add_local(s, OP_TIMER, OP_PLAIN, label, -1, -1, -1);
}

int sched_event(struct sched *s, const char *label)
{
    return add_local(s, OP_NOP, OP_EVENT, label, -1, -1, -1);
}

static bool known(const struct sched *s, int op)
{
    return op >= 0 && (uint32_t)op < s->count;
}

void sched_from(struct sched *s, int op, int peer)
{
    CHECK(peer >= 0);
    if (known(s, op) && !s->committed)
        s->ops[op].peer = peer;
    else
        s->failed = true;
}

void sched_slice(struct sched *s, int op, struct slice slice)
{
    CHECK(slice.begin <= slice.end);
    if (known(s, op) && !s->committed)
        s->ops[op].slice = slice;
    else
        s->failed = true;
}

void sched_header(struct sched *s, int op, enum header_place place)
{
    CHECK(place <= HEADER_NONE);
    if (known(s, op) && !s->committed)
        s->ops[op].header = place;
    else
        s->failed = true;
}

void sched_after(struct sched *s, int op, int predecessor)
{
    CHECK(!s->committed);
    if (!known(s, op) || !known(s, predecessor)) {
        s->failed = true;
        return;
    }
    void *edges = s->edges;
    if (!grow(s, &edges, s->edge_count, &s->edge_capacity, sizeof *s->edges))
        return;
    s->edges = edges;
    s->edges[s->edge_count].from = (uint32_t)predecessor;
    s->edges[s->edge_count].to = (uint32_t)op;
    s->edge_count++;
    s->ops[op].preds++;
}

void sched_need(struct sched *s, int op, uint32_t k)
{
    CHECK(!s->committed);
    if (known(s, op) && !s->committed)
        s->ops[op].need = k;
    else
        s->failed = true;
}

void sched_end(struct sched *s, int op)
{
    CHECK(!s->committed);
    s->end = op;
}

/* Sort the edges by source into one array (counting sort). */
static int index_successors(struct sched *s)
{
    s->successor = calloc(s->edge_count ? s->edge_count : 1, sizeof *s->successor);
    if (!s->successor)
        return fail(PCOLL_ENOMEM, "no memory for a schedule of %u edges",
                    s->edge_count);
    for (uint32_t i = 0; i < s->edge_count; i++)
        s->ops[s->edges[i].from].successors++;
    uint32_t next = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        s->ops[i].first_successor = next;
        next += s->ops[i].successors;
        s->ops[i].successors = 0;
    }
    for (uint32_t i = 0; i < s->edge_count; i++) {
        struct op *from = &s->ops[s->edges[i].from];
        s->successor[from->first_successor + from->successors++] = s->edges[i].to;
    }
    return PCOLL_OK;
}

/* Report a cycle. Operations that Kahn's algorithm leaves over are on a cycle or follow
 * one. Each of them has a predecessor that is left over as well, so going back `count`
 * times ends on a cycle. `before` is scratch memory. */
static int report_cycle(const struct sched *s, const uint32_t *missing,
                        uint32_t *before)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->edge_count; i++)
        if (missing[s->edges[i].from])
            before[s->edges[i].to] = s->edges[i].from;
    while (!missing[at])
        at++;
    for (uint32_t steps = 0; steps < s->count; steps++)
        at = before[at];
    uint32_t by = before[at];
    return fail(PCOLL_EINVAL,
                "schedule: operation %u (%s) depends on itself, by way of operation %u "
                "(%s)",
                at, s->ops[at].label, by, s->ops[by].label);
}

/* Kahn's algorithm; every gate counts as n of n. */
uint32_t sched_order(const struct sched *s, uint32_t *order, uint32_t *missing)
{
    CHECK(s->successor);
    uint32_t head = 0, tail = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        missing[i] = s->ops[i].preds;
        if (!missing[i])
            order[tail++] = i;
    }
    while (head < tail) {
        const struct op *op = &s->ops[order[head++]];
        for (uint32_t i = 0; i < op->successors; i++) {
            uint32_t next = s->successor[op->first_successor + i];
            if (--missing[next] == 0)
                order[tail++] = next;
        }
    }
    return tail;
}

static int check_acyclic(const struct sched *s)
{
    uint32_t *missing = malloc(s->count * sizeof *missing);
    uint32_t *order = malloc(s->count * sizeof *order);
    int rc = PCOLL_OK;
    if (!missing || !order)
        rc = fail(PCOLL_ENOMEM, "no memory to check a schedule of %u operations",
                  s->count);
    else if (sched_order(s, order, missing) < s->count)
        rc = report_cycle(s, missing, order);
    free(missing);
    free(order);
    return rc;
}

static int check_op(const struct sched *s, uint32_t id)
{
    const struct op *op = &s->ops[id];
    bool never_issued =
        op->class == OP_EVENT || (op->class == OP_CONTROL && op->kind == OP_RECV);
    if (never_issued && op->preds)
        return fail(PCOLL_EINVAL,
                    "schedule: operation %u (%s) is completed from outside and cannot "
                    "have predecessors",
                    id, op->label);
    if (op->need > op->preds)
        return fail(PCOLL_EINVAL,
                    "schedule: operation %u (%s) needs %u of %u predecessors", id,
                    op->label, op->need, op->preds);
    if (op->slice.begin > op->slice.end || op->slice.end > op->slice.of)
        return fail(PCOLL_EINVAL,
                    "schedule: operation %u (%s) is about the slices %u to %u of %u",
                    id, op->label, op->slice.begin, op->slice.end, op->slice.of);
    return PCOLL_OK;
}

void sched_map_peers(struct sched *s, const uint32_t *map)
{
    CHECK(map);
    CHECK(!s->committed);
    for (uint32_t i = 0; i < s->count && !s->failed; i++)
        if (s->ops[i].peer >= 0)
            s->ops[i].peer = (int)map[s->ops[i].peer];
}

int sched_commit(struct sched *s)
{
    CHECK(s->count <= s->capacity);
    int rc;
    if (s->committed)
        return fail(PCOLL_ESTATE, "schedule: committed already");
    if (s->failed)
        return fail(
            PCOLL_EINVAL,
            "schedule: an operation that does not exist was named, or memory ran "
            "out while building");
    if (!known(s, s->end))
        return fail(PCOLL_EINVAL, "schedule: no operation ends the round");
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ops[i].need == 0)
            s->ops[i].need = s->ops[i].preds;
        if ((rc = check_op(s, i)) != PCOLL_OK)
            return rc;
    }
    if ((rc = index_successors(s)) != PCOLL_OK || (rc = check_acyclic(s)) != PCOLL_OK)
        return rc;
    s->committed = true;
    return PCOLL_OK;
}

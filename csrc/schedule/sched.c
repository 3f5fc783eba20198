/* SPDX-License-Identifier: Apache-2.0 */
/* Building, checking and printing schedules; see sched.h. */
#include "schedule/sched.h"

#include <inttypes.h>
#include <stdio.h>
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

bool sched_make_room(void *array, uint32_t count, uint32_t *capacity, size_t each)
{
    void *items;
    if (count < *capacity)
        return true;
    uint32_t wanted = *capacity ? 2 * *capacity : 32;
    memcpy(&items, array, sizeof items);
    if (!(items = realloc(items, wanted * each)))
        return false;
    memcpy(array, &items, sizeof items);
    *capacity = wanted;
    return true;
}

int sched_add(struct sched *s, struct op op)
{
    CHECK(op.label);
    s->failed = s->failed || s->committed ||
                !sched_make_room(&s->ops, s->count + 1, &s->capacity, sizeof *s->ops);
    if (s->failed)
        return -1;
    s->ops[s->count] = op;
    return (int)s->count++;
}

int sched_add_message(struct sched *s, enum op_kind kind, enum op_class class,
                      const char *label, int peer, int edge, int buffer)
{
    CHECK(peer >= 0 && (edge >= 0 || (kind == OP_RECV && class == OP_PLAIN)));
    return sched_add(s, (struct op){.kind = kind,
                                    .class = class,
                                    .label = label,
                                    .peer = peer,
                                    .edge = edge,
                                    .out = kind == OP_RECV ? buffer : -1,
                                    .a = kind == OP_SEND ? (int8_t)buffer : -1,
                                    .b = -1});
}

int sched_add_local(struct sched *s, enum op_kind kind, enum op_class class,
                    const char *label, int out, int a, int b)
{
    return sched_add(s, (struct op){.kind = kind,
                                    .class = class,
                                    .label = label,
                                    .peer = -1,
                                    .edge = -1,
                                    .out = out,
                                    .a = (int8_t)a,
                                    .b = (int8_t)b});
}

static bool sched_knows(const struct sched *s, int op)
{
    return op >= 0 && (uint32_t)op < s->count;
}

struct op *sched_op(struct sched *s, int op)
{
    CHECK(!s->committed);
    s->failed = s->failed || s->committed || !sched_knows(s, op);
    return s->failed ? &s->none : &s->ops[op];
}

void sched_after(struct sched *s, int op, int predecessor)
{
    struct op *changed = sched_op(s, op);
    s->failed =
        s->failed || !sched_knows(s, predecessor) ||
        !sched_make_room(&s->edges, s->edge_count, &s->edge_capacity, sizeof *s->edges);
    if (s->failed)
        return;
    s->edges[s->edge_count].from = (uint32_t)predecessor;
    s->edges[s->edge_count++].to = (uint32_t)op;
    changed->preds++;
}

void sched_end(struct sched *s, int op)
{
    CHECK(!s->committed);
    s->end = op;
}

/* Sort the edges by source into one array (counting sort): first count the successors of each
 * operation, then find where they end, then fill them in from the last one on. */
static int sched_index_successors(struct sched *s)
{
    free(s->successor);
    s->successor = calloc(s->edge_count ? s->edge_count : 1, sizeof *s->successor);
    if (!s->successor)
        return fail(PCOLL_ENOMEM, "no memory for a schedule of %u edges",
                    s->edge_count);
    for (uint32_t i = 0; i < s->count; i++)
        s->ops[i].first_successor = 0;
    for (uint32_t i = 0; i < s->edge_count; i++)
        s->ops[s->edges[i].from].first_successor++;
    for (uint32_t i = 1; i < s->count; i++)
        s->ops[i].first_successor += s->ops[i - 1].first_successor;
    for (uint32_t i = s->edge_count; i-- > 0;)
        s->successor[--s->ops[s->edges[i].from].first_successor] = s->edges[i].to;
    if (s->ops)
        s->ops[s->count] = (struct op){.first_successor = s->edge_count};
    return PCOLL_OK;
}

/* Report a cycle. Operations that Kahn's algorithm leaves over are on a cycle or follow one. Each
 * of them has a predecessor that is left over as well, so going back `count` times ends on a
 * cycle. `before` is scratch memory. */
static int sched_report_cycle(const struct sched *s, const uint32_t *missing,
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
        for (uint32_t i = op->first_successor; i < op[1].first_successor; i++)
            if (--missing[s->successor[i]] == 0)
                order[tail++] = s->successor[i];
    }
    return tail;
}

static int sched_check_acyclic(const struct sched *s)
{
    uint32_t *missing = malloc(2 * (size_t)s->count * sizeof *missing);
    if (!missing)
        return fail(PCOLL_ENOMEM, "no memory to check a schedule of %u operations",
                    s->count);
    uint32_t *order = missing + s->count;
    bool sound = sched_order(s, order, missing) == s->count;
    int rc = sound ? PCOLL_OK : sched_report_cycle(s, missing, order);
    free(missing);
    return rc;
}

static bool sched_completed_from_outside(const struct op *op)
{
    return op->class == OP_EVENT || (op->class == OP_CONTROL && op->kind == OP_RECV);
}

static int sched_check_op(const struct sched *s, uint32_t id)
{
    const struct op *op = &s->ops[id];
    if (sched_completed_from_outside(op) && op->preds)
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
    if (!sched_knows(s, s->end))
        return fail(PCOLL_EINVAL, "schedule: no operation ends the round");
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ops[i].need == 0)
            s->ops[i].need = s->ops[i].preds;
        if ((rc = sched_check_op(s, i)) != PCOLL_OK)
            return rc;
    }
    rc = sched_index_successors(s) ?: sched_check_acyclic(s);
    if (rc != PCOLL_OK)
        return rc;
    free(s->edges);
    s->edges = NULL;
    void *fitting = realloc(s->ops, (s->count + 1) * sizeof *s->ops);
    s->ops = fitting ? fitting : s->ops;
    s->committed = true;
    return PCOLL_OK;
}

/* Printing as text and as Graphviz DOT. */

const char *op_kind_name(enum op_kind kind)
{
    CHECK(kind <= OP_NATIVE);
    static const char *const names[] = {[OP_SEND] = "SEND",     [OP_RECV] = "RECV",
                                        [OP_REDUCE] = "REDUCE", [OP_COPY] = "COPY",
                                        [OP_NOP] = "NOP",       [OP_TIMER] = "TIMER",
                                        [OP_NATIVE] = "NATIVE"};
    return names[kind];
}

/* `quoted`: for a quoted string of DOT. */
static void sched_describe(FILE *out, const struct op *op, bool quoted)
{
    fprintf(out, "%s%s ", op->class == OP_CONTROL ? "control " : "",
            op_kind_name(op->kind));
    for (const char *c = op->label; *c; c++)
        fprintf(out, "%s%c", quoted && strchr("\"\\", *c) ? "\\" : "", *c);
    if (op->kind == OP_SEND)
        fprintf(out, " to %d edge %d", op->peer, op->edge);
    if (op->kind == OP_RECV)
        fprintf(out, " from %d edge %d", op->peer, op->edge);
    if (op->slice.of)
        fprintf(out, " slices [%u, %u) of %u", op->slice.begin, op->slice.end,
                op->slice.of);
}

static void sched_print_predecessors(FILE *out, const struct sched *s, uint32_t id)
{
    const struct op *op = &s->ops[id];
    if (!op->preds)
        return;
    fprintf(out, "  after %u of {", op->need);
    const char *comma = "";
    for (uint32_t from = 0; from < s->count; from++)
        for (uint32_t i = s->ops[from].first_successor;
             i < s->ops[from + 1].first_successor; i++)
            if (s->successor[i] == id) {
                fprintf(out, "%s%u", comma, from);
                comma = ", ";
            }
    fprintf(out, "}");
}

static void sched_print_graph(FILE *out, const struct sched *s, bool dot)
{
    if (dot)
        fprintf(out, "digraph schedule {\n  node [shape=box];\n");
    for (uint32_t i = 0; i < s->count; i++) {
        const struct op *op = &s->ops[i];
        bool ends = (int)i == s->end;
        fprintf(out, dot ? "  o%u [label=\"" : "%3u  ", i);
        sched_describe(out, op, dot);
        if (!dot) {
            sched_print_predecessors(out, s, i);
            fprintf(out, "%s\n", ends ? "  [ends the round]" : "");
            continue;
        }
        if (op->preds > 1)
            fprintf(out, "\\n%u of %u", op->need, op->preds);
        fprintf(out, "\"%s%s];\n", op->kind == OP_NOP ? ", shape=ellipse" : "",
                ends ? ", peripheries=2" : "");
    }
    for (uint32_t from = 0; dot && from < s->count; from++)
        for (uint32_t i = s->ops[from].first_successor;
             i < s->ops[from + 1].first_successor; i++)
            fprintf(out, "  o%u -> o%u;\n", from, s->successor[i]);
    if (dot)
        fprintf(out, "}\n");
}

/* A schedule that is not committed has no index of its edges yet. */
static FILE *sched_open_text(struct sched *s, char **text, size_t *size)
{
    *text = NULL;
    bool indexed = s->committed || sched_index_successors(s) == PCOLL_OK;
    return indexed ? open_memstream(text, size) : NULL;
}

static int sched_close_text(FILE *out, char *const *text)
{
    if (out)
        fclose(out);
    return out && *text ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a text");
}

int sched_print(struct sched *s, const char *format, char **text)
{
    size_t size;
    bool dot = !strcmp(format, "dot");
    if (!dot && strcmp(format, "text") != 0)
        return fail(PCOLL_EINVAL, "format: expected \"text\" or \"dot\", got \"%.50s\"",
                    format);
    FILE *out = sched_open_text(s, text, &size);
    if (out)
        sched_print_graph(out, s, dot);
    return sched_close_text(out, text);
}

/* GOAL (docs/schedules.md) knows AND only: a gate of k of n becomes one of n of n. Operations that
 * others complete (events) take no time. */
int sched_goal(struct sched *s, uint32_t rank, double ns_per_byte,
               struct goal_cost (*cost)(const void *arg, int op), const void *arg,
               char **text)
{
    size_t size;
    if (!(ns_per_byte >= 0 && ns_per_byte <= PCOLL_LONGEST_TIME))
        return fail(PCOLL_EINVAL, "ns_per_byte: expected 0 to %g, got %g",
                    PCOLL_LONGEST_TIME, ns_per_byte);
    FILE *out = sched_open_text(s, text, &size);
    if (out)
        fprintf(out, "rank %u {\n", rank);
    for (uint32_t i = 0; out && i < s->count; i++) {
        const struct op *op = &s->ops[i];
        struct goal_cost c = cost(arg, (int)i);
        if (op->need < op->preds)
            fprintf(out, "// l%u needs %u of %u here; GOAL cannot say that: all\n",
                    i + 1, op->need, op->preds);
        if (op->kind == OP_SEND || op->kind == OP_RECV)
            /* At least one byte: simulators charge for the bytes after the first. */
            fprintf(out, "l%u: %s %" PRIu64 "b %s %d tag %u\n", i + 1,
                    op->kind == OP_SEND ? "send" : "recv", c.bytes ? c.bytes : 1,
                    op->kind == OP_SEND ? "to" : "from", op->peer, c.tag);
        else
            fprintf(out, "l%u: calc %" PRIu64 "\n", i + 1,
                    (uint64_t)c.time + (uint64_t)((double)c.bytes * ns_per_byte));
    }
    for (uint32_t from = 0; out && from < s->count; from++)
        for (uint32_t i = s->ops[from].first_successor;
             i < s->ops[from + 1].first_successor; i++)
            fprintf(out, "l%u requires l%u\n", s->successor[i] + 1, from + 1);
    if (out)
        fprintf(out, "}\n");
    return sched_close_text(out, text);
}

/* Readiness is counted by operation. */

static bool engine_has_op(const struct engine *e, int op)
{
    return op >= 0 && (uint32_t)op < e->sched->count;
}

static void engine_push_ready(struct instance *in, uint32_t op)
{
    CHECK(in->ops[op].state == OP_WAITING);
    in->ops[op].state = OP_READY;
    in->ready[in->tail++] = op;
}

static void engine_arm(const struct sched *s, struct instance *in)
{
    in->head = in->tail = in->running = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        in->ops[i] = (struct op_progress){.state = OP_WAITING};
        if (!s->ops[i].preds && !sched_completed_from_outside(&s->ops[i]))
            engine_push_ready(in, i);
    }
}

int engine_init(struct engine *e, const struct sched *s)
{
    CHECK(s->committed);
    *e = (struct engine){.sched = s};
    struct op_progress *ops =
        calloc(2 * (size_t)s->count, sizeof *ops + sizeof(uint32_t));
    if (!ops)
        return fail(PCOLL_ENOMEM, "no memory for a schedule of %u operations",
                    s->count);
    uint32_t *ready = (uint32_t *)(ops + 2 * (size_t)s->count);
    for (uint32_t i = 0; i < 2; i++) {
        e->instances[i].ops = ops + (size_t)i * s->count;
        e->instances[i].ready = ready + (size_t)i * s->count;
        engine_arm(s, &e->instances[i]);
    }
    return PCOLL_OK;
}

void engine_destroy(struct engine *e)
{
    CHECK(!e->instances[0].ops || e->sched);
    free(e->instances[0].ops);
    e->instances[0] = e->instances[1] = (struct instance){0};
}

/* Complete an operation: count it at its successors, and make those ready whose gate opens now. */
static void engine_finish(const struct sched *s, struct instance *in, uint32_t id)
{
    CHECK(in->ops[id].state != OP_DONE);
    const struct op *op = &s->ops[id];
    in->ops[id].state = OP_DONE;
    for (uint32_t i = op->first_successor; i < op[1].first_successor; i++) {
        uint32_t next = s->successor[i];
        struct op_progress *p = &in->ops[next];
        CHECK(p->done_preds < s->ops[next].preds);
        if (++p->done_preds == s->ops[next].need && p->state == OP_WAITING)
            engine_push_ready(in, next);
    }
}

enum engine_outcome engine_complete(struct engine *e, uint64_t round, int op)
{
    CHECK(engine_has_op(e, op));
    if (round < e->current) {
        e->dropped++;
        return ENGINE_DROPPED;
    }
    if (round > e->current + 1)
        return ENGINE_IMPOSSIBLE;
    struct instance *in = &e->instances[round % 2];
    enum op_state state = in->ops[op].state;
    bool outside = sched_completed_from_outside(&e->sched->ops[op]);
    if (state == OP_DONE || (!outside && state != OP_RUNNING)) {
        e->dropped++;
        return ENGINE_DROPPED;
    }
    CHECK(state != OP_RUNNING || in->running > 0);
    if (state == OP_RUNNING)
        in->running--;
    engine_finish(e->sched, in, (uint32_t)op);
    if (round == e->current)
        return ENGINE_TAKEN;
    e->early++;
    return ENGINE_KEPT;
}

void engine_release(struct engine *e)
{
    CHECK(!e->released);
    e->released = true;
}

int engine_next(struct engine *e)
{
    CHECK(e->instances[e->current % 2].head <= e->instances[e->current % 2].tail);
    struct instance *in = &e->instances[e->current % 2];
    while (e->released && in->head < in->tail) {
        uint32_t id = in->ready[in->head++];
        if (e->sched->ops[id].kind == OP_NOP) {
            engine_finish(e->sched, in, id);
            continue;
        }
        in->ops[id].state = OP_RUNNING;
        in->running++;
        CHECK(in->running <= e->sched->count);
        return (int)id;
    }
    return -1;
}

bool engine_over(const struct engine *e)
{
    CHECK(engine_has_op(e, e->sched->end));
    const struct instance *in = &e->instances[e->current % 2];
    return in->ops[e->sched->end].state == OP_DONE && !in->running &&
           in->head == in->tail;
}

void engine_advance(struct engine *e)
{
    CHECK(!e->instances[e->current % 2].running);
    CHECK(e->released);
    engine_arm(e->sched, &e->instances[e->current % 2]);
    e->current++;
    e->released = false;
}

enum op_state engine_state(const struct engine *e, uint64_t round, int op)
{
    CHECK(engine_has_op(e, op));
    CHECK(round >= e->current && round <= e->current + 1);
    return e->instances[round % 2].ops[op].state;
}

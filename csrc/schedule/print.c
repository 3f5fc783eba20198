/* SPDX-License-Identifier: Apache-2.0 */
/* Printing a schedule as text and as Graphviz DOT. */
#include <stdio.h>
#include <stdlib.h>

#include "schedule/sched.h"
#include "base/check.h"

const char *op_kind_name(enum op_kind kind)
{
    CHECK(kind <= OP_NATIVE);
    static const char *const names[] = {[OP_SEND] = "SEND",     [OP_RECV] = "RECV",
                                        [OP_REDUCE] = "REDUCE", [OP_COPY] = "COPY",
                                        [OP_NOP] = "NOP",       [OP_TIMER] = "TIMER",
                                        [OP_NATIVE] = "NATIVE"};
    return names[kind];
}

static void describe(FILE *out, const struct op *op)
{
    fprintf(out, "%s%s %s", op->class == OP_CONTROL ? "control " : "",
            op_kind_name(op->kind), op->label);
    if (op->kind == OP_SEND)
        fprintf(out, " to %d edge %d", op->peer, op->edge);
    if (op->kind == OP_RECV)
        fprintf(out, " from %d edge %d", op->peer, op->edge);
    if (op->slice.of)
        fprintf(out, " slices [%u, %u) of %u", op->slice.begin, op->slice.end,
                op->slice.of);
}

static void print_predecessors(FILE *out, const struct sched *s, uint32_t id)
{
    const struct op *op = &s->ops[id];
    if (!op->preds)
        return;
    fprintf(out, "  after %u of {", op->need);
    const char *comma = "";
    for (uint32_t i = 0; i < s->edge_count; i++) {
        if (s->edges[i].to != id)
            continue;
        fprintf(out, "%s%u", comma, s->edges[i].from);
        comma = ", ";
    }
    fprintf(out, "}");
}

static void write_text(FILE *out, const struct sched *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        fprintf(out, "%3u  ", i);
        describe(out, &s->ops[i]);
        print_predecessors(out, s, i);
        fprintf(out, "%s\n", (int)i == s->end ? "  [ends the round]" : "");
    }
}

/* Escape text for a quoted string of DOT. */
static void write_quoted(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void describe_quoted(FILE *out, const struct op *op)
{
    char *text = NULL;
    size_t size = 0;
    FILE *plain = open_memstream(&text, &size);
    if (!plain)
        return;
    describe(plain, op);
    fclose(plain);
    write_quoted(out, text);
    free(text);
}

static void write_dot(FILE *out, const struct sched *s)
{
    fprintf(out, "digraph schedule {\n  node [shape=box];\n");
    for (uint32_t i = 0; i < s->count; i++) {
        const struct op *op = &s->ops[i];
        fprintf(out, "  o%u [label=\"", i);
        describe_quoted(out, op);
        if (op->preds > 1)
            fprintf(out, "\\n%u of %u", op->need, op->preds);
        fprintf(out, "\"%s%s];\n", op->kind == OP_NOP ? ", shape=ellipse" : "",
                (int)i == s->end ? ", peripheries=2" : "");
    }
    for (uint32_t i = 0; i < s->edge_count; i++)
        fprintf(out, "  o%u -> o%u;\n", s->edges[i].from, s->edges[i].to);
    fprintf(out, "}\n");
}

static char *render(const struct sched *s, void (*write)(FILE *, const struct sched *))
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    write(out, s);
    fclose(out);
    return text;
}

char *sched_text(const struct sched *s)
{
    CHECK(s->count <= s->capacity);
    return render(s, write_text);
}

char *sched_dot(const struct sched *s)
{
    CHECK(s->count <= s->capacity);
    return render(s, write_dot);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule in GOAL (Hoefler, Siebert, Lumsdaine, "Group Operation Assembly Language",
 * ICPP 2009), as LogGOPSim reads it: one block for a rank, operations first, then the
 * dependencies.
 *
 * GOAL knows AND only: `requires` waits for the end of another operation. A gate of k
 * of n becomes one of n of n, and a comment says so. Operations that others complete
 * (events) take no time.
 */
#include <inttypes.h>
#include <stdio.h>

#include "schedule/sched.h"
#include "base/check.h"

/* A message has at least one byte: simulators charge for the bytes after the first. */
static uint64_t message_bytes(const struct goal_cost *cost)
{
    return cost->bytes ? cost->bytes : 1;
}

static void write_op(FILE *out, uint32_t id, const struct op *op,
                     const struct goal_cost *cost)
{
    switch (op->kind) {
    case OP_SEND:
        fprintf(out, "l%u: send %" PRIu64 "b to %d tag %u\n", id + 1,
                message_bytes(cost), op->peer, cost->tag);
        return;
    case OP_RECV:
        fprintf(out, "l%u: recv %" PRIu64 "b from %d tag %u\n", id + 1,
                message_bytes(cost), op->peer, cost->tag);
        return;
    case OP_REDUCE:
    case OP_COPY:
    case OP_NOP:
    case OP_TIMER:
    case OP_NATIVE:
        fprintf(out, "l%u: calc %" PRIu64 "\n", id + 1, cost->time);
    }
}

char *sched_goal(const struct sched *s, uint32_t rank,
                 struct goal_cost (*cost)(const void *arg, int op), const void *arg)
{
    CHECK(cost);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    fprintf(out, "rank %u {\n", rank);
    for (uint32_t i = 0; i < s->count; i++) {
        const struct op *op = &s->ops[i];
        struct goal_cost c = cost(arg, (int)i);
        if (op->need < op->preds)
            fprintf(out, "// l%u needs %u of %u here; GOAL cannot say that: all\n",
                    i + 1, op->need, op->preds);
        write_op(out, i, op, &c);
    }
    for (uint32_t i = 0; i < s->edge_count; i++)
        fprintf(out, "l%u requires l%u\n", s->edges[i].to + 1, s->edges[i].from + 1);
    fprintf(out, "}\n");
    fclose(out);
    return text;
}

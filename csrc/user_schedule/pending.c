/* SPDX-License-Identifier: Apache-2.0 */
/* What a run waits for, as one sentence for people. */
#include <stdio.h>

#include "user_schedule/run.h"

enum { MAX_NAMED = 8 };

static int say_operation(char *text, size_t capacity, uint32_t id,
                         const struct builder_op *op)
{
    const char *kind = op_kind_name(op->kind);
    if (op->kind == OP_RECV)
        return snprintf(text, capacity, "operation %u (%s %s) waits for rank %d", id,
                        kind, op->label, op->peer);
    if (op->kind == OP_SEND)
        return snprintf(text, capacity,
                        "operation %u (%s %s) waits for rank %d to receive", id, kind,
                        op->label, op->peer);
    return snprintf(text, capacity, "operation %u (%s %s) has not run out", id, kind,
                    op->label);
}

static size_t advance(size_t used, int written, size_t capacity)
{
    used += written > 0 ? (size_t)written : 0;
    return used < capacity ? used : capacity - 1;
}

void schedule_run_pending(const struct schedule_run *p, char *text, size_t capacity)
{
    const struct engine *e = &p->engine;
    uint32_t named = 0, more = 0;
    size_t used =
        advance(0,
                snprintf(text, capacity,
                         "run %llu of a schedule: ", (unsigned long long)e->current),
                capacity);
    for (uint32_t i = 0; i < p->builder.count; i++) {
        if (engine_state(e, e->current, (int)i) != OP_RUNNING)
            continue;
        if (named == MAX_NAMED) {
            more++;
            continue;
        }
        if (named++)
            used =
                advance(used, snprintf(text + used, capacity - used, "; "), capacity);
        used = advance(
            used, say_operation(text + used, capacity - used, i, &p->builder.ops[i]),
            capacity);
    }
    if (more)
        snprintf(text + used, capacity - used, "; and %u more", more);
    else if (!named)
        snprintf(text + used, capacity - used, "%s",
                 atomic_load(&p->closing) == RUN_OPEN
                     ? "nothing is under way"
                     : "some ranks have not freed it yet");
}

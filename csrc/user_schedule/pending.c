/* SPDX-License-Identifier: Apache-2.0 */
/* What a run waits for, as one sentence for people. */
#include "base/text.h"
#include "user_schedule/run.h"

enum { MAX_NAMED = 8 };

static void add_operation(struct text *t, uint32_t id, const struct builder_op *op)
{
    text_add(t, "operation %u (%s %s) ", id, op_kind_name(op->kind), op->label);
    if (op->kind == OP_RECV)
        text_add(t, "waits for rank %d", op->peer);
    else if (op->kind == OP_SEND)
        text_add(t, "waits for rank %d to receive", op->peer);
    else
        text_add(t, "has not run out");
}

void schedule_run_pending(const struct schedule_run *p, char *text, size_t capacity)
{
    const struct engine *e = &p->engine;
    uint32_t more = 0;
    struct text t = {.at = text, .left = capacity};
    text_add(&t, "run %llu of a schedule: ", (unsigned long long)e->current);
    for (uint32_t i = 0; i < p->builder.count; i++) {
        if (engine_state(e, e->current, (int)i) != OP_RUNNING)
            continue;
        if (t.items == MAX_NAMED) {
            more++;
            continue;
        }
        text_add(&t, "%s", t.items++ ? "; " : "");
        add_operation(&t, i, &p->builder.ops[i]);
    }
    if (more)
        text_add(&t, "; and %u more", more);
    else if (!t.items)
        text_add(&t, "%s",
                 atomic_load(&p->closing) == RUN_OPEN
                     ? "nothing is under way"
                     : "some ranks have not freed it yet");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule as text, DOT and GOAL, before and after the commit. */
#include <string.h>

#include "base/error.h"
#include "user_schedule/object.h"

struct pricing {
    const struct builder *builder;
    double ns_per_byte;
};

static struct goal_cost cost_of(const void *arg, int id)
{
    const struct pricing *pricing = arg;
    if ((uint32_t)id >= pricing->builder->count)
        return (struct goal_cost){0};
    const struct builder_op *op = &pricing->builder->ops[id];
    double time = (double)op->bytes * pricing->ns_per_byte;
    return (struct goal_cost){.bytes = op->bytes,
                              .tag = (uint32_t)op->edge,
                              .time = op->kind == OP_TIMER ? (uint64_t)op->delay
                                                           : (uint64_t)time};
}

/* What is to be printed: the committed one, or the builder as it stands (*made). */
static int look(pcoll_schedule *s, struct sched **sched, bool *made)
{
    *made = !s->run;
    *sched = s->run ? s->run->sched : builder_build(&s->builder);
    return *sched ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a schedule");
}

static int finish_text(struct sched *sched, bool made, const char *text)
{
    if (made)
        sched_free(&sched);
    return text ? PCOLL_OK : fail(PCOLL_ENOMEM, "no memory for a text");
}

int pcoll_schedule_text(pcoll_schedule *s, const char *format, char **text)
{
    struct sched *sched;
    bool made;
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    bool dot = !strcmp(format, "dot");
    if (!dot && strcmp(format, "text"))
        return schedule_leave(
            s, fail(PCOLL_EINVAL, "format: expected \"text\" or \"dot\", got \"%.50s\"",
                    format));
    if ((rc = look(s, &sched, &made)) != PCOLL_OK)
        return schedule_leave(s, rc);
    *text = dot ? sched_dot(sched) : sched_text(sched);
    return schedule_leave(s, finish_text(sched, made, *text));
}

int pcoll_schedule_goal(pcoll_schedule *s, double ns_per_byte, char **text)
{
    struct sched *sched;
    bool made;
    int rc = schedule_enter(s);
    if (rc != PCOLL_OK)
        return rc;
    if (!(ns_per_byte >= 0 && ns_per_byte <= PCOLL_LONGEST_TIME))
        return schedule_leave(s, fail(PCOLL_EINVAL,
                                      "ns_per_byte: expected 0 to %g, got %g",
                                      PCOLL_LONGEST_TIME, ns_per_byte));
    if ((rc = look(s, &sched, &made)) != PCOLL_OK)
        return schedule_leave(s, rc);
    struct pricing pricing = {.builder = s->run ? &s->run->builder : &s->builder,
                              .ns_per_byte = ns_per_byte};
    *text = sched_goal(sched, pricing.builder->rank, cost_of, &pricing);
    return schedule_leave(s, finish_text(sched, made, *text));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the operations of an allreduce cost, for GOAL: a round to which all contribute.
 */
#include "allreduce/goal.h"

struct pricing {
    const struct endpoint *v;
    double ns_per_byte;
};

/* Data and control messages between two ranks have edges of their own: in GOAL they
 * share the tags, data on even ones. */
static struct goal_cost cost_of(const void *arg, int id)
{
    const struct pricing *pricing = arg;
    const struct op *op = &pricing->v->sched->ops[id];
    bool control = op->class == OP_CONTROL;
    size_t bytes = data_message_bytes(&pricing->v->data, op);
    bool moves = op->kind == OP_REDUCE || op->kind == OP_COPY;
    return (struct goal_cost){
        .bytes = control ? sizeof(struct control) : bytes,
        .tag = op->edge < 0 ? 0 : 2 * (uint32_t)op->edge + control,
        .time = moves ? (uint64_t)((double)bytes * pricing->ns_per_byte) : 0};
}

char *endpoint_goal(const struct endpoint *v, double ns_per_byte)
{
    struct pricing pricing = {.v = v, .ns_per_byte = ns_per_byte};
    return sched_goal(v->sched, v->communicator->transport->rank, cost_of, &pricing);
}

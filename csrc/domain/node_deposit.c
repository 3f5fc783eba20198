/* SPDX-License-Identifier: Apache-2.0 */
/* A member hands in what its application has: a slot is written, then named in the
 * descriptor. The protocol is in node.h. */
#include "domain/node.h"

#include "base/check.h"
#include "base/moment.h"

static char *node_own_payload(const struct node *n, int slot)
{
    return message_payload(n->base.shape, node_slot(n, n->who, slot));
}

static int node_write_deposit(struct node *n, struct deposit_plan plan,
                              const void *const *buffers)
{
    const struct payload *p = &n->base.shape->payload;
    char *target = node_own_payload(n, plan.target);
    MOMENT("deposit written");
    CHECK(plan.target >= 0 && plan.target < n->slots_each);
    CHECK(plan.target != n->member.contribution.frozen);
    INTERLEAVE();
    if (plan.carried == NO_SLOT && buffers)
        payload_pack(p, target, buffers);
    else if (plan.carried == NO_SLOT)
        payload_pack_slot(p, target); /* such a plan always holds, so this is once */
    else if (buffers)
        return payload_reduce_buffers(p, target, node_own_payload(n, plan.carried),
                                      buffers);
    else
        return payload_reduce_slot(p, target, node_own_payload(n, plan.carried),
                                   node_own_payload(n, n->member.contribution.user));
    return PCOLL_OK;
}

/* Hand in what has been written. False if what was to be carried has left meanwhile. */
static bool node_publish(struct node *n, struct deposit_plan plan,
                         enum deposit_outcome *outcome)
{
    for (;;) {
        uint64_t word = node_look(n);
        if (!contribution_plan_holds(&n->member.contribution, plan))
            return false;
        struct member after = n->member;
        *outcome = member_publish(&after, plan);
        if (*outcome == DEPOSIT_ARRIVED)
            node_note_arrival_time(n);
        if (*outcome == DEPOSIT_DROPPED ||
            STEP(atomic_compare_exchange_strong(node_own_descriptor(n), &word,
                                                descriptor_of(&after)))) {
            MOMENT("deposit published");
            n->member = after;
            n->owes = *outcome != DEPOSIT_DROPPED;
            return true;
        }
    }
}

int node_deposit(struct domain *d, const void *const *buffers,
                 enum deposit_outcome *outcome)
{
    struct node *n = node_of(d);
    int rc = member_begin(&n->member);
    if (rc != PCOLL_OK)
        return rc;
    struct deposit_plan plan;
    do {
        node_look(n);
        plan = contribution_plan(&n->member.contribution);
        rc = node_write_deposit(n, plan, buffers);
        if (rc != PCOLL_OK) {
            n->member.started = false;
            return rc;
        }
    } while (!node_publish(n, plan, outcome)); /* once more at most */
    node_set_flag(n, NODE_CALLING, true);
    return PCOLL_OK;
}

void *node_send_slot(struct domain *d)
{
    struct node *n = node_of(d);
    int user = n->member.contribution.user;
    return user == NO_SLOT ? NULL : node_own_payload(n, user);
}

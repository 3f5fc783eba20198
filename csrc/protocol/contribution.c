/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of one rank; see contribution.h for the protocol. */
#include "contribution.h"

int contribution_slots(bool owned_send)
{
    return owned_send ? 4 : 3;
}

void contribution_init(struct contribution *c, enum pcoll_late late, bool owned_send)
{
    *c = (struct contribution){.late = late,
                               .slots = contribution_slots(owned_send),
                               .pending = NO_SLOT,
                               .frozen = NO_SLOT,
                               .user = owned_send ? 0 : NO_SLOT};
}

static int free_slot(const struct contribution *c)
{
    for (int i = 0; i < c->slots; i++)
        if (i != c->pending && i != c->frozen && i != c->user)
            return i;
    return NO_SLOT;
}

/* Filled in place and nothing to add: the application's slot is the deposit. */
struct deposit_plan contribution_plan(const struct contribution *c)
{
    int carried = c->late == PCOLL_LATE_CARRY ? c->pending : NO_SLOT;
    bool in_place = c->user != NO_SLOT && carried == NO_SLOT;
    return (struct deposit_plan){.target = in_place ? c->user : free_slot(c),
                                 .carried = carried};
}

bool contribution_plan_holds(const struct contribution *c, struct deposit_plan plan)
{
    return plan.carried == NO_SLOT || plan.carried == c->pending;
}

void contribution_publish(struct contribution *c, struct deposit_plan plan)
{
    c->pending = plan.target;
    if (c->user == plan.target) {
        c->user = NO_SLOT;
        c->user = free_slot(c);
    }
}

int contribution_freeze(struct contribution *c)
{
    c->frozen = c->pending;
    c->pending = NO_SLOT;
    return c->frozen;
}

void contribution_thaw(struct contribution *c)
{
    c->frozen = NO_SLOT;
}

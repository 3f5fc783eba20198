/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of one rank; see contribution.h for the protocol. */
#include "protocol/contribution.h"
#include "base/check.h"

int contribution_slots(bool owned_send)
{
    return owned_send ? 4 : 3;
}

void contribution_init(struct contribution *c, enum pcoll_late late, bool owned_send)
{
    CHECK(late >= PCOLL_LATE_CARRY && late <= PCOLL_LATE_DROP);
    *c = (struct contribution){.late = late,
                               .slots = contribution_slots(owned_send),
                               .pending = NO_SLOT,
                               .frozen = NO_SLOT,
                               .user = owned_send ? 0 : NO_SLOT};
}

static bool in_range(const struct contribution *c, int slot)
{
    return slot == NO_SLOT || (slot >= 0 && slot < c->slots);
}

/* No slot is two things at a time. */
static bool distinct(const struct contribution *c)
{
    return (c->pending == NO_SLOT || c->pending != c->frozen) &&
           (c->user == NO_SLOT || (c->user != c->pending && c->user != c->frozen));
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
    CHECK(in_range(c, c->pending) && in_range(c, c->frozen));
    CHECK(distinct(c));
    int carried = c->late == PCOLL_LATE_CARRY ? c->pending : NO_SLOT;
    bool in_place = c->user != NO_SLOT && carried == NO_SLOT;
    struct deposit_plan plan = {.target = in_place ? c->user : free_slot(c),
                                .carried = carried};
    CHECK(plan.target != NO_SLOT && plan.target != c->frozen);
    return plan;
}

bool contribution_plan_holds(const struct contribution *c, struct deposit_plan plan)
{
    CHECK(in_range(c, plan.target) && in_range(c, plan.carried));
    return plan.carried == NO_SLOT || plan.carried == c->pending;
}

void contribution_publish(struct contribution *c, struct deposit_plan plan)
{
    CHECK(plan.target != NO_SLOT && in_range(c, plan.target));
    CHECK(plan.target != c->frozen);
    CHECK(plan.target != c->pending);
    c->pending = plan.target;
    if (c->user == plan.target) {
        c->user = NO_SLOT;
        c->user = free_slot(c);
        CHECK(c->user != NO_SLOT);
    }
    CHECK(distinct(c));
}

int contribution_freeze(struct contribution *c)
{
    CHECK(distinct(c));
    c->frozen = c->pending;
    c->pending = NO_SLOT;
    return c->frozen;
}

void contribution_thaw(struct contribution *c)
{
    CHECK(in_range(c, c->frozen));
    c->frozen = NO_SLOT;
}

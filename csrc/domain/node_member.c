/* SPDX-License-Identifier: Apache-2.0 */
/* What a member knows of itself, which others change, and what it says to them; see node.h. */
#include "domain/node.h"

#include "base/check.h"

/* Has the last deposit left, and with which round? The closer swaps the descriptor
 * before it writes `taken_in`; as long as the descriptor names a frozen slot it is the
 * descriptor that tells. */
static void node_note_departure(struct node *n, uint64_t word)
{
    struct member *m = &n->member;
    if (!n->owes || descriptor_pending(word) != NO_SLOT)
        return;
    uint64_t rounds = m->contribution.frozen != NO_SLOT
                          ? descriptor_rounds(word)
                          : STEP(atomic_load(&node_own_line(n)->taken_in));
    m->taken_in = (int64_t)rounds - 1;
    m->stats.included++;
    n->owes = false;
}

uint64_t node_look(struct node *n)
{
    uint64_t word = STEP(atomic_load(node_own_descriptor(n)));
    descriptor_load(word, &n->member);
    n->member.complete = node_control_round(node_control(n));
    CHECK(member_counts_hold(&n->member));
    node_note_departure(n, word);
    if (n->member.complete >= n->member.frozen) /* the round that read it is over */
        n->member.contribution.frozen = NO_SLOT;
    return word;
}

void node_set_flag(struct node *n, uint32_t flag, bool on)
{
    _Atomic uint32_t *flags = &node_own_line(n)->flags;
    uint32_t now = atomic_load_explicit(flags, memory_order_relaxed);
    now = on ? now | flag : now & ~flag;
    atomic_store_explicit(flags, now, memory_order_relaxed);
}

void node_note_arrival_time(struct node *n)
{
    if (policy_has_timers(&n->policy))
        STEP(atomic_store(&node_own_line(n)->arrived_at, n->hooks.now(n->hooks.arg)));
}

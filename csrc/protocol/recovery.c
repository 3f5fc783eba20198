/* SPDX-License-Identifier: Apache-2.0 */
/* See recovery.h. */
#include "protocol/recovery.h"

#include "base/check.h"

/* The frozen deposit was in a round that will be done again. */
static void take_back(struct member *m)
{
    m->frozen--;
    if (m->contribution.frozen == NO_SLOT)
        return;
    m->stats.included--;
    if (m->taken_in == (int64_t)m->frozen)
        m->taken_in = NO_ROUND;
}

/* What the last round says of the rank, whoever has kept it so far. */
static void see_last(struct member *m, const struct round_header *last,
                     const uint64_t *failed, uint32_t ranks)
{
    uint64_t live[bitset_words(ranks)];
    bool announced =
        last && bitset_has(round_mask_const(last, ranks, ROUND_JOINED), m->rank);
    bool unread = last && m->delivered <= last->round; /* else it joins once more */
    bool over = unread && round_all_gone(last, ranks);
    round_live_now(last, ranks, failed, live);
    m->live = bitset_has(live, m->rank);
    m->joined_in = m->joining && announced && over ? (int64_t)last->round : NO_ROUND;
}

static struct recovered_deposit merge(struct contribution *c)
{
    struct recovered_deposit d = {
        .into = NO_SLOT, .older = c->frozen, .newer = c->pending};
    if (c->frozen != NO_SLOT && c->pending != NO_SLOT && c->late != PCOLL_LATE_CARRY)
        d.older = NO_SLOT;
    d.into = d.older != NO_SLOT ? d.older : d.newer;
    c->pending = d.into;
    c->frozen = NO_SLOT;
    return d;
}

struct recovered_deposit member_recover(struct member *m, uint64_t complete,
                                        const struct round_header *last,
                                        const uint64_t *failed, uint32_t ranks)
{
    CHECK(m->complete == complete || m->complete + 1 == complete);
    CHECK(m->frozen == m->complete || m->frozen == m->complete + 1);
    CHECK(m->reading == NO_ROUND);
    CHECK(complete ? last->round + 1 == complete : !last);
    if (m->complete < complete)
        contribution_thaw(&m->contribution);
    CHECK(m->frozen >= complete);
    see_last(m, last, failed, ranks);
    m->complete = m->stats.rounds = complete;
    bool undone = m->frozen > complete;
    if (undone)
        take_back(m);
    m->stats.redone += undone;
    struct recovered_deposit d = merge(&m->contribution);
    m->arrived = m->started && !m->joining && m->wanted > complete;
    m->holds_back = false;
    CHECK(m->frozen == complete && m->complete == complete);
    return d;
}

void member_enter(struct member *m, uint64_t complete, const struct round_header *last,
                  const uint64_t *failed, uint32_t ranks)
{
    CHECK(!m->started && m->contribution.pending == NO_SLOT);
    CHECK(complete ? last->round + 1 == complete : !last);
    m->frozen = m->complete = m->call = m->stats.rounds = complete;
    m->delivered = complete ? complete - 1 : 0;
    see_last(m, last, failed, ranks);
    CHECK(m->live);
}

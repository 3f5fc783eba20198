/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list comes, part by part: taken only from the one that this rank follows, for the
 * attempt that was accepted, whole and well-formed. Any other is refused: its group
 * counts on this rank.
 */
#include "protocol/group/matchmaking_parts.h"

#include <string.h>

#include "base/check.h"

static bool begin_list(struct match *m, const struct match_message *message)
{
    uint32_t count = (uint16_t)message->value[3];
    if (count < 2 || count > m->goal.max_members || count > m->size)
        return false;
    m->list = (struct match_list){.leader = m->leader,
                                  .seq = (uint32_t)(message->value[3] >> 32),
                                  .round = m->goal.round,
                                  .key = m->goal.key,
                                  .count = count,
                                  .members = m->members};
    m->listed = 0;
    return true;
}

static bool add_member(struct match *m, struct match_member member)
{
    CHECK(m->listed < m->list.count && m->list.count <= m->size);
    uint32_t at = m->listed++;
    m->members[at] = member;
    return member.rank < m->size && (!at || member.rank > m->members[at - 1].rank);
}

/* False: nonsense. */
static bool add_part(struct match *m, const struct match_message *message)
{
    uint32_t first = match_part_first(message), holds = match_part_holds(message);
    if (!first && !begin_list(m, message))
        return false;
    if (first != m->listed || (uint16_t)message->value[3] != m->list.count ||
        (uint32_t)(message->value[3] >> 32) != m->list.seq)
        return false;
    for (uint32_t i = 0; i < holds && m->listed < m->list.count; i++)
        if (!add_member(m, match_part_member(message, i)))
            return false;
    return true;
}

static bool same_member(const struct match_member *a, const struct match_member *b)
{
    return a->rank == b->rank && a->chain == b->chain &&
           !memcmp(&a->bandwidth, &b->bandwidth, sizeof a->bandwidth);
}

/* This rank as it is, and the leader. */
static bool names_us(const struct match *m)
{
    bool self = false, leader = false;
    for (uint32_t i = 0; i < m->list.count; i++) {
        self = self || same_member(&m->members[i], &m->goal.self);
        leader = leader || m->members[i].rank == m->leader;
    }
    return self && leader;
}

/* What members of this group had asked before. */
static void forget_asks(struct match *m)
{
    for (uint32_t i = 0; i < m->list.count; i++) {
        struct match_peer *p = &m->peers[m->members[i].rank];
        if (p->ask.round <= m->goal.round)
            p->ask.there = false;
    }
}

static bool awaited(const struct match *m, const struct match_message *message)
{
    return m->state == MATCH_FOLLOWING && message->peer == m->leader &&
           message->round == m->goal.round &&
           (uint16_t)(message->value[3] >> 16) == (uint16_t)m->peers[m->leader].attempt;
}

bool match_on_list(struct match *m, const struct match_message *message)
{
    CHECK(message->kind == MATCH_LIST && message->peer != m->rank);
    uint32_t from = message->peer, seq = (uint32_t)(message->value[3] >> 32);
    if (!awaited(m, message)) {
        if (!match_part_first(message))
            match_refuse(m, from, from, seq, message->round);
        return true;
    }
    bool good = add_part(m, message);
    if (good && m->listed < m->list.count)
        return true;
    if (good && names_us(m)) {
        CHECK(m->leader == from && m->listed == m->list.count);
        m->state = MATCH_FORMED;
        forget_asks(m);
        return true;
    }
    match_refuse(m, from, from, seq, message->round);
    m->listed = 0;
    return false;
}

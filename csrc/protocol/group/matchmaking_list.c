/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list comes, part by part: taken only from the one that this rank follows, for the
 * attempt that was accepted, whole and well-formed. Any other is refused: its group
 * counts on this rank.
 */
#include "protocol/group/matchmaking_parts.h"

#include <string.h>

#include "base/check.h"

static bool match_begin_list(struct match *m, const struct match_part *part)
{
    if (part->count > m->goal.max_members)
        return false;
    m->list = (struct match_list){.leader = m->leader,
                                  .seq = part->seq,
                                  .round = m->goal.round,
                                  .key = m->goal.key,
                                  .count = part->count,
                                  .members = m->members};
    m->listed = 0;
    return true;
}

/* False: it does not follow the parts that have come. */
static bool match_add_part(struct match *m, const struct match_part *part)
{
    if (!part->first && !match_begin_list(m, part))
        return false;
    if (part->first != m->listed || part->count != m->list.count ||
        part->seq != m->list.seq)
        return false;
    if (m->listed && part->member[0].rank <= m->members[m->listed - 1].rank)
        return false;
    CHECK(m->listed + part->holds <= m->list.count && m->list.count <= m->size);
    memcpy(m->members + m->listed, part->member, part->holds * sizeof *part->member);
    m->listed += part->holds;
    return true;
}

static bool match_same_member(const struct match_member *a,
                              const struct match_member *b)
{
    return a->rank == b->rank && a->chain == b->chain &&
           !memcmp(&a->bandwidth, &b->bandwidth, sizeof a->bandwidth);
}

/* This rank as it is, and the leader. */
static bool match_list_is_valid(const struct match *m)
{
    bool self = false, leader = false;
    for (uint32_t i = 0; i < m->list.count; i++) {
        self = self || match_same_member(&m->members[i], &m->goal.self);
        leader = leader || m->members[i].rank == m->leader;
    }
    return self && leader;
}

/* What members of this group had asked before. */
static void match_forget_asks(struct match *m)
{
    for (uint32_t i = 0; i < m->list.count; i++) {
        struct match_peer *p = &m->peers[m->members[i].rank];
        if (p->ask.round <= m->goal.round)
            p->ask.there = false;
    }
}

static bool match_awaits_part(const struct match *m,
                              const struct match_message *message, uint32_t attempt)
{
    return m->state == MATCH_FOLLOWING && message->peer == m->leader &&
           message->round == m->goal.round &&
           attempt == (uint16_t)m->peers[m->leader].attempt;
}

bool match_on_list(struct match *m, const struct match_message *message,
                   const struct match_part *part)
{
    CHECK(message->kind == MATCH_LIST && message->peer != m->rank);
    uint32_t from = message->peer;
    if (!match_awaits_part(m, message, part->attempt)) {
        if (!part->first)
            match_refuse(m, from, from, part->seq, message->round);
        return true;
    }
    bool good = match_add_part(m, part);
    if (good && m->listed < m->list.count)
        return true;
    if (good && match_list_is_valid(m)) {
        CHECK(m->leader == from && m->listed == m->list.count);
        m->state = MATCH_FORMED;
        match_forget_asks(m);
        return true;
    }
    match_refuse(m, from, from, part->seq, message->round);
    m->listed = 0;
    return false;
}

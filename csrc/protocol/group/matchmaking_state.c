/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of matchmaking and its driver ask of the state, and the lists that a
 * member of them does not keep. Sends nothing.
 */
#include "protocol/group/matchmaking_parts.h"

#include <stddef.h>

#include "base/check.h"

void match_refuse(struct match *m, uint32_t member, uint32_t leader, uint32_t seq,
                  uint64_t round)
{
    CHECK(member < m->size && member != m->rank);
    struct match_peer *p = &m->peers[member];
    m->refusals += !p->refused;
    p->refused = true;
    p->refusal = (struct match_refusal){.leader = leader, .seq = seq, .round = round};
}

void match_refuse_coming(struct match *m)
{
    if (m->state == MATCH_FOLLOWING && m->listed)
        match_refuse(m, m->leader, m->leader, m->list.seq, m->list.round);
    CHECK(m->state != MATCH_FOLLOWING || m->leader < m->size);
    m->listed = 0;
}

bool match_refused(struct match *m, struct match_refusal *out)
{
    for (uint32_t i = 0; m->refusals && i < m->size; i++) {
        struct match_peer *p = &m->peers[i];
        if (!p->refused)
            continue;
        *out = p->refusal;
        p->refused = false;
        m->refusals--;
        return true;
    }
    CHECK(!m->refusals);
    return false;
}

enum match_state match_state(const struct match *m)
{
    CHECK(m->state <= MATCH_BEHIND);
    return m->state;
}

const struct match_list *match_list(const struct match *m)
{
    CHECK(m->state != MATCH_FORMED || m->list.members == m->members);
    return m->state == MATCH_FORMED ? &m->list : NULL;
}

bool match_bound(const struct match *m)
{
    CHECK(m->asking == MATCH_NOBODY || m->asking < m->size);
    return m->state == MATCH_FOLLOWING ||
           (m->state == MATCH_LOOKING && m->asking != MATCH_NOBODY);
}

uint64_t match_first(const struct match *m)
{
    CHECK(m->state == MATCH_IDLE || m->state == MATCH_BEHIND ||
          m->floor == m->goal.round);
    return m->floor;
}

uint64_t match_ahead(const struct match *m)
{
    CHECK(m->state != MATCH_BEHIND || m->ahead > m->goal.round);
    return m->ahead;
}

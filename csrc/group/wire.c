/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are sent; see wire.h. */
#include "group/group.h"

#include <string.h>

#include "base/check.h"

int group_wire_send(struct group *g, uint32_t to, enum group_wire_kind kind,
                    uint16_t part, uint64_t round, const uint64_t value[4])
{
    CHECK(to < g->membership.ranks && to != g->window->rank);
    if (g->membership.entries[to].status == MEMBER_DEAD)
        return PCOLL_OK;
    struct transport *t = g->communicator->transport;
    struct control message = {
        .handle = g->base.slot, .kind = (uint16_t)kind, .edge = part, .round = round};
    memcpy(message.value, value, sizeof message.value);
    g->wire.sent++;
    return t->ops->control(t, to, &message);
}

int group_wire_send_about(struct group *g, uint32_t to, enum group_wire_kind kind,
                          struct group_name name, uint64_t value)
{
    CHECK(name.leader < g->membership.ranks && name.seq);
    return group_wire_send(g, to, kind, 0, g->round,
                           (uint64_t[4]){group_wire_name_word(name), value});
}

int group_wire_send_decision(struct group *g, uint32_t to, struct group_name name,
                             enum decision decision)
{
    CHECK(decision != DECISION_PENDING);
    return group_wire_send_about(g, to, WIRE_DECISION, name,
                                 decision == DECISION_COMMIT ? NOTICE_COMMIT
                                                             : NOTICE_ABORT);
}

int group_wire_send_to_all(struct group *g, enum group_wire_kind kind, uint64_t round,
                           const uint64_t value[4])
{
    int rc = PCOLL_OK;
    CHECK(kind > WIRE_INPUT);
    for (uint32_t r = 0; r < g->membership.ranks && rc == PCOLL_OK; r++)
        if (r != g->window->rank)
            rc = group_wire_send(g, r, kind, 0, round, value);
    return rc;
}

int group_wire_announce(struct group *g, uint32_t rank, enum member_status status,
                        uint32_t returns)
{
    CHECK(g->membership.entries[rank].status == status);
    return group_wire_send_to_all(g, WIRE_MEMBERSHIP, g->round,
                                  (uint64_t[4]){rank, (uint64_t)status, returns});
}

int group_wire_announce_join(struct group *g)
{
    uint32_t rank = g->window->rank;
    CHECK(g->membership.entries[rank].status == MEMBER_LIVE);
    return group_wire_send_to_all(g, WIRE_JOIN, g->round,
                                  (uint64_t[4]){g->membership.entries[rank].returns});
}

void group_wire_count_received(struct group *g, uint32_t source)
{
    CHECK(source < g->membership.ranks && source != g->window->rank);
    g->wire.received++;
    g->wire.received_at[source] = g->clock.time;
}

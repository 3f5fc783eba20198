/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages, the clock and changes of the membership; see group_wire.h. */
#include "group/group_wire.h"

#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "group/group_agent.h"
#include "transport/transport.h"

/* The part of the timeout by which a rank may be late while all time counts. */
enum { LATE_PARTS = 16 };

void group_wire_update_clock(struct group *g)
{
    struct group_clock *c = &g->clock;
    int64_t time = communicator_now(g->communicator) - c->behind;
    int64_t margin = group_agent_timeout_ns(g) / LATE_PARTS;
    int64_t lost = time - c->time - margin;
    if (time - margin > c->due && lost > 0) {
        c->behind += lost;
        time -= lost;
    }
    CHECK(time >= c->time && c->behind >= 0);
    c->time = time;
}

/* Sending. */

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

static int group_wire_send_to_all(struct group *g, enum group_wire_kind kind,
                                  uint64_t round, const uint64_t value[4])
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

/* Changes of the membership. */

void group_wire_membership_changed(struct group *g, uint32_t rank)
{
    CHECK(rank < g->membership.ranks && rank != g->window->rank);
    if (membership_takes_part(&g->membership, rank, g->round))
        match_back(&g->match, g->clock.time, rank);
    else
        match_lost(&g->match, g->clock.time, rank);
    g->matching.members_changed = true;
}

int group_wire_suspect(struct group *g, uint32_t rank)
{
    CHECK(rank != g->window->rank);
    uint32_t returns = g->membership.entries[rank].returns;
    if (!membership_set(&g->membership, rank, MEMBER_SUSPECT, returns))
        return PCOLL_OK;
    group_wire_membership_changed(g, rank);
    lock_take(&g->shared.mutex);
    g->shared.stats.suspected++;
    lock_release(&g->shared.mutex);
    return group_wire_announce(g, rank, MEMBER_SUSPECT, returns);
}

/* Decoding. Each decoder returns NULL, or what is wrong with the message. */

static const char *group_wire_decode_name(const struct control *c, uint32_t ranks,
                                          struct group_message *m)
{
    m->name = (struct group_name){(uint32_t)(c->value[0] >> 32), (uint32_t)c->value[0]};
    return m->name.leader < ranks && m->name.seq ? NULL : "the name of its group";
}

/* Decode one of two bits in the second word. */
static const char *group_wire_decode_bit(const struct control *c, uint32_t ranks,
                                         uint64_t a, uint64_t b,
                                         struct group_message *m)
{
    uint64_t bits = c->value[1];
    if (bits != a && bits != b)
        return "what it says of its group";
    m->bits = (uint32_t)bits;
    return group_wire_decode_name(c, ranks, m);
}

static const char *group_wire_decode_vote(const struct control *c, uint32_t self,
                                          uint32_t ranks, struct group_message *m)
{
    uint64_t vote = c->value[1], members = c->value[2];
    const char *wrong = group_wire_decode_name(c, ranks, m);
    if (wrong)
        return wrong;
    if (m->name.leader != self || vote > VOTE_ABORT)
        return "its vote";
    if ((members < 1 || members > ranks) &&
        (members != UINT32_MAX || vote != VOTE_ABORT))
        return "the number of members";
    m->vote = (enum decision_vote)vote;
    m->members = (uint32_t)members;
    return NULL;
}

static const char *group_wire_decode_returns(uint64_t returns, struct group_message *m)
{
    m->returns = (uint32_t)returns;
    return returns > UINT32_MAX ? "the number of returns" : NULL;
}

/* Others say that a rank is silent. A rank says everything else itself. */
static const char *group_wire_decode_membership(const struct control *c, uint32_t ranks,
                                                struct group_message *m)
{
    uint64_t rank = c->value[0], status = c->value[1];
    if (rank >= ranks || status > MEMBER_SUSPECT)
        return "the rank or its status";
    if ((rank == m->source) == (status == MEMBER_SUSPECT))
        return "who says it";
    m->rank = (uint32_t)rank;
    m->status = (enum member_status)status;
    return group_wire_decode_returns(c->value[2], m);
}

static const char *group_wire_decode_counted(const struct control *c, uint32_t ranks,
                                             struct group_message *m)
{
    m->counts = c->edge == 1;
    m->count = (uint32_t)c->value[0];
    return c->edge > 1 || c->value[0] > ranks ? "how many ranks" : NULL;
}

static const char *group_wire_decode_found(const struct control *c, uint32_t ranks,
                                           struct group_message *m)
{
    uint64_t all = c->value[0];
    const uint32_t peer[FOUND_ENTRIES] = {(uint32_t)(c->value[1] >> 32),
                                          (uint32_t)c->value[1]};
    if (all > ranks || c->edge > FOUND_ENTRIES || c->edge > all || (all && !c->edge))
        return "how many entries";
    m->count = (uint32_t)all;
    m->entries = c->edge;
    for (uint32_t i = 0; i < m->entries; i++) {
        if (peer[i] >= ranks)
            return "the rank of an entry";
        m->entry[i] =
            (struct match_entry){.peer = peer[i], .time = (int64_t)c->value[2 + i]};
    }
    return NULL;
}

static const char *group_wire_decode_kind(uint32_t self, uint32_t ranks,
                                          const struct control *c,
                                          struct group_message *m)
{
    uint64_t first = c->value[0];
    switch (m->kind) {
    case WIRE_MATCH:
        break;
    case WIRE_INPUT:
        return group_wire_decode_bit(c, ranks, NOTICE_INPUT, NOTICE_NULL, m);
    case WIRE_PART:
        m->bits = NOTICE_PART;
        m->rate = (uint32_t)c->value[1];
        return c->value[1] > UINT32_MAX ? "its rate"
                                        : group_wire_decode_name(c, ranks, m);
    case WIRE_PASS:
        m->bits = NOTICE_PASS;
        return group_wire_decode_name(c, ranks, m);
    case WIRE_HEARTBEAT:
        return group_wire_decode_name(c, ranks, m);
    case WIRE_NUDGE:
        m->application = first == 1;
        return first > 1 ? "a flag" : NULL;
    case WIRE_NUDGED:
        return NULL;
    case WIRE_VOTE:
        return group_wire_decode_vote(c, self, ranks, m);
    case WIRE_DECISION:
        return group_wire_decode_bit(c, ranks, NOTICE_ABORT, NOTICE_COMMIT, m);
    case WIRE_MEMBERSHIP:
        return group_wire_decode_membership(c, ranks, m);
    case WIRE_ROUND:
    case WIRE_JOIN:
        return group_wire_decode_returns(first, m);
    case WIRE_DECLARE:
    case WIRE_QUERY:
        m->key = first;
        m->time = (int64_t)c->value[1];
        return NULL;
    case WIRE_COUNT:
        m->more = (int32_t)first;
        return first + 1 > 2 ? "how many more" : NULL;
    case WIRE_COUNTED:
        return group_wire_decode_counted(c, ranks, m);
    case WIRE_FOUND:
        return group_wire_decode_found(c, ranks, m);
    }
    return "its kind";
}

int group_wire_decode(uint32_t self, uint32_t ranks, uint32_t source,
                      const struct control *c, struct group_message *m)
{
    *m = (struct group_message){
        .kind = (enum group_wire_kind)c->kind, .source = source, .round = c->round};
    const char *wrong =
        c->round > ROUND_LAST ? "its round" : group_wire_decode_kind(self, ranks, c, m);
    return wrong ? fail(PCOLL_EPROTOCOL,
                        "rank %u sent a grouped allreduce a message of kind %u that "
                        "cannot be: %s",
                        source, c->kind, wrong)
                 : PCOLL_OK;
}

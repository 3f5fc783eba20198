/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a grouped allreduce does with the messages that come (wire.h has their kinds):
 * each goes to the part that it concerns, then the phase goes on. And what the
 * communicator calls.
 */
#include "group/group.h"

#include <string.h>

static int group_agent_on_matchmaking(struct group *g, uint32_t source,
                                      const struct control *c)
{
    struct match_message m = {
        .peer = source, .kind = c->kind, .part = c->edge, .round = c->round};
    memcpy(m.value, c->value, sizeof m.value);
    return match_on_message(&g->match, g->clock.time, &m);
}

static int group_agent_on_notice(struct group *g, const struct group_message *m)
{
    return group_round_on_notice(g, m->source, m->name, m->bits, m->rate);
}

/* A leader passes on that a round is aborted: who says so may have refused the list and
 * not know who else is on it. */
static int group_agent_on_decision(struct group *g, const struct group_message *m)
{
    int rc = PCOLL_OK;
    if (m->bits & NOTICE_ABORT && m->name.leader == g->window->rank)
        rc = group_round_on_abort(g, m->name);
    return rc == PCOLL_OK ? group_agent_on_notice(g, m) : rc;
}

static int group_agent_on_membership(struct group *g, const struct group_message *m)
{
    if (m->rank == g->window->rank) {
        g->rejoin.suspected |= m->returns == g->membership.entries[m->rank].returns;
        return PCOLL_OK;
    }
    bool news = membership_set(&g->membership, m->rank, m->status, m->returns);
    if (m->status == MEMBER_LIVE) /* not before the round that it was at */
        news |= membership_join(&g->membership, m->rank, m->returns, m->round);
    if (news)
        group_wire_membership_changed(g, m->rank);
    if (m->status != MEMBER_LIVE)
        return PCOLL_OK;
    return group_wire_send(g, m->source, WIRE_ROUND, 0, group_agent_round_to_join(g),
                           (uint64_t[4]){m->returns});
}

static void group_agent_on_join(struct group *g, const struct group_message *m)
{
    if (membership_join(&g->membership, m->source, m->returns, m->round))
        group_wire_membership_changed(g, m->source);
}

static int group_agent_on_nudge(struct group *g, const struct group_message *m)
{
    if (m->application)
        return group_round_on_nudge(g, m->round);
    return group_wire_send(g, m->source, WIRE_NUDGED, 0, g->round, (uint64_t[4]){0});
}

static int group_agent_dispatch(struct group *g, const struct group_message *m)
{
    switch (m->kind) {
    case WIRE_MATCH:
    case WIRE_NUDGED:
        return PCOLL_OK;
    case WIRE_INPUT:
    case WIRE_PART:
    case WIRE_PASS:
    case WIRE_HEARTBEAT:
        return group_agent_on_notice(g, m);
    case WIRE_NUDGE:
        return group_agent_on_nudge(g, m);
    case WIRE_DECISION:
        return group_agent_on_decision(g, m);
    case WIRE_VOTE:
        return group_round_on_vote(g, m->source, m->name, m->vote, m->members);
    case WIRE_MEMBERSHIP:
        return group_agent_on_membership(g, m);
    case WIRE_ROUND:
        group_agent_on_round(g, m);
        return PCOLL_OK;
    case WIRE_JOIN:
        group_agent_on_join(g, m);
        return PCOLL_OK;
    case WIRE_DECLARE:
    case WIRE_COUNT:
    case WIRE_QUERY:
        return group_window_serve(g, m);
    case WIRE_COUNTED:
        group_matching_on_counted(g, m);
        return PCOLL_OK;
    case WIRE_FOUND:
        group_matching_on_found(g, m);
        return PCOLL_OK;
    }
    return PCOLL_OK;
}

static int group_agent_on_message(struct object *p, uint32_t source,
                                  const struct control *message)
{
    struct group *g = group_agent_of(p);
    struct group_message m;
    bool matches = message->kind < WIRE_INPUT;
    int rc = PCOLL_OK;
    if (!matches)
        rc = group_wire_decode(g->window->rank, g->membership.ranks, source, message,
                               &m);
    if (rc != PCOLL_OK)
        return rc;
    group_wire_update_clock(g);
    group_wire_count_received(g, source);
    rc = matches ? group_agent_on_matchmaking(g, source, message)
                 : group_agent_dispatch(g, &m);
    return rc == PCOLL_OK ? group_agent_drive(g) : rc;
}

static int group_agent_run(struct object *p)
{
    return group_agent_drive(group_agent_of(p));
}

static int group_agent_no_message(struct object *p, int op, size_t bytes)
{
    (void)p, (void)bytes;
    return fail(PCOLL_EPROTOCOL, "a message (%d) for a grouped allreduce", op);
}

const struct object_ops group_agent_ops = {.run = group_agent_run,
                                           .done = group_agent_no_message,
                                           .control = group_agent_on_message,
                                           .begin_close = group_agent_begin_close};

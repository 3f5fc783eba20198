/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a grouped allreduce does with the messages that come (wire.h has their kinds):
 * each goes to the part that it concerns, then the phase goes on. And what the
 * communicator calls.
 */
#include "group/group.h"

#include <string.h>

static int on_matchmaking(struct group *g, uint32_t source, const struct control *c)
{
    struct match_message m = {
        .peer = source, .kind = c->kind, .part = c->edge, .round = c->round};
    memcpy(m.value, c->value, sizeof m.value);
    return match_on_message(&g->match, g->clock.time, &m);
}

static int on_notice(struct group *g, const struct wire_message *m)
{
    return group_on_notice(g, m->source, m->name, m->bits, m->rate);
}

/* A leader passes on that a round is aborted: who says so may have refused the list and
 * not know who else is on it. */
static int on_decision(struct group *g, const struct wire_message *m)
{
    int rc = PCOLL_OK;
    if (m->bits & NOTICE_ABORT && m->name.leader == g->window->rank)
        rc = group_on_abort(g, m->name);
    return rc == PCOLL_OK ? on_notice(g, m) : rc;
}

static int on_membership(struct group *g, const struct wire_message *m)
{
    if (m->rank == g->window->rank) {
        g->rejoin.suspected |= m->returns == g->membership.entries[m->rank].returns;
        return PCOLL_OK;
    }
    bool news = membership_set(&g->membership, m->rank, m->status, m->returns);
    if (m->status == MEMBER_LIVE) /* not before the round that it was at */
        news |= membership_join(&g->membership, m->rank, m->returns, m->round);
    if (news)
        group_membership_changed(g, m->rank);
    if (m->status != MEMBER_LIVE)
        return PCOLL_OK;
    return group_send(g, m->source, WIRE_ROUND, 0, group_round_to_join(g),
                      (uint64_t[4]){m->returns});
}

static void on_join(struct group *g, const struct wire_message *m)
{
    if (membership_join(&g->membership, m->source, m->returns, m->round))
        group_membership_changed(g, m->source);
}

static int on_nudge(struct group *g, const struct wire_message *m)
{
    if (m->application)
        return group_on_nudge(g, m->round);
    return group_send(g, m->source, WIRE_NUDGED, 0, g->round, (uint64_t[4]){0});
}

static int on_group(struct group *g, const struct wire_message *m)
{
    switch (m->kind) {
    case WIRE_MATCH:
    case WIRE_NUDGED:
        return PCOLL_OK;
    case WIRE_INPUT:
    case WIRE_PART:
    case WIRE_PASS:
    case WIRE_HEARTBEAT:
        return on_notice(g, m);
    case WIRE_NUDGE:
        return on_nudge(g, m);
    case WIRE_DECISION:
        return on_decision(g, m);
    case WIRE_VOTE:
        return group_on_vote(g, m->source, m->name, m->vote, m->members);
    case WIRE_MEMBERSHIP:
        return on_membership(g, m);
    case WIRE_ROUND:
        group_on_round(g, m);
        return PCOLL_OK;
    case WIRE_JOIN:
        on_join(g, m);
        return PCOLL_OK;
    case WIRE_DECLARE:
    case WIRE_COUNT:
    case WIRE_QUERY:
        return remote_serve(g, m);
    case WIRE_COUNTED:
        inquiry_on_counted(g, m);
        return PCOLL_OK;
    case WIRE_FOUND:
        inquiry_on_found(g, m);
        return PCOLL_OK;
    }
    return PCOLL_OK;
}

static int on_message(struct object *p, uint32_t source, const struct control *message)
{
    struct group *g = group_of(p);
    struct wire_message m;
    bool matches = message->kind < WIRE_INPUT;
    int rc = PCOLL_OK;
    if (!matches)
        rc = wire_decode(g->window->rank, g->membership.ranks, source, message, &m);
    if (rc != PCOLL_OK)
        return rc;
    group_poll_clock(g);
    group_count_received(g, source);
    rc = matches ? on_matchmaking(g, source, message) : on_group(g, &m);
    return rc == PCOLL_OK ? group_drive(g) : rc;
}

static int run(struct object *p)
{
    return group_drive(group_of(p));
}

static int no_message(struct object *p, int op, size_t bytes)
{
    (void)p, (void)bytes;
    return fail(PCOLL_EPROTOCOL, "a message (%d) for a grouped allreduce", op);
}

const struct object_ops group_object = {.run = run,
                                        .done = no_message,
                                        .control = on_message,
                                        .begin_close = group_begin_close};

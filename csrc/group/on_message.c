/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a grouped allreduce does with the messages that come (wire.h has their kinds):
 * each goes to the part that it concerns, then the phase goes on. And what the
 * communicator calls.
 */
#include "group/group.h"

#include <string.h>

static void on_matchmaking(struct group *g, uint32_t source, const struct control *c)
{
    struct match_message m = {
        .peer = source, .kind = c->kind, .part = c->edge, .round = c->round};
    memcpy(m.value, c->value, sizeof m.value);
    match_on_message(&g->match, g->clock.time, &m);
}

static void on_notice(struct group *g, uint32_t source, const struct control *c,
                      uint32_t bits, uint32_t rate)
{
    group_on_notice(g, source, group_name_of(c->value[0]), bits, rate);
}

/* A leader passes on that a round is aborted: who says so may have refused the list and
 * not know who else is on it. */
static int on_decision(struct group *g, uint32_t source, const struct control *c)
{
    struct group_name name = group_name_of(c->value[0]);
    int rc = PCOLL_OK;
    if (c->value[1] & NOTICE_ABORT && name.leader == g->window->rank)
        rc = group_on_abort(g, name);
    on_notice(g, source, c, (uint32_t)c->value[1], 0);
    return rc;
}

static int on_membership(struct group *g, uint32_t source, const struct control *c)
{
    uint32_t rank = (uint32_t)c->value[0], returns = (uint32_t)c->value[2];
    enum member_status status = (enum member_status)c->value[1];
    if (rank == g->window->rank) {
        g->rejoin.suspected |= returns == g->membership.entries[rank].returns;
        return PCOLL_OK;
    }
    bool news = membership_set(&g->membership, rank, status, returns);
    if (status == MEMBER_LIVE) /* not before the round that it was at */
        news |= membership_join(&g->membership, rank, returns, c->round);
    if (news)
        group_membership_changed(g, rank);
    if (status != MEMBER_LIVE || rank != source)
        return PCOLL_OK;
    return group_send(g, source, WIRE_ROUND, 0, group_round_to_join(g),
                      (uint64_t[4]){returns});
}

static void on_join(struct group *g, uint32_t source, const struct control *c)
{
    if (membership_join(&g->membership, source, (uint32_t)c->value[0], c->round))
        group_membership_changed(g, source);
}

static int on_nudge(struct group *g, uint32_t source, const struct control *c)
{
    if (c->value[0])
        return group_on_nudge(g, c->round);
    return group_send(g, source, WIRE_NUDGED, 0, g->round, (uint64_t[4]){0});
}

static int on_group(struct group *g, uint32_t source, const struct control *c)
{
    switch ((enum wire_kind)c->kind) {
    case WIRE_MATCH:
        break;
    case WIRE_INPUT:
        on_notice(g, source, c, (uint32_t)c->value[1], 0);
        return PCOLL_OK;
    case WIRE_PART:
        on_notice(g, source, c, NOTICE_PART, (uint32_t)c->value[1]);
        return PCOLL_OK;
    case WIRE_PASS:
        on_notice(g, source, c, NOTICE_PASS, 0);
        return PCOLL_OK;
    case WIRE_HEARTBEAT:
        on_notice(g, source, c, 0, 0);
        return PCOLL_OK;
    case WIRE_NUDGE:
        return on_nudge(g, source, c);
    case WIRE_NUDGED:
        return PCOLL_OK;
    case WIRE_DECISION:
        return on_decision(g, source, c);
    case WIRE_VOTE:
        return group_on_vote(g, source, group_name_of(c->value[0]),
                             (enum decision_vote)c->value[1], (uint32_t)c->value[2]);
    case WIRE_MEMBERSHIP:
        return on_membership(g, source, c);
    case WIRE_ROUND:
        group_on_round(g, source, c);
        return PCOLL_OK;
    case WIRE_JOIN:
        on_join(g, source, c);
        return PCOLL_OK;
    case WIRE_DECLARE:
    case WIRE_COUNT:
    case WIRE_QUERY:
        return remote_serve(g, source, c);
    case WIRE_COUNTED:
        inquiry_on_counted(g, c);
        return PCOLL_OK;
    case WIRE_FOUND:
        inquiry_on_found(g, c);
        return PCOLL_OK;
    }
    return fail(PCOLL_EPROTOCOL, "rank %u sent something unknown (%u) to a group",
                source, c->kind);
}

static int on_message(struct object *p, uint32_t source, const struct control *message)
{
    struct group *g = group_of(p);
    int rc = PCOLL_OK;
    group_poll_clock(g);
    group_count_received(g, source);
    if (message->kind < WIRE_INPUT)
        on_matchmaking(g, source, message);
    else
        rc = on_group(g, source, message);
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

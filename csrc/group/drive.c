/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grouped allreduce, phase by phase (group.h). Each phase says which one follows;
 * which that is, and when the driver is to come again, is seen to here alone.
 */
#include "group/group.h"
#include "runtime/closing.h"

#include "base/check.h"

static enum group_phase group_agent_after_idle(const struct group *g)
{
    if (group_agent_leaves(g))
        return PHASE_AWAY;
    return g->rejoin.suspected ? PHASE_ASKING : PHASE_MATCHING;
}

/* One step of whichever phase it is; *next: the one that follows. */
static int group_agent_step(struct group *g, enum group_phase *next)
{
    *next = g->phase;
    switch (g->phase) {
    case PHASE_IDLE:
        *next = group_agent_after_idle(g);
        return PCOLL_OK;
    case PHASE_ASKING:
        return group_agent_continue_rejoin(g, next);
    case PHASE_MATCHING:
        return group_matching_continue(g, next);
    case PHASE_ROUND:
        return group_round_continue(g, next);
    case PHASE_AWAY:
        *next = group_agent_leaves(g) ? PHASE_AWAY : PHASE_ASKING;
        return PCOLL_OK;
    }
    return PCOLL_OK;
}

static int group_agent_enter(struct group *g, enum group_phase next)
{
    g->phase = next;
    switch (next) {
    case PHASE_IDLE:
        return PCOLL_OK;
    case PHASE_ASKING:
        return group_agent_begin_rejoin(g);
    case PHASE_MATCHING:
        return group_matching_begin(g);
    case PHASE_ROUND:
        return group_round_begin(g);
    case PHASE_AWAY:
        return group_agent_leave(g);
    }
    return PCOLL_OK;
}

/* *more: in another phase or round than before. */
static int group_agent_continue(struct group *g, bool *more)
{
    enum group_phase next;
    uint64_t round = g->round;
    int rc = group_round_refuse(g);
    if (rc == PCOLL_OK)
        rc = group_agent_step(g, &next);
    *more = rc == PCOLL_OK && (next != g->phase || g->round != round);
    if (rc == PCOLL_OK && next != g->phase)
        rc = group_agent_enter(g, next);
    return rc == PCOLL_OK ? group_matching_flush(g) : rc;
}

static int64_t group_agent_alarm(struct group *g)
{
    if (g->phase == PHASE_ROUND || g->now.data.abandoned)
        return group_round_alarm(g);
    if (g->phase == PHASE_ASKING)
        return g->rejoin.wait_until;
    return g->phase == PHASE_MATCHING ? group_matching_alarm(g)
                                      : match_alarm(&g->match);
}

/* Away, and nothing of it left: it may close when all are. */
static int group_agent_settle(struct group *g)
{
    bool ended;
    if (g->phase != PHASE_AWAY || !g->shared.closing || g->queued)
        return PCOLL_OK;
    int rc = group_data_poll(&g->now.data, &ended); /* what is left of void rounds */
    if (rc != PCOLL_OK || g->now.data.abandoned)
        return rc;
    g->queued = true;
    return communicator_close(g->communicator, &g->base);
}

int group_agent_drive(struct group *g)
{
    bool more;
    int rc = PCOLL_OK;
    CHECK(!g->queued || g->shared.closing);
    group_wire_update_clock(g);
    if (!g->driven || g->queued)
        return g->queued ? group_agent_drain(g) : rc;
    do
        rc = group_agent_continue(g, &more);
    while (rc == PCOLL_OK && more);
    if (rc == PCOLL_OK)
        rc = group_agent_settle(g);
    atomic_store(&g->shared.shown_round, g->round);
    g->clock.due = rc == PCOLL_OK ? group_agent_alarm(g) : INT64_MAX;
    if (g->clock.due != INT64_MAX)
        communicator_alarm(g->communicator, &g->base, g->clock.due + g->clock.behind);
    return rc;
}

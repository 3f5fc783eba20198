/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grouped allreduce, phase by phase (group.h). Each phase says which one follows;
 * which that is, and when the driver is to come again, is seen to here alone.
 */
#include "group/group.h"
#include "runtime/closing.h"

#include "base/check.h"

static enum phase after_idle(const struct group *g)
{
    if (group_leaves(g))
        return PHASE_AWAY;
    return g->rejoin.suspected ? PHASE_ASKING : PHASE_MATCHING;
}

/* One step of whichever phase it is; *next: the one that follows. */
static int step(struct group *g, enum phase *next)
{
    *next = g->phase;
    switch (g->phase) {
    case PHASE_IDLE:
        *next = after_idle(g);
        return PCOLL_OK;
    case PHASE_ASKING:
        return group_go_on_rejoin(g, next);
    case PHASE_MATCHING:
        return group_go_on_matching(g, next);
    case PHASE_ROUND:
        return group_go_on_round(g, next);
    case PHASE_AWAY:
        *next = group_leaves(g) ? PHASE_AWAY : PHASE_ASKING;
        return PCOLL_OK;
    }
    return PCOLL_OK;
}

static int enter(struct group *g, enum phase next)
{
    g->phase = next;
    switch (next) {
    case PHASE_IDLE:
        return PCOLL_OK;
    case PHASE_ASKING:
        return group_begin_rejoin(g);
    case PHASE_MATCHING:
        return group_begin_matching(g);
    case PHASE_ROUND:
        return group_begin_round(g);
    case PHASE_AWAY:
        return group_leave(g);
    }
    return PCOLL_OK;
}

/* *more: in another phase or round than before. */
static int go_on(struct group *g, bool *more)
{
    enum phase next;
    uint64_t round = g->round;
    int rc = group_refuse(g);
    if (rc == PCOLL_OK)
        rc = step(g, &next);
    *more = rc == PCOLL_OK && (next != g->phase || g->round != round);
    if (rc == PCOLL_OK && next != g->phase)
        rc = enter(g, next);
    return rc == PCOLL_OK ? group_flush_match(g) : rc;
}

static int64_t next_alarm(struct group *g)
{
    if (g->phase == PHASE_ROUND || g->now.data.abandoned)
        return group_round_alarm(g);
    if (g->phase == PHASE_ASKING)
        return g->rejoin.wait_until;
    return g->phase == PHASE_MATCHING ? group_matching_alarm(g)
                                      : match_alarm(&g->match);
}

/* Away, and nothing of it left: it may close when all are. */
static int settle(struct group *g)
{
    bool ended;
    if (g->phase != PHASE_AWAY || !g->shared.closing || g->queued)
        return PCOLL_OK;
    int rc = round_poll(&g->now.data, &ended); /* what is left of void rounds */
    if (rc != PCOLL_OK || g->now.data.abandoned)
        return rc;
    g->queued = true;
    return communicator_close(g->communicator, &g->base);
}

int group_drive(struct group *g)
{
    bool more;
    int rc = PCOLL_OK;
    CHECK(!g->queued || g->shared.closing);
    group_poll_clock(g);
    if (!g->driven || g->queued)
        return g->queued ? group_drain(g) : rc;
    do
        rc = go_on(g, &more);
    while (rc == PCOLL_OK && more);
    if (rc == PCOLL_OK)
        rc = settle(g);
    atomic_store(&g->shared.shown_round, g->round);
    g->clock.due = rc == PCOLL_OK ? next_alarm(g) : INT64_MAX;
    if (g->clock.due != INT64_MAX)
        communicator_alarm(g->communicator, &g->base, g->clock.due + g->clock.behind);
    return rc;
}

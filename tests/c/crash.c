/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deaths of simulated ranks. A dead rank makes no further step, even in the middle of an
 * operation. Only dead ranks are reported as dead. Each rank detects a death after its own
 * delay, and the first one to detect it notifies all others.
 */
#include "base/random.h"
#include "check.h"
#include "world_state.h"

enum { LONGEST_REVOCATION = 3000 };

bool crash_unhandled(const struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++)
        if (w->dead[r] && !w->handled[r])
            return true;
    return false;
}

static bool has_come(const struct world *w, const struct world_crash *c)
{
    enum app_phase phase = w->app[c->rank].phase;
    switch (c->moment) {
    case AT_ANY_TIME:
        return true;
    case WHILE_RECOVERING:
        return is_recovering(w, c->rank);
    case WHILE_CLOSING:
        return phase == FREEING;
    case WHILE_JOINING:
        return phase == JOINING;
    case WHILE_GROWING:
        return phase == GROWING || phase == NEW_HERE;
    case AFTER_ANOTHER:
        return w->report.attempts || crash_unhandled(w);
    case WORLD_MOMENTS:
        break;
    }
    return false;
}

void crash_tell(struct world *w, uint32_t rank, int64_t latest)
{
    sim_wake(w->sim, rank, sim_random(w->sim, (uint32_t)latest + 1), WAKE_DETECT);
}

static void die(struct world *w, uint32_t rank)
{
    w->dead[rank] = true;
    sim_kill(w->sim, rank);
    for (uint32_t r = 0; r < w->o.ranks; r++)
        if (!w->dead[r])
            crash_tell(w, r, w->o.detection);
    recover_shrink(w); /* the other ranks may have waited only for this one */
    grow_settle(w);
}

bool crash_step(struct world *w, uint32_t rank)
{
    for (int i = 0; i < w->o.crashes; i++) {
        struct world_crash *c = &w->o.crash[i];
        if (c->rank != rank || w->dead[rank] || !has_come(w, c) || c->steps--)
            continue;
        w->report.died[c->moment]++;
        die(w, rank);
    }
    return w->dead[rank];
}

void crash_detected(struct world *w, uint32_t rank)
{
    struct recovery *r = &w->recovery[rank];
    if (r->epoch != w->epoch || !crash_unhandled(w))
        return; /* this epoch has no death that is not yet handled */
    for (uint32_t to = 0; to < w->o.ranks && !w->revoked; to++)
        if (!w->dead[to] && to != rank)
            crash_tell(w, to, LONGEST_REVOCATION);
    w->revoked = true;
    if (r->step == RUNNING || r->step == PAUSING || r->step == PAUSED)
        r->step = STOPPING;
    r->fails = r->step > SHRINKING;
}

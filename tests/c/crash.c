/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deaths of simulated ranks: when, and who hears of it. A rank that is dead makes no step
 * any more, in the middle of whatever it did. Nobody is said to be dead who lives, each
 * hears of a death at a time of its own, and who does tells all others.
 */
#include "base/random.h"
#include "check.h"
#include "world_state.h"

enum { LONGEST_REVOCATION = 3000 };

bool crash_unburied(const struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++)
        if (w->dead[r] && !w->buried[r])
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
        return w->report.attempts || crash_unburied(w);
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
    recover_shrink(w); /* the others may have waited for it */
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
    if (r->epoch != w->epoch || !crash_unburied(w))
        return; /* it has heard already */
    for (uint32_t to = 0; to < w->o.ranks && !w->revoked; to++)
        if (!w->dead[to] && to != rank)
            crash_tell(w, to, LONGEST_REVOCATION);
    w->revoked = true;
    if (r->step == RUNNING || r->step == PAUSING || r->step == PAUSED)
        r->step = STOPPING;
    r->fails = r->step > SHRINKING;
}

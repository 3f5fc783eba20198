/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New processes take the numbers of dead simulated ranks: the steps of runtime/recovery.c
 * and allreduce/handle_recovery.c, with MPI's part done for all ranks at once. recover.c
 * has the steps in between.
 */
#include <string.h>

#include "base/check.h"
#include "check.h"
#include "model.h"
#include "threads.h"
#include "world_state.h"

enum { LONGEST_WAY = 3000 };

static void wake_all(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++)
        if (!w->dead[r])
            sim_wake(w->sim, r, sim_random(w->sim, LONGEST_WAY), WAKE_AGENT);
}

static bool all_paused(const struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++)
        if (!w->dead[r] &&
            (w->recovery[r].step != PAUSED || w->recovery[r].epoch != w->epoch))
            return false;
    return !crash_unhandled(w);
}

/* Start a new process as this rank. The dead process's objects are kept. */
static void come(struct world *w, uint32_t rank)
{
    recover_abandon(w, rank);
    w->dead[rank] = w->handled[rank] = false;
    w->growth.newcomer[rank] = true;
    w->report.newcomers++;
    sim_revive(w->sim, rank);
    threads_renew(w, rank);
    struct app *a = &w->app[rank];
    *a = (struct app){.phase = NEW_HERE, .send = a->send, .recv = a->recv};
    w->recovery[rank] =
        (struct recovery){.step = PAUSED, .epoch = w->epoch, .stopped = true};
}

void grow_begin(struct world *w)
{
    uint32_t missing = 0;
    if (!all_paused(w))
        return;
    w->growth = (struct world_growth){0};
    for (uint32_t r = 0; r < w->o.ranks; r++)
        missing += w->dead[r];
    uint32_t some = missing ? 1 + sim_random(w->sim, missing) : 0;
    for (uint32_t r = 0; r < w->o.ranks && some; r++)
        if (w->dead[r]) {
            come(w, r);
            some--;
        }
    for (uint32_t r = 0; r < w->o.ranks; r++)
        w->recovery[r].grows = !w->dead[r];
    recover_begin_epoch(w);
}

/* Move a rank to its new domain. A dead rank's deposits are lost unless it voted. */
static void move(struct world *w, int k, uint32_t r)
{
    struct domain *old = w->endpoint[k][r]->domain;
    struct domain *d = w->recovery[r].successor[k]->domain;
    bool is_new = w->growth.newcomer[r];
    if (is_new || w->growth.voted[r])
        spy_settle(d, is_new ? NULL : old);
    else
        model_lose(&w->ledger[k], r);
    if (w->dead[r])
        return;
    if (is_new)
        spy_abandon(old);
    recover_replace(w, k, r);
}

/* Move all live ranks to the new epoch, even if they do not know the decision yet. */
static void commit(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++)
        for (int k = 0; k < w->o.handles && w->recovery[r].grows && !w->dead[r]; k++)
            move(w, k, r);
    for (uint32_t r = 0; r < w->o.ranks; r++)
        for (int k = 0; k < w->o.handles && w->recovery[r].grows && w->dead[r]; k++)
            move(w, k, r);
    w->report.grown++;
}

/* Newcomers that died count as if they had never come. */
static void call_off(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++)
        w->handled[r] = w->handled[r] || (w->growth.newcomer[r] && w->dead[r]);
    w->report.called_off++;
}

void grow_settle(struct world *w)
{
    struct world_growth *g = &w->growth;
    bool grows = false, against = false;
    for (uint32_t r = 0; r < w->o.ranks; r++) {
        if (w->dead[r] || !w->recovery[r].grows)
            continue;
        if (g->settled || !g->voted[r])
            return;
        grows = true;
        against = against || g->voted[r] == AGAINST;
    }
    if (!grows)
        return;
    void (*hook)(void) = interleave_hook;
    interleave_hook = NULL;
    g->settled = against ? AGAINST : IN_FAVOR;
    if (against)
        call_off(w);
    else
        commit(w);
    interleave_hook = hook;
    wake_all(w);
}

void grow_vote(struct world *w, uint32_t rank, bool in_favor)
{
    w->growth.voted[rank] = in_favor ? IN_FAVOR : AGAINST;
    grow_settle(w);
}

void grow_call_off(struct world *w, uint32_t rank)
{
    struct recovery *r = &w->recovery[rank];
    recover_abandon(w, rank);
    r->grows = r->fails = r->stopped = false;
    r->step = RUNNING;
    w->app[rank].rung = true;
    if (w->growth.newcomer[rank]) {
        w->dead[rank] = w->handled[rank] = true;
        sim_kill(w->sim, rank);
        recover_shrink(w); /* the other ranks may have waited for this one to end */
        wake_all(w);
    } else if (crash_unhandled(w))
        crash_tell(w, rank, w->o.detection);
}

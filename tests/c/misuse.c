/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls in the wrong state must be refused and change nothing. The question for whom the
 * round waits is allowed at any time.
 */
#include <string.h>

#include "base/check.h"
#include "base/random.h"
#include "check.h"
#include "reference.h"
#include "world_state.h"

static void check_refused(struct world *w, uint32_t rank, const char *what, int rc,
                          const struct member *before)
{
    const struct app *a = &w->app[rank];
    struct domain *d = w->endpoint[a->handle][rank]->domain;
    struct member after;
    memset(&after, 0, sizeof after); /* padding is compared as well */
    node_snapshot(d, &after);
    EXPECT(rc == PCOLL_ESTATE && !memcmp(before, &after, sizeof after),
           "rank %u, %s, may %s: %d", rank, app_phase_name(a->phase), what, rc);
}

/* Return the ranks that the round waits for, or NULL: any (allreduce/control.c). */
static const uint64_t *awaited_by(struct endpoint *v)
{
    if (v->drives)
        return endpoint_awaited(v);
    return v->placement.domains == 1 ? node_awaited(v->domain) : NULL;
}

static void check_awaited(struct world *w, uint32_t rank)
{
    const struct app *a = &w->app[rank];
    struct endpoint *v = w->endpoint[a->handle][rank];
    struct member m;
    bool live[LEDGER_MAX_RANKS];
    const uint64_t *awaited = awaited_by(v);
    node_poll(v->domain, (int)v->placement.who, &m);
    uint64_t round = v->drives ? v->engine.current : m.complete;
    reference_live(&w->ledger[a->handle], round, live);
    struct quorum_case c = {.ledger = &w->ledger[a->handle],
                            .round = round,
                            .live = live,
                            .stream = splitmix_mix(WORLD_SEED) ^
                                      (uint64_t)(a->handle % w->o.handles),
                            .policy = v->options.policy};
    for (uint32_t r = 0; awaited && r < w->o.ranks; r++)
        INVARIANT("quorum",
                  bitset_has(awaited, r) == (live[r] && reference_may_start(&c, r)),
                  "round %llu waits for rank %u: %d; it is live %d, drawn %d",
                  (unsigned long long)round, r, bitset_has(awaited, r), live[r],
                  reference_may_start(&c, r));
}

static void try_all(struct world *w, uint32_t rank)
{
    const struct app *a = &w->app[rank];
    struct domain *d = w->endpoint[a->handle][rank]->domain;
    const void *send[] = {a->send};
    enum deposit_outcome outcome;
    struct member before;
    memset(&before, 0, sizeof before);
    node_snapshot(d, &before);
    if (before.started || before.left)
        check_refused(w, rank, "start", d->ops->deposit(d, send, &outcome), &before);
    if (before.started)
        check_refused(w, rank, "leave", d->ops->change(d, member_leave), &before);
    if (before.left || (before.started && !before.joining))
        check_refused(w, rank, "join", d->ops->change(d, member_join), &before);
    if (!before.started || before.joining)
        check_refused(w, rank, "finish", d->ops->change(d, member_finish), &before);
}

/* Interleaving is off here, so a change of state would be caused by the call itself. */
void app_misuse(struct world *w, uint32_t rank)
{
    void (*hook)(void) = interleave_hook;
    interleave_hook = NULL;
    check_awaited(w, rank);
    try_all(w, rank);
    interleave_hook = hook;
}

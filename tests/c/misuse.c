/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls at the wrong moment: refused, and nothing has changed. And a question that may
 * be asked at any time: whom does the round wait for?
 */
#include <string.h>

#include "../../csrc/base/splitmix.h"
#include "check.h"
#include "reference.h"
#include "world_state.h"

static void check_refused(struct world *w, uint32_t rank, const char *what, int rc,
                          const struct member *before)
{
    const struct app *a = &w->app[rank];
    struct domain *d = w->vertex[a->handle][rank]->domain;
    struct member after;
    memset(&after, 0, sizeof after); /* what lies between its fields as well */
    d->ops->snapshot(d, 0, &after);
    CHECK(rc == PCOLL_ESTATE && !memcmp(before, &after, sizeof after),
          "rank %u, %s, may %s: %d", rank, app_phase_name(a->phase), what, rc);
}

static void check_awaited(struct world *w, uint32_t rank)
{
    const struct app *a = &w->app[rank];
    struct vertex *v = w->vertex[a->handle][rank];
    bool live[LEDGER_MOST_RANKS];
    const uint64_t *awaited = vertex_awaited(v);
    reference_live(&w->ledger[a->handle], v->engine.current, live);
    struct quorum_case c = {.ledger = &w->ledger[a->handle],
                            .round = v->engine.current,
                            .live = live,
                            .stream = splitmix_mix(WORLD_SEED) ^
                                      (uint64_t)(a->handle % w->o.handles),
                            .policy = v->policy};
    for (uint32_t r = 0; awaited && r < w->o.ranks; r++)
        INVARIANT("quorum",
                  bitset_has(awaited, r) == (live[r] && reference_may_start(&c, r)),
                  "round %llu waits for rank %u: %d; it is live %d, drawn %d",
                  (unsigned long long)v->engine.current, r, bitset_has(awaited, r),
                  live[r], reference_may_start(&c, r));
}

void app_misuse(struct world *w, uint32_t rank)
{
    const struct app *a = &w->app[rank];
    struct domain *d = w->vertex[a->handle][rank]->domain;
    const void *send[] = {a->send};
    enum deposit_outcome outcome;
    struct member before;
    memset(&before, 0, sizeof before);
    d->ops->snapshot(d, 0, &before);
    check_awaited(w, rank);
    if (before.started || before.left)
        check_refused(w, rank, "start", d->ops->deposit(d, 0, send, &outcome), &before);
    if (before.started)
        check_refused(w, rank, "leave", d->ops->change(d, 0, member_leave), &before);
    if (before.left || (before.started && !before.joining))
        check_refused(w, rank, "join", d->ops->change(d, 0, member_join), &before);
    if (!before.started || before.joining)
        check_refused(w, rank, "finish", d->ops->change(d, 0, member_finish), &before);
}

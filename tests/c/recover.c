/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery of simulated ranks: the steps of runtime/recovery.c and
 * allreduce/handle_recovery.c, with MPI's shrink done for all ranks at once and with
 * simulated agreements.
 */
#include <string.h>

#include "check.h"
#include "space.h"
#include "wire.h"
#include "world_state.h"

enum { LONGEST_ENTRY = 3000 };

struct communicator *recover_polled(struct world *w, uint32_t rank)
{
    struct recovery *r = &w->recovery[rank];
    if (r->step == RUNNING)
        return w->communicator[rank];
    return r->step > SHRINKING && !r->fails ? r->to : NULL;
}

static void end_endpoint(void *endpoint)
{
    struct endpoint *v = endpoint;
    spy_abandon(v->domain);
    endpoint_destroy(&v);
}

static void agree(struct recovery *r, uint64_t *values, size_t count, enum agree_op op)
{
    r->agreement = (struct agreement){.values = values, .count = (int)count, .op = op};
    EXPECT_OK(communicator_agree(r->to, &r->agreement));
}

static void enter_barrier(struct world *w, struct recovery *r)
{
    agree(r, world_memory(w, sizeof(uint64_t)), 1, AGREE_MAX);
}

static bool agreed(struct recovery *r)
{
    return atomic_load(&r->agreement.done);
}

/* Shrink once all live ranks are in this step, for all at once. */
void recover_shrink(struct world *w)
{
    bool anybody = false;
    for (uint32_t r = 0; r < w->o.ranks; r++) {
        const struct recovery *of = &w->recovery[r];
        if (!w->dead[r] && (of->step != SHRINKING || of->epoch != w->epoch))
            return;
        anybody = anybody || !w->dead[r];
    }
    EXPECT(anybody, "no rank lives");
    w->report.attempts++;
    memcpy(w->handled, w->dead, sizeof w->dead);
    recover_begin_epoch(w);
}

void recover_begin_epoch(struct world *w)
{
    sim_shrink(w->sim);
    w->epoch++;
    w->revoked = false;
    memset(w->memory, 0, sizeof w->memory);
    world_lay_out(w, w->epoch);
    for (int k = 0; k < w->o.handles; k++) {
        memset(w->ledger[k].sent, 0, sizeof w->ledger[k].sent);
        memset(w->ledger[k].received, 0, sizeof w->ledger[k].received);
    }
    for (uint32_t r = 0; r < w->o.ranks; r++) {
        int64_t later = sim_random(w->sim, LONGEST_ENTRY);
        w->recovery[r].enters_at = sim_now(w->sim) + later;
        if (!w->dead[r])
            sim_wake(w->sim, r, later, WAKE_AGENT);
    }
}

static uint64_t complete_of(struct world *w, int k, uint32_t rank)
{
    struct domain *d = w->endpoint[k][rank]->domain;
    struct member m;
    node_snapshot(d, &m);
    return m.complete;
}

/* A newcomer has no state yet. */
static bool is_new(const struct world *w, uint32_t rank)
{
    return w->recovery[rank].grows && w->growth.newcomer[rank];
}

/* The endpoint before the recovery, or NULL. */
static struct endpoint *old_of(struct world *w, int k, uint32_t rank)
{
    return is_new(w, rank) ? NULL : w->endpoint[k][rank];
}

static void take_inventory(struct world *w, uint32_t rank, struct recovery *r)
{
    uint64_t slots = (uint64_t)w->o.handles;
    r->inventory = world_memory(w, slots * sizeof *r->inventory);
    for (int k = 0; k < w->o.handles; k++)
        r->inventory[k] = !w->gone[k][rank] && !is_new(w, rank)
                              ? inventory_of(complete_of(w, k, rank), rank)
                              : (struct inventory){.lacking = 1};
    agree(r, (uint64_t *)(void *)r->inventory, INVENTORY_WORDS * slots, AGREE_MAX);
}

static void enter(struct world *w, uint32_t rank, struct recovery *r)
{
    struct transport *wire =
        wire_create(w->sim, rank, (uint32_t)w->o.handles, w->o.trouble.duplicates);
    wire_renew(wire, w->ledger);
    EXPECT_OK(communicator_create(wire, NULL, &r->to));
    r->epoch = w->epoch;
    r->step = INVENTORY;
    take_inventory(w, rank, r);
    if (crash_unhandled(w))
        crash_tell(w, rank, w->o.detection);
}

/* Share the result of the last complete round if some rank lacks it. */
static void share_last(struct world *w, uint32_t rank, struct recovery *r,
                       struct endpoint *old)
{
    const struct round_shape *shape = &r->successor[r->handle]->shape;
    size_t bytes = shape->header_bytes + payload_data_bytes(&shape->payload);
    r->resumes[r->handle] = NULL;
    if (!r->plan.complete)
        return;
    struct round_header *last;
    if (!old || complete_of(w, r->handle, rank) < r->plan.complete)
        last = message_in(shape, world_memory(w, bytes));
    else
        last = node_result(old->domain, r->plan.complete - 1);
    r->resumes[r->handle] = last;
    if (!r->plan.some_lack && !r->grows)
        return;
    r->shared = world_memory(w, bytes + sizeof *r->shared);
    if (r->plan.source == rank)
        memcpy(r->shared, (char *)(last + 1) - shape->header_bytes, bytes);
    agree(r, r->shared, (bytes + sizeof *r->shared - 1) / sizeof *r->shared, AGREE_SUM);
    r->step = SHARING;
}

static void rebuild(struct world *w, uint32_t rank, struct recovery *r)
{
    int k = r->handle;
    struct endpoint *old = old_of(w, k, rank);
    uint64_t hosts[LEDGER_MAX_RANKS];
    pcoll_options options = old ? old->options : world_options_of(w, k);
    if (old)
        options.algorithm = (int32_t)old->data.plan.algorithm;
    pcoll_buffer buffer = world_buffer_of(w, k);
    struct endpoint_spec spec = {.ranks = w->o.ranks,
                                 .most = space_hosts(&w->o, hosts),
                                 .hosts = hosts,
                                 .buffers = old ? NULL : &buffer,
                                 .nbuffers = old ? 0 : 1,
                                 .options = &options,
                                 .follows = old,
                                 .failed = r->to->transport->failed};
    EXPECT_OK(endpoint_create(r->to, &spec, &r->successor[k]));
    world_settle(w, k, rank, r->successor[k], &options);
    r->successor[k]->base.slot = r->plan.slot;
    share_last(w, rank, r, old);
}

/* The last round's result is available: begin after it. */
static void begin_at(struct world *w, uint32_t rank, struct recovery *r)
{
    int k = r->handle++;
    const struct round_shape *shape = &r->successor[k]->shape;
    if (r->step == SHARING && r->plan.source != rank)
        memcpy((char *)(r->resumes[k] + 1) - shape->header_bytes, r->shared,
               shape->header_bytes + payload_data_bytes(&shape->payload));
    endpoint_begin_at(r->successor[k], old_of(w, k, rank), r->plan.complete,
                      r->resumes[k]);
    r->step = BUILDING;
}

/* Return the live rank that has entered the most rounds. */
static uint32_t most_frozen(const struct world *w, int k)
{
    const uint64_t *frozen = w->ledger[k].frozen;
    uint32_t most = world_first(w);
    for (uint32_t r = most; r < w->o.ranks; r++)
        most = !w->dead[r] && frozen[r] > frozen[most] ? r : most;
    return most;
}

static void build_next(struct world *w, uint32_t rank, struct recovery *r)
{
    int k = r->handle;
    if (k == w->o.handles) {
        r->step = BUILT;
        enter_barrier(w, r);
        return;
    }
    int planned =
        inventory_plan(&r->inventory[k], (uint32_t)k, w->o.ranks, 0, &r->plan);
    INVARIANT("inventory", planned == PCOLL_OK, "%s", pcoll_last_error());
    if (!r->inventory[k].lacking || r->grows) {
        rebuild(w, rank, r);
        if (r->step == BUILDING)
            begin_at(w, rank, r);
        return;
    }
    INVARIANT("survival", w->gone[k][rank] || w->asked[k][rank],
              "rank %u has a handle that others have ended, and has not closed it",
              rank);
    INVARIANT("one history",
              w->gone[k][rank] ||
                  complete_of(w, k, rank) == w->ledger[k].frozen[most_frozen(w, k)],
              "rank %u has %llu rounds of a handle that others have ended", rank,
              (unsigned long long)complete_of(w, k, rank));
    w->gone[k][rank] = true;
    r->handle++;
}

void recover_replace(struct world *w, int k, uint32_t rank)
{
    struct recovery *r = &w->recovery[rank];
    struct endpoint *v = r->successor[k], *old = w->endpoint[k][rank];
    w->layout[k][w->epoch].from = v->engine.current;
    w->report.redone += old->frozen && !is_new(w, rank);
    w->endpoint[k][rank] = v;
    r->successor[k] = NULL;
    world_keep(w, end_endpoint, old);
}

static void inherit_handle(struct world *w, int k, uint32_t rank)
{
    struct recovery *r = &w->recovery[rank];
    const struct app *a = &w->app[rank];
    struct endpoint *v = r->successor[k];
    bool waits = a->handle == k && (a->phase == WAITING || a->phase == JOINING);
    w->layout[k][w->epoch].from = v->engine.current;
    struct endpoint *old = old_of(w, k, rank);
    EXPECT_OK(endpoint_inherit(v, old, r->resumes[k]));
    INVARIANT("agreement",
              !old || (v->engine.dropped >= old->engine.dropped &&
                       v->engine.early >= old->engine.early),
              "rank %u has counted activations, and begins anew", rank);
    if (!r->grows)
        recover_replace(w, k, rank);
    if (waits)
        node_sleeps(v->domain, true);
    EXPECT_OK(communicator_register(r->to, &v->base, (uint32_t)k));
}

static void inherit_all(struct world *w, uint32_t rank, struct recovery *r)
{
    for (int k = 0; k < w->o.handles; k++)
        if (!w->gone[k][rank])
            inherit_handle(w, k, rank);
    r->step = INHERITED;
    if (r->grows)
        grow_vote(w, rank, true);
    else
        enter_barrier(w, r);
}

static void go(struct world *w, uint32_t rank, struct recovery *r)
{
    world_keep(w, world_end_communicator, w->communicator[rank]);
    w->communicator[rank] = r->to;
    r->to = NULL;
    r->stopped = false;
    w->driving[rank] = true;
    for (int k = 0; k < w->o.handles; k++) {
        if (w->gone[k][rank])
            continue;
        endpoint_poll(w->endpoint[k][rank], true);
        if (w->asked[k][rank])
            EXPECT_OK(endpoint_close(w->endpoint[k][rank]));
    }
    w->driving[rank] = false;
    w->app[rank].rung = true;
    w->report.recoveries += !r->grows;
    if (r->grows)
        app_grown(w, rank, r->plan.complete);
    r->grows = false;
    r->step = r->fails ? STOPPING : RUNNING;
    r->fails = false;
}

void recover_abandon(struct world *w, uint32_t rank)
{
    struct recovery *r = &w->recovery[rank];
    for (int k = 0; k < w->o.handles; k++)
        if (r->successor[k])
            world_keep(w, end_endpoint, r->successor[k]);
    memset(r->successor, 0, sizeof r->successor);
    if (r->to)
        world_keep(w, world_end_communicator, r->to);
    r->to = NULL;
}

/* Start the recovery again after another death. Inherited state is kept. */
static void begin_again(struct world *w, uint32_t rank)
{
    recover_abandon(w, rank);
    w->recovery[rank].fails = false;
    w->recovery[rank].grows = false;
    w->recovery[rank].step = STOPPING;
}

/* Vote or act on the decision if a rank has died or this one has voted. Return false if
 * the next step is to be made. */
static bool settle(struct world *w, uint32_t rank)
{
    struct recovery *r = &w->recovery[rank];
    const struct world_growth *g = &w->growth;
    if (r->fails && !g->voted[rank])
        grow_vote(w, rank, false);
    if (!g->voted[rank])
        return false;
    if (g->settled == AGAINST)
        grow_call_off(w, rank);
    else if (g->settled == IN_FAVOR)
        go(w, rank, r);
    return true;
}

bool recover_advance(struct world *w, uint32_t rank)
{
    struct recovery *r = &w->recovery[rank];
    if (r->grows && r->epoch == w->epoch && settle(w, rank))
        return w->growth.settled != NO_VOTE;
    if (r->fails) {
        begin_again(w, rank);
        return true;
    }
    switch (r->step) {
    case RUNNING:
        return false;
    case STOPPING:
        r->stopped = true;
        r->step = SHRINKING;
        recover_shrink(w);
        return true;
    case PAUSING:
        r->stopped = true;
        r->step = PAUSED;
        grow_begin(w);
        return true;
    case PAUSED:
        if (r->epoch == w->epoch)
            grow_begin(w);
        /* fall through */
    case SHRINKING:
        if (r->epoch == w->epoch || sim_now(w->sim) < r->enters_at)
            return false;
        enter(w, rank, r);
        return true;
    case BUILDING:
        build_next(w, rank, r);
        return true;
    default:
        break;
    }
    if (!agreed(r))
        return false;
    if (r->step == INVENTORY) {
        r->handle = 0;
        r->step = BUILDING;
    } else if (r->step == SHARING)
        begin_at(w, rank, r);
    else if (r->step == BUILT)
        inherit_all(w, rank, r);
    else
        go(w, rank, r);
    return true;
}

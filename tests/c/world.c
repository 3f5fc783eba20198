/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated ranks with their applications and the checks of the contract. */
#include "world.h"

#include <string.h>

#include "../../csrc/allreduce/vertex.h"
#include "../../csrc/base/splitmix.h"
#include "check.h"

char check_context[256] = "";

enum app_phase { THINKING, WAITING, JOINING, FREEING, DONE };

/* The application of one rank: phase, and which handle it is at. */
struct app {
    enum app_phase phase;
    int handle;
    uint64_t call;  /* loops done */
    uint64_t calls; /* loops to do */
    int joins_left;
    bool leaves;
    double value; /* of the next deposit: whole numbers, so that sums are exact */
};

/* The first rank that sees a round says what it was; the others must agree. */
struct seen {
    bool known;
    uint64_t hash;
    uint32_t active, stored;
    int32_t initiator;
};

struct world {
    struct world_options o;
    struct sim *sim;
    struct context *context[WORLD_MOST_RANKS];
    struct vertex *vertex[WORLD_MOST_HANDLES][WORLD_MOST_RANKS];
    struct spy *spy[WORLD_MOST_HANDLES][WORLD_MOST_RANKS];
    struct ledger ledger[WORLD_MOST_HANDLES];
    struct seen *seen[WORLD_MOST_HANDLES];
    struct app app[WORLD_MOST_RANKS];
    uint64_t expected_next[WORLD_MOST_HANDLES][WORLD_MOST_RANKS];
    double *send, *recv;
    struct world_report report;
    uint64_t deliveries;
};

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        hash = splitmix_mix(hash ^ p[i]) + i;
    return hash;
}

/* Reproducible values: of (rank, call) alone, not of the timing. */
static double deposit_value(uint32_t rank, uint64_t call, uint64_t i)
{
    return 1 + splitmix_below(rank * 1000003u + i, call, 1000);
}

/* quorum: who was in, against the policy. Joining ranks arrive without a contribution.
 */
static void check_quorum(struct world *w, int k, const pcoll_round *r,
                         const uint64_t *mask)
{
    uint32_t ranks = w->o.ranks;
    uint64_t round = r->index;
    if (w->o.ending != END_LOOP)
        return;
    CHECK(r->initiator >= 0 && w->ledger[k].arrived[round][r->initiator],
          "round %llu started by rank %d, which has not arrived",
          (unsigned long long)round, r->initiator);
    uint32_t active = bitset_count(mask, bitset_words(ranks));
    uint64_t live[bitset_words(ranks)];
    bitset_fill(live, ranks);
    struct vertex *v = w->vertex[k][0];
    struct policy_view view = {.ranks = ranks,
                               .live = live,
                               .stream = splitmix_mix(v->seed) ^ v->slot,
                               .round = round};
    if (v->policy.kind == PCOLL_FULL)
        CHECK(active == ranks, "full with %u of %u ranks", active, ranks);
    if (v->policy.kind == PCOLL_MAJORITY) {
        uint32_t drawn = (uint32_t)policy_drawn(&view);
        CHECK(w->ledger[k].arrived[round][drawn],
              "rank %u was drawn for round %llu, absent", drawn,
              (unsigned long long)round);
    }
    CHECK(active >= 1, "nobody in round %llu", (unsigned long long)round);
}

/* The result is the sum, over the mask, of what the ranks were seen to put in. */
static void check_result(struct world *w, int k, uint64_t round, const uint64_t *mask)
{
    struct ledger *l = &w->ledger[k];
    double sum = 0;
    for (uint32_t r = 0; r < w->o.ranks; r++) {
        bool in = bitset_has(mask, r);
        CHECK(in == l->active[round][r], "rank %u in the mask of round %llu: %d", r,
              (unsigned long long)round, in);
        sum += in ? l->contributed[round][r] : 0;
    }
    CHECK(w->recv[0] == sum, "round %llu of handle %d: %g, expected %g",
          (unsigned long long)round, k, w->recv[0], sum);
    for (uint32_t i = 1; i < w->o.count; i++)
        CHECK(w->recv[i] ==
                      sum + i * (double)bitset_count(mask, bitset_words(w->o.ranks)) ||
                  w->spy[k][0]->late == PCOLL_LATE_CARRY,
              "element %u of round %llu", i, (unsigned long long)round);
}

/* agreement: the same bits, mask and counts wherever the round is seen. */
static void check_agreement(struct world *w, int k, const pcoll_round *r,
                            const uint64_t *masks)
{
    size_t words = bitset_words(w->o.ranks);
    uint64_t hash = hash_bytes(1, w->recv, w->o.count * sizeof *w->recv);
    hash = hash_bytes(hash, masks, 2 * words * sizeof *masks);
    struct seen *s = &w->seen[k][r->index];
    struct seen now = {true, hash, r->active, r->stored, r->initiator};
    if (!s->known) {
        *s = now;
        return;
    }
    CHECK(s->hash == now.hash && s->active == now.active && s->stored == now.stored &&
              s->initiator == now.initiator,
          "two ranks saw different rounds %llu of handle %d",
          (unsigned long long)r->index, k);
}

/* order: in sequence, or the gap is reported. */
static void check_order(struct world *w, int k, uint32_t rank, const pcoll_round *r)
{
    uint64_t *next = &w->expected_next[k][rank];
    CHECK(r->index == *next + r->lost, "rank %u got round %llu after %llu, lost %llu",
          rank, (unsigned long long)r->index, (unsigned long long)*next,
          (unsigned long long)r->lost);
    CHECK(!r->lost || w->o.handle[k].deliver == PCOLL_DELIVER_ALL,
          "rank %u lost rounds with deliver=one", rank);
    *next = r->index + 1;
}

static bool deliver_one(struct world *w, int k, uint32_t rank, uint64_t last,
                        pcoll_round *r)
{
    struct vertex *v = w->vertex[k][rank];
    uint64_t masks[2 * bitset_words(w->o.ranks)];
    bool moved = false;
    void *recv[] = {w->recv};
    int rc = v->domain->ops->deliver(v->domain, 0, last, recv, r, masks, &moved);
    if (rc == PCOLL_EEMPTY)
        return false;
    CHECK_OK(rc);
    check_order(w, k, rank, r);
    check_result(w, k, r->index, masks);
    check_agreement(w, k, r, masks);
    check_quorum(w, k, r, masks);
    w->report.active_mean += r->active;
    w->report.lost += r->lost;
    w->deliveries++;
    if (moved)
        context_kick(w->context[rank], v);
    return true;
}

static void think(struct world *w, uint32_t rank)
{
    int64_t mean = w->o.think * (rank == w->o.slow ? 20 : 1);
    int64_t time = mean ? sim_random(w->sim, (uint32_t)(2 * mean) + 1) : 0;
    w->app[rank].phase = THINKING;
    sim_wake(w->sim, rank, time, 1);
}

static void start(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct vertex *v = w->vertex[a->handle][rank];
    enum deposit_outcome outcome;
    for (uint32_t i = 0; i < w->o.count; i++)
        w->send[i] = deposit_value(rank, a->call, (uint64_t)a->handle) + i;
    const void *send[] = {w->send};
    CHECK_OK(v->domain->ops->deposit(v->domain, 0, send, &outcome));
    /* What was handed over may be overwritten at once. */
    memset(w->send, 0xff, w->o.count * sizeof *w->send);
    if (outcome == DEPOSIT_ARRIVED)
        context_kick(w->context[rank], v);
    a->phase = WAITING;
}

static void begin_join(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct vertex *v = w->vertex[a->handle][rank];
    CHECK_OK(v->domain->ops->change(v->domain, 0, member_join));
    context_kick(w->context[rank], v);
    a->phase = JOINING;
}

static void begin_free(struct world *w, uint32_t rank)
{
    w->app[rank].phase = FREEING;
    w->app[rank].handle = 0;
    CHECK_OK(vertex_close(w->vertex[0][rank]));
}

static void leave_all(struct world *w, uint32_t rank)
{
    for (int k = 0; k < w->o.handles; k++) {
        struct vertex *v = w->vertex[k][rank];
        CHECK_OK(v->domain->ops->change(v->domain, 0, member_leave));
        context_kick(w->context[rank], v);
    }
}

/* A loop is over: again, or the end that was asked for. */
static void next_loop(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    a->call++;
    bool all = w->o.handle[0].deliver == PCOLL_DELIVER_ALL && w->o.ending == END_LOOP;
    uint64_t progress = all ? w->expected_next[0][rank] : a->call;
    if (progress < a->calls)
        think(w, rank);
    else if (a->leaves) {
        leave_all(w, rank);
        begin_free(w, rank);
    } else if (a->joins_left)
        begin_join(w, rank);
    else
        begin_free(w, rank);
}

/* After the first join everybody works again, other numbers of calls, and joins again.
 */
static void join_over(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    if (++a->handle < w->o.handles) {
        begin_join(w, rank);
        return;
    }
    a->handle = 0;
    if (--a->joins_left) {
        uint32_t whose = w->o.handles == 1 ? rank : 0;
        a->calls = a->call + 1 + splitmix_below(w->o.seed + 5, whose, 5);
        think(w, rank);
    } else
        begin_free(w, rank);
}

static void finish_call(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct domain *d = w->vertex[a->handle][rank]->domain;
    struct member m;
    pcoll_round r;
    d->ops->snapshot(d, 0, &m);
    uint64_t last = m.deliver == PCOLL_DELIVER_ONE ? m.delivered : m.complete - 1;
    while (deliver_one(w, a->handle, rank, last, &r))
        ;
    CHECK_OK(d->ops->change(d, 0, member_finish));
    if (++a->handle < w->o.handles)
        start(w, rank);
    else {
        a->handle = 0;
        next_loop(w, rank);
    }
}

static bool advance_join(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct domain *d = w->vertex[a->handle][rank]->domain;
    pcoll_round r;
    if (!d->ops->ready(d, 0) || !deliver_one(w, a->handle, rank, UINT64_MAX, &r))
        return false;
    if (r.joined) {
        CHECK_OK(d->ops->change(d, 0, member_finish));
        join_over(w, rank);
    }
    return true;
}

static bool advance_free(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    if (atomic_load(&w->vertex[a->handle][rank]->closing) != CLOSED)
        return false;
    if (++a->handle < w->o.handles)
        CHECK_OK(vertex_close(w->vertex[a->handle][rank]));
    else
        a->phase = DONE;
    return a->phase != DONE;
}

/* One step of a rank's application, if it can make one. */
static bool advance(struct world *w, uint32_t rank)
{
    struct app *a = &w->app[rank];
    struct domain *d = w->vertex[a->handle][rank]->domain;
    switch (a->phase) {
    case WAITING:
        if (!d->ops->ready(d, 0))
            return false;
        finish_call(w, rank);
        return true;
    case JOINING:
        return advance_join(w, rank);
    case FREEING:
        return advance_free(w, rank);
    case THINKING:
    case DONE:
        return false;
    }
    return false;
}

static void run_rank(struct world *w, uint32_t rank)
{
    do {
        while (context_poll(w->context[rank]) > 0)
            ;
        CHECK_OK(context_check(w->context[rank]));
    } while (advance(w, rank));
}

/* liveness: nothing left to happen, but somebody still waits. */
static void check_not_stuck(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++) {
        struct app *a = &w->app[r];
        if (a->phase == DONE)
            continue;
        for (uint32_t i = 0; i < w->o.ranks; i++) {
            struct vertex *v = w->vertex[w->app[i].handle][i];
            fprintf(stderr,
                    "rank %u: phase %d, handle %d, call %llu, round %llu, frozen %d, "
                    "released %d\n",
                    i, w->app[i].phase, w->app[i].handle,
                    (unsigned long long)w->app[i].call,
                    (unsigned long long)v->engine.current, v->frozen,
                    v->engine.released);
        }
        CHECK(a->phase == DONE, "deadlock: rank %u waits", r);
    }
}

static void create(struct world *w)
{
    const struct world_options *o = &w->o;
    CHECK_OK(sim_create(
        &(struct sim_options){
            .size = o->ranks, .seed = o->seed, .latency_min = 500, .latency_max = 5000},
        &w->sim));
    for (int k = 0; k < o->handles; k++) {
        ledger_init(&w->ledger[k], o->ranks);
        w->seen[k] = calloc(SPY_MOST_ROUNDS, sizeof *w->seen[k]);
    }
    for (uint32_t r = 0; r < o->ranks; r++) {
        CHECK_OK(context_create(sim_endpoint(w->sim, r), NULL, &w->context[r]));
        for (int k = 0; k < o->handles; k++) {
            const struct world_handle *h = &o->handle[k];
            pcoll_options options = {.policy = {h->policy},
                                     .deliver = h->deliver,
                                     .late = h->late,
                                     .history = h->history,
                                     .seed = 7};
            pcoll_buffer buffer = {o->count, PCOLL_FLOAT64, PCOLL_SUM};
            struct spy_arg arg = {.ledger = &w->ledger[k], .rank = r};
            struct vertex_spec spec = {.ranks = o->ranks,
                                       .buffers = &buffer,
                                       .nbuffers = 1,
                                       .options = &options,
                                       .create_domain = spy_create,
                                       .domain_arg = &arg};
            CHECK_OK(vertex_create(w->context[r], &spec, &w->vertex[k][r]));
            CHECK_OK(context_register(w->context[r], w->vertex[k][r], (uint32_t)k));
            w->spy[k][r] = arg.made;
        }
    }
}

static void destroy(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++) {
        for (int k = 0; k < w->o.handles; k++) {
            context_unregister(w->context[r], (uint32_t)k);
            vertex_destroy(&w->vertex[k][r]);
        }
        context_destroy(&w->context[r]);
    }
    for (int k = 0; k < w->o.handles; k++) {
        ledger_free(&w->ledger[k]);
        free(w->seen[k]);
    }
    sim_free(&w->sim);
    free(w->send);
    free(w->recv);
}

static void start_apps(struct world *w)
{
    const struct world_options *o = &w->o;
    for (uint32_t r = 0; r < o->ranks; r++) {
        struct app *a = &w->app[r];
        /* Several handles: equal loops, as the contract asks for. */
        bool uneven = o->ending != END_LOOP && o->handles == 1;
        a->calls =
            uneven ? 1 + splitmix_below(o->seed + 3, r, (uint32_t)o->calls) : o->calls;
        a->joins_left = o->ending != END_LOOP ? 2 : 0;
        a->leaves = o->ending == END_LEAVE && uneven && r > 0 &&
                    splitmix_below(o->seed + 4, r, 3) == 0;
        think(w, r);
    }
}

/* conservation, at the end: all that was handed in has come out, or is known to be
 * pending or forgotten. */
static void check_conservation(struct world *w)
{
    for (int k = 0; k < w->o.handles; k++) {
        double in = 0, out = 0;
        for (uint32_t r = 0; r < w->o.ranks; r++) {
            const struct spy *s = w->spy[k][r];
            in += s->deposited - s->dropped - (s->has_pending ? s->pending : 0);
            for (uint64_t t = 0; t < w->ledger[k].frozen[r]; t++)
                out += w->ledger[k].contributed[t][r];
            CHECK(w->o.ending != END_JOIN || !s->has_pending, "rank %u still owes %g",
                  r, s->pending);
            CHECK(w->ledger[k].frozen[r] == w->ledger[k].frozen[0],
                  "ranks ended in different rounds");
        }
        CHECK(in == out, "handle %d: %g handed in, %g came out", k, in, out);
    }
}

static void fill_report(struct world *w)
{
    for (int k = 0; k < w->o.handles; k++) {
        w->report.rounds[k] = w->ledger[k].frozen[0];
        w->report.hash[k] = 1;
        for (uint64_t t = 0; t < w->ledger[k].frozen[0]; t++)
            w->report.hash[k] = splitmix_mix(w->report.hash[k] ^ w->seen[k][t].hash);
    }
    w->report.active_mean /= w->deliveries ? (double)w->deliveries : 1;
}

void world_run(const struct world_options *options, struct world_report *report)
{
    struct world *w = calloc(1, sizeof *w);
    w->o = *options;
    w->send = calloc(options->count, sizeof *w->send);
    w->recv = calloc(options->count, sizeof *w->recv);
    create(w);
    start_apps(w);
    struct sim_stop stop;
    while (sim_step(w->sim, &stop)) {
        struct app *a = &w->app[stop.rank];
        if (stop.woken && stop.token == 1 && a->phase == THINKING)
            start(w, stop.rank);
        run_rank(w, stop.rank);
    }
    check_not_stuck(w);
    check_conservation(w);
    fill_report(w);
    if (report)
        *report = w->report;
    destroy(w);
    free(w);
}

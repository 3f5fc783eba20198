/* SPDX-License-Identifier: Apache-2.0 */
/* Create simulated ranks, run them, and print their state after a failure. */
#include "world.h"

#include <string.h>

#include "domain/node.h"
#include "base/random.h"
#include "check.h"
#include "space.h"
#include "threads.h"
#include "wire.h"
#include "world_state.h"

static struct world *current; /* for the dump, which has no arguments */

static void dump_operations(FILE *out, const struct endpoint *v)
{
    static const char *const states[] = {"waits", "ready", "runs", "done"};
    for (uint32_t i = 0; i < v->sched->count; i++) {
        enum op_state state = engine_state(&v->engine, v->engine.current, (int)i);
        if (state != OP_DONE)
            fprintf(out, " %u:%s", i, states[state]);
    }
}

static void dump_rank(FILE *out, struct world *w, int k, uint32_t rank)
{
    struct endpoint *v = w->endpoint[k][rank];
    if (!v || w->dead[rank])
        return; /* not created yet, or freed */
    const struct app *a = &w->app[rank];
    struct member m;
    node_poll(v->domain, (int)v->placement.who, &m);
    fprintf(out,
            "  rank %u: %s%s at handle %d, recovery %d, call %llu; round %llu %s, "
            "frozen %llu, "
            "complete %llu, delivered %llu%s%s%s%s; closing %d; not done:",
            rank, app_phase_name(a->phase), a->stalled ? " (stalled)" : "", a->handle,
            (int)w->recovery[rank].step, (unsigned long long)a->call,
            (unsigned long long)v->engine.current,
            v->engine.released ? "released" : "held", (unsigned long long)m.frozen,
            (unsigned long long)m.complete, (unsigned long long)m.delivered,
            m.arrived ? ", arrived" : "", m.started ? ", in a call" : "",
            m.joining ? ", joining" : "", m.left ? ", left" : "",
            atomic_load(&v->closing));
    dump_operations(out, v);
    fprintf(out, "\n");
}

/* Print every handle on every rank, and the operations of the rank that is behind. */
static void dump(FILE *out)
{
    struct world *w = current;
    interleave_hook = NULL;
    for (int k = 0; k < w->o.handles * w->o.generations; k++) {
        struct endpoint *behind = NULL;
        fprintf(out, "handle %d, %s, at %lld ns:\n", k,
                space_policy_text(handle_of(w, k)), (long long)sim_now(w->sim));
        for (uint32_t r = 0; r < w->o.ranks; r++) {
            struct endpoint *v = w->endpoint[k][r];
            dump_rank(out, w, k, r);
            if (v && !w->dead[r] &&
                (!behind || v->engine.current < behind->engine.current))
                behind = v;
        }
        char *dot = NULL;
        if (behind && sched_print(behind->sched, "dot", &dot) == PCOLL_OK)
            fprintf(out, "schedule of rank %u:\n%s",
                    behind->communicator->transport->rank, dot);
        free(dot);
    }
}

static void wake(void *arg, uint32_t rank)
{
    const struct way *way = arg;
    app_ring(way->world, way->handle, rank);
}

static void alert(void *arg, uint32_t rank)
{
    const struct way *way = arg;
    app_alert(way->world, rank);
}

static void *memory_of(struct world *w, int k, const struct endpoint *v,
                       const pcoll_options *options)
{
    void **memory = &w->memory[k][v->placement.index];
    size_t bytes = node_bytes(&v->shape, options, &v->placement);
    if (!*memory && v->placement.members > 1)
        *memory = world_memory(w, bytes);
    return v->placement.members > 1 ? *memory : NULL;
}

void world_settle(struct world *w, int k, uint32_t rank, struct endpoint *v,
                  const pcoll_options *options)
{
    const struct world_layout *expected = &w->layout[k % w->o.handles][w->epoch];
    for (uint32_t r = 0; r < w->o.ranks; r++)
        INVARIANT("survival", placement_domain(&v->placement, r) == expected->domain[r],
                  "rank %u: other domains than are expected", rank);
    w->way[k] = (struct way){w, k};
    struct spy_arg arg = {.ledger = &w->ledger[k],
                          .sim = w->sim,
                          .rank = rank,
                          .own = v,
                          .endpoints = w->endpoint[k],
                          .epoch = w->epoch,
                          .grows = w->recovery[rank].grows,
                          .memory = memory_of(w, k, v, options),
                          .arg = &w->way[k],
                          .wake = wake,
                          .alert = alert};
    EXPECT_OK(endpoint_settle(v, spy_create, &arg));
}

pcoll_options world_options_of(const struct world *w, int k)
{
    const struct world_handle *h = handle_of(w, k);
    pcoll_options options = {.algorithm = space_algorithms[h->algorithm].algorithm,
                             .deliver = h->deliver,
                             .owned_send = h->owned_send,
                             .late = h->late,
                             .history = h->history,
                             .seed = WORLD_SEED};
    if (w->o.crashes)
        options.on_failure = PCOLL_FAILURE_CONTINUE;
    options.policy = space_policy_of(h);
    return options;
}

pcoll_buffer world_buffer_of(const struct world *w, int k)
{
    return (pcoll_buffer){
        .count = w->o.count, .dtype = PCOLL_FLOAT64, .op = handle_of(w, k)->op};
}

static void create_handle(struct world *w, int k, uint32_t rank)
{
    uint64_t hosts[LEDGER_MAX_RANKS];
    pcoll_options options = world_options_of(w, k);
    pcoll_buffer buffer = world_buffer_of(w, k);
    bool native = options.algorithm == PCOLL_ALGORITHM_NATIVE;
    struct endpoint_spec spec = {.ranks = w->o.ranks,
                                 .most = space_hosts(&w->o, hosts),
                                 .hosts = native ? NULL : hosts,
                                 .buffers = &buffer,
                                 .nbuffers = 1,
                                 .options = &options};
    EXPECT_OK(endpoint_create(w->communicator[rank], &spec, &w->endpoint[k][rank]));
    world_settle(w, k, rank, w->endpoint[k][rank], &options);
    EXPECT_OK(endpoint_open(w->endpoint[k][rank]));
    EXPECT_OK(communicator_register(w->communicator[rank], &w->endpoint[k][rank]->base,
                                    (uint32_t)(k % w->o.handles)));
}

/* A handle that ended before a recovery is not in the current communicator. */
static void free_handle(struct world *w, int k, uint32_t rank)
{
    struct endpoint *v = w->endpoint[k][rank];
    if (w->dead[rank])
        spy_abandon(v->domain);
    else if (v->communicator == w->communicator[rank])
        communicator_unregister(w->communicator[rank], (uint32_t)(k % w->o.handles));
    endpoint_destroy(&w->endpoint[k][rank]);
}

void world_make_handles(struct world *w, uint32_t rank, int generation)
{
    int first = generation * w->o.handles;
    wire_renew(w->communicator[rank]->transport, &w->ledger[first]);
    for (int k = first; k < first + w->o.handles; k++) {
        if (generation)
            free_handle(w, k - w->o.handles, rank);
        create_handle(w, k, rank);
    }
}

static void create(struct world *w)
{
    const struct world_options *o = &w->o;
    const struct world_trouble *t = &o->trouble;
    EXPECT_OK(sim_create(&(struct sim_options){.size = o->ranks,
                                               .seed = o->seed,
                                               .network = o->network,
                                               .hostile = true,
                                               .stall_one_in = t->agent_stalls,
                                               .stall_longest = t->stall_longest,
                                               .spurious_one_in = t->spurious_wakes},
                         &w->sim));
    for (int k = 0; k < o->handles * o->generations; k++)
        ledger_clear(&w->ledger[k], o->ranks);
    world_lay_out(w, 0);
    for (uint32_t r = 0; r < o->ranks; r++) {
        struct transport *wire =
            wire_create(w->sim, r, (uint32_t)o->handles, t->duplicates);
        EXPECT_OK(communicator_create(wire, NULL, &w->communicator[r]));
        world_make_handles(w, r, 0);
        w->app[r].send = calloc(o->count, sizeof *w->app[r].send);
        w->app[r].recv = calloc(o->count, sizeof *w->app[r].recv);
    }
}

static void keep(struct kept **list, void (*end)(void *what), void *what)
{
    struct kept *k = malloc(sizeof *k);
    EXPECT(k, "no memory");
    *k = (struct kept){.end = end, .what = what, .next = *list};
    *list = k;
}

void world_keep(struct world *w, void (*end)(void *what), void *what)
{
    keep(&w->kept, end, what);
}

void *world_memory(struct world *w, size_t bytes)
{
    size_t whole = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, whole);
    EXPECT(memory, "no memory for %zu bytes", bytes);
    memset(memory, 0, whole);
    keep(&w->kept_memory, free, memory);
    return memory;
}

/* Operations in progress in this communicator never complete. */
void world_end_communicator(void *communicator)
{
    struct communicator *c = communicator;
    struct transport *t = c->transport;
    c->transport = NULL;
    communicator_destroy(&c);
    t->ops->destroy(t);
}

static void end_kept(struct kept **list)
{
    while (*list) {
        struct kept *k = *list;
        *list = k->next;
        k->end(k->what);
        free(k);
    }
}

void world_lay_out(struct world *w, uint32_t epoch)
{
    for (int k = 0; k < w->o.handles; k++) {
        struct world_layout *to = &w->layout[k][epoch];
        to->from = epoch ? UINT64_MAX : 0; /* until a rank continues in it */
        to->domains =
            space_domains(&w->o, w->o.handle[k].algorithm, w->dead, to->domain);
    }
}

static void destroy(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++) {
        for (int k = 0; k < w->o.handles; k++)
            free_handle(w, (w->o.generations - 1) * w->o.handles + k, r);
        recover_abandon(w, r);
        if (w->dead[r])
            world_keep(w, world_end_communicator, w->communicator[r]);
        else
            communicator_destroy(&w->communicator[r]);
        free(w->app[r].send);
        free(w->app[r].recv);
    }
    end_kept(&w->kept);
    end_kept(&w->kept_memory);
    sim_free(&w->sim);
}

static void fill_report(struct world *w)
{
    uint32_t first = world_first(w);
    for (int k = 0; k < w->o.handles * w->o.generations; k++) {
        w->report.rounds[k] = w->ledger[k].frozen[first];
        w->report.hash[k] = 1;
        for (uint64_t t = 0; t < w->ledger[k].frozen[first]; t++)
            w->report.hash[k] =
                splitmix_mix(w->report.hash[k] ^ w->ledger[k].seen[t].hash);
    }
    w->report.active_mean /= w->deliveries ? (double)w->deliveries : 1;
}

void world_run(const struct world_options *options, struct world_report *report)
{
    static struct ledger ledgers[WORLD_MAX_MADE];
    struct world *w = calloc(1, sizeof *w);
    w->o = *options;
    w->ledger = ledgers;
    create(w);
    current = w;
    check_dump = dump;
    for (uint32_t r = 0; r < w->o.ranks; r++)
        app_begin(w, r);
    threads_run(w);
    check_none_waits(w);
    check_end(w);
    fill_report(w);
    check_dump = NULL;
    if (report)
        *report = w->report;
    destroy(w);
    free(w);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated ranks: made, run to their end, looked at when something is wrong. */
#include "world.h"

#include <string.h>

#include "../../csrc/domain/node.h"
#include "../../csrc/base/splitmix.h"
#include "check.h"
#include "space.h"
#include "threads.h"
#include "wire.h"
#include "world_state.h"

static struct world *current; /* for the dump, which has no arguments */

static void dump_operations(FILE *out, const struct vertex *v)
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
    struct vertex *v = w->vertex[k][rank];
    if (!v)
        return; /* not yet, or freed */
    const struct app *a = &w->app[rank];
    struct member m;
    v->domain->ops->look(v->domain, (int)v->plane.who, &m);
    fprintf(out,
            "  rank %u: %s%s at handle %d, call %llu; round %llu %s, frozen %llu, "
            "complete %llu, delivered %llu%s%s%s%s; closing %d; not done:",
            rank, app_phase_name(a->phase), a->stalled ? " (stalled)" : "", a->handle,
            (unsigned long long)a->call, (unsigned long long)v->engine.current,
            v->engine.released ? "released" : "held", (unsigned long long)m.frozen,
            (unsigned long long)m.complete, (unsigned long long)m.delivered,
            m.arrived ? ", arrived" : "", m.started ? ", in a call" : "",
            m.joining ? ", joining" : "", m.left ? ", left" : "",
            atomic_load(&v->closing));
    dump_operations(out, v);
    fprintf(out, "\n");
}

/* Every handle, every rank; and what the operations are, on the rank that is behind. */
static void dump(FILE *out)
{
    struct world *w = current;
    interleave_hook = NULL;
    for (int k = 0; k < w->o.handles * w->o.generations; k++) {
        struct vertex *behind = NULL;
        fprintf(out, "handle %d, %s, at %lld ns:\n", k,
                space_policy_text(handle_of(w, k)), (long long)sim_now(w->sim));
        for (uint32_t r = 0; r < w->o.ranks; r++) {
            struct vertex *v = w->vertex[k][r];
            dump_rank(out, w, k, r);
            if (v && (!behind || v->engine.current < behind->engine.current))
                behind = v;
        }
        char *dot = behind ? sched_dot(behind->sched) : NULL;
        if (dot)
            fprintf(out, "schedule of rank %u:\n%s", behind->context->transport->rank,
                    dot);
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

static void *memory_of(struct world *w, int k, const struct vertex *v,
                       const pcoll_options *options)
{
    void **memory = &w->memory[k][v->plane.index];
    size_t bytes = node_bytes(&v->shape, options, &v->plane);
    if (!*memory && v->plane.members > 1) {
        *memory = aligned_alloc(64, bytes);
        CHECK(*memory, "no memory for a domain");
        memset(*memory, 0, bytes);
    }
    return *memory;
}

static void settle(struct world *w, int k, uint32_t rank, const pcoll_options *options)
{
    struct vertex *v = w->vertex[k][rank];
    CHECK(!memcmp(v->plane.domain, domain_of(w, k), w->o.ranks * sizeof(uint32_t)),
          "rank %u: other domains than are expected", rank);
    w->way[k] = (struct way){w, k};
    struct spy_arg arg = {.ledger = &w->ledger[k],
                          .sim = w->sim,
                          .rank = rank,
                          .vertices = w->vertex[k],
                          .memory = memory_of(w, k, v, options),
                          .arg = &w->way[k],
                          .wake = wake,
                          .alert = alert};
    CHECK_OK(vertex_settle(v, options, spy_create, &arg));
}

static void create_handle(struct world *w, int k, uint32_t rank)
{
    const struct world_handle *h = handle_of(w, k);
    uint64_t hosts[LEDGER_MOST_RANKS];
    pcoll_options options = {.algorithm = space_algorithms[h->algorithm].algorithm,
                             .deliver = h->deliver,
                             .owned_send = h->owned_send,
                             .late = h->late,
                             .history = h->history,
                             .seed = WORLD_SEED};
    options.policy = space_policy_of(h);
    pcoll_buffer buffer = {.count = w->o.count, .dtype = PCOLL_FLOAT64, .op = h->op};
    bool native = options.algorithm == PCOLL_ALGORITHM_NATIVE;
    struct vertex_spec spec = {.ranks = w->o.ranks,
                               .most = space_hosts(&w->o, hosts),
                               .hosts = native ? NULL : hosts,
                               .buffers = &buffer,
                               .nbuffers = 1,
                               .options = &options};
    CHECK_OK(vertex_create(w->context[rank], &spec, &w->vertex[k][rank]));
    settle(w, k, rank, &options);
    CHECK_OK(vertex_open(w->vertex[k][rank]));
    CHECK_OK(context_register(w->context[rank], &w->vertex[k][rank]->base,
                              (uint32_t)(k % w->o.handles)));
}

static void free_handle(struct world *w, int k, uint32_t rank)
{
    context_unregister(w->context[rank], (uint32_t)(k % w->o.handles));
    vertex_destroy(&w->vertex[k][rank]);
}

void world_make_handles(struct world *w, uint32_t rank, int generation)
{
    int first = generation * w->o.handles;
    wire_renew(w->context[rank]->transport, &w->ledger[first]);
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
    CHECK_OK(sim_create(&(struct sim_options){.size = o->ranks,
                                              .seed = o->seed,
                                              .network = o->network,
                                              .hostile = true,
                                              .stall_one_in = t->agent_stalls,
                                              .stall_longest = t->stall_longest,
                                              .spurious_one_in = t->spurious_wakes},
                        &w->sim));
    for (int k = 0; k < o->handles * o->generations; k++)
        ledger_clear(&w->ledger[k], o->ranks);
    for (int k = 0; k < o->handles; k++)
        w->domains[k] = space_domains(o, o->handle[k].algorithm, w->domain[k]);
    for (uint32_t r = 0; r < o->ranks; r++) {
        struct transport *wire =
            wire_create(w->sim, r, (uint32_t)o->handles, t->duplicates);
        CHECK_OK(context_create(wire, NULL, &w->context[r]));
        world_make_handles(w, r, 0);
        w->app[r].send = calloc(o->count, sizeof *w->app[r].send);
        w->app[r].recv = calloc(o->count, sizeof *w->app[r].recv);
    }
}

static void destroy(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++) {
        for (int k = 0; k < w->o.handles; k++)
            free_handle(w, (w->o.generations - 1) * w->o.handles + k, r);
        context_destroy(&w->context[r]);
        free(w->app[r].send);
        free(w->app[r].recv);
    }
    for (int k = 0; k < WORLD_MOST_MADE; k++)
        for (uint32_t i = 0; i < w->o.ranks; i++)
            free(w->memory[k][i]);
    sim_free(&w->sim);
}

static void fill_report(struct world *w)
{
    for (int k = 0; k < w->o.handles * w->o.generations; k++) {
        w->report.rounds[k] = w->ledger[k].frozen[0];
        w->report.hash[k] = 1;
        for (uint64_t t = 0; t < w->ledger[k].frozen[0]; t++)
            w->report.hash[k] =
                splitmix_mix(w->report.hash[k] ^ w->ledger[k].seen[t].hash);
    }
    w->report.active_mean /= w->deliveries ? (double)w->deliveries : 1;
}

void world_run(const struct world_options *options, struct world_report *report)
{
    static struct ledger ledgers[WORLD_MOST_MADE];
    struct world *w = calloc(1, sizeof *w);
    w->o = *options;
    w->ledger = ledgers;
    create(w);
    current = w;
    check_dump = dump;
    for (uint32_t r = 0; r < w->o.ranks; r++)
        app_begin(w, r);
    threads_run(w);
    check_nobody_waits(w);
    check_end(w);
    fill_report(w);
    check_dump = NULL;
    if (report)
        *report = w->report;
    destroy(w);
    free(w);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three ranks on two vertices: ranks 0 and 1 share a domain, rank 2 is alone. The
 * rounds of every policy, with random delays, compared with the sum over the mask.
 */
#include "../../csrc/allreduce/vertex.h"
#include "../../csrc/transport/sim.h"
#include "check.h"
#include "pair.h"

enum { RANKS = 3, VERTICES = 2, ROUNDS = 60 };

struct app {
    struct vertex *vertex;
    struct context *context;
    int who; /* member of its domain */
    uint64_t round;
    bool waiting;
};

struct seen {
    double sum;
    uint64_t mask;
};

static uint32_t vertex_of(uint32_t rank)
{
    return rank < 2 ? 0 : 1;
}

static void start(struct app *a, uint32_t rank)
{
    double value[2] = {(double)((rank + 1) * 1000 + a->round), 1};
    const void *send[] = {value};
    enum deposit_outcome outcome;
    struct domain *d = a->vertex->domain;
    CHECK_OK(d->ops->deposit(d, a->who, send, &outcome));
    if (outcome == DEPOSIT_ARRIVED)
        context_kick(a->context, &a->vertex->base);
    a->waiting = true;
}

/* late=drop: what is in a round is the deposits made for it, so the sum can be told. */
static void finish(struct app *a, struct seen *seen, int policy)
{
    struct domain *d = a->vertex->domain;
    double value[2], sum = 0;
    void *recv[] = {value};
    uint64_t masks[2];
    pcoll_round r;
    bool moved;
    CHECK_OK(d->ops->deliver(d, a->who, a->round, UINT64_MAX, recv, &r, masks, &moved));
    if (moved)
        context_kick(a->context, &a->vertex->base);
    CHECK(r.index == a->round, "round %llu", (unsigned long long)r.index);
    for (uint32_t i = 0; i < RANKS; i++)
        sum += bitset_has(masks, i) ? (i + 1) * 1000.0 + (double)a->round : 0;
    CHECK(value[0] == sum && value[1] == r.active, "round %llu: %g of %u, expected %g",
          (unsigned long long)r.index, value[0], r.active, sum);
    CHECK(policy != PCOLL_FULL || r.active == RANKS, "full with %u", r.active);
    CHECK(r.active >= 1, "nobody");
    struct seen *s = &seen[r.index];
    CHECK(!s->sum || (s->sum == sum && s->mask == masks[0]), "ranks disagree");
    *s = (struct seen){sum, masks[0]};
    CHECK_OK(d->ops->change(d, a->who, member_finish));
    a->round++;
    a->waiting = false;
}

static void make(struct sim *sim, struct app *apps, struct context **contexts,
                 struct vertex **vertices, int policy)
{
    pcoll_options options = {
        .policy = {policy}, .late = PCOLL_LATE_DROP, .history = 3, .seed = 5};
    pcoll_buffer buffer = {.count = 2, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    for (uint32_t v = 0; v < VERTICES; v++) {
        uint32_t first = v == 0 ? 0 : 2;
        struct vertex_spec spec = {.ranks = RANKS,
                                   .buffers = &buffer,
                                   .nbuffers = 1,
                                   .options = &options,
                                   .create_domain =
                                       v ? domain_single_create : pair_create,
                                   .domain_arg = &first};
        CHECK_OK(context_create(sim_endpoint(sim, v), NULL, &contexts[v]));
        CHECK_OK(vertex_create(contexts[v], &spec, &vertices[v]));
        CHECK_OK(context_register(contexts[v], &vertices[v]->base, 0));
    }
    for (uint32_t r = 0; r < RANKS; r++)
        apps[r] = (struct app){.vertex = vertices[vertex_of(r)],
                               .context = contexts[vertex_of(r)],
                               .who = r == 1};
}

/* Wake-ups carry the rank they are for; vertices share theirs. */
static void run(int policy, uint64_t seed)
{
    struct sim *sim;
    struct app apps[RANKS];
    struct seen seen[ROUNDS] = {{0, 0}};
    struct context *contexts[VERTICES];
    struct vertex *vertices[VERTICES];
    snprintf(check_context, sizeof check_context, "policy %d, seed %llu", policy,
             (unsigned long long)seed);
    pcoll_network network = {.L = 1500, .latency = PCOLL_LATENCY_EXPONENTIAL};
    CHECK_OK(sim_create(
        &(struct sim_options){
            .size = VERTICES, .seed = seed, .network = network, .hostile = true},
        &sim));
    make(sim, apps, contexts, vertices, policy);
    for (uint32_t r = 0; r < RANKS; r++)
        sim_wake(sim, vertex_of(r), sim_random(sim, 5000), 1 + r);
    struct sim_stop stop;
    while (sim_step(sim, &stop)) {
        if (stop.woken && stop.token)
            start(&apps[stop.token - 1], (uint32_t)stop.token - 1);
        bool again = true;
        while (again) {
            again = context_poll(contexts[stop.rank]) > 0;
            CHECK_OK(context_check(contexts[stop.rank]));
            for (uint32_t r = 0; r < RANKS; r++) {
                struct app *a = &apps[r];
                if (!a->waiting ||
                    !a->vertex->domain->ops->ready(a->vertex->domain, a->who))
                    continue;
                finish(a, seen, policy);
                again = true;
                if (a->round < ROUNDS)
                    sim_wake(sim, vertex_of(r), sim_random(sim, 5000), 1 + r);
            }
        }
    }
    for (uint32_t r = 0; r < RANKS; r++)
        CHECK(apps[r].round == ROUNDS, "rank %u stopped in round %llu", r,
              (unsigned long long)apps[r].round);
    for (uint32_t v = 0; v < VERTICES; v++) {
        context_unregister(contexts[v], 0);
        vertex_destroy(&vertices[v]);
        context_destroy(&contexts[v]);
    }
    sim_free(&sim);
}

int main(void)
{
    for (int policy = PCOLL_SOLO; policy <= PCOLL_FULL; policy++)
        for (uint64_t seed = 1; seed <= 50; seed++)
            run(policy, seed);
    printf("domain of two ranks: all tests passed\n");
    return 0;
}

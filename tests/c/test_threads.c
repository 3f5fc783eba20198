/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threaded parts (progress, bell, context, domain) as they run under MPI, but with
 * ranks that are threads: each has an application thread, an agent, and random delays.
 * Results are compared between ranks; the thread sanitizer watches.
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "../../csrc/allreduce/vertex.h"
#include "../../csrc/base/splitmix.h"
#include "check.h"
#include "inproc.h"

enum { RANKS = 4, ROUNDS = 300, COUNT = 40 };

struct rank {
    uint32_t rank;
    pcoll_options options;
    struct progress *progress;
    struct context *context;
    struct vertex *vertex;
    double sums[ROUNDS]; /* by round; 0: not seen */
    double deposited, pending;
};

static bool ready(void *arg)
{
    struct rank *r = arg;
    return r->vertex->domain->ops->ready(r->vertex->domain, 0);
}

static bool closed(void *arg)
{
    struct rank *r = arg;
    return atomic_load(&r->vertex->closing) == CLOSED;
}

static uint64_t take(struct rank *r)
{
    struct domain *d = r->vertex->domain;
    double recv[COUNT];
    void *buffers[] = {recv};
    pcoll_round round = {0};
    uint64_t masks[2], last = UINT64_MAX;
    bool one = r->options.deliver == PCOLL_DELIVER_ONE, moved, any = false;
    while (!(one && any) && d->ops->deliver(d, 0, last, UINT64_MAX, buffers, &round,
                                            masks, &moved) == PCOLL_OK) {
        any = true;
        if (moved)
            context_kick(r->context, &r->vertex->base);
        for (int i = 0; i < COUNT; i++)
            CHECK(recv[i] == recv[0], "element %d of round %llu", i,
                  (unsigned long long)round.index);
        if (round.index < ROUNDS)
            r->sums[round.index] = recv[0];
    }
    CHECK(any, "nothing delivered");
    CHECK_OK(d->ops->change(d, 0, member_finish));
    return round.index + 1;
}

static void *application(void *arg)
{
    struct rank *r = arg;
    struct domain *d = r->vertex->domain;
    double send[COUNT];
    const void *buffers[] = {send};
    enum deposit_outcome outcome;
    uint64_t seen = 0;
    for (uint64_t t = 0; seen < ROUNDS; t++) {
        inproc_nap(r->rank, t);
        for (int i = 0; i < COUNT; i++)
            send[i] = (double)(t + 1) * (r->rank + 1);
        r->deposited += send[0];
        CHECK_OK(d->ops->deposit(d, 0, buffers, &outcome));
        vertex_deposited(r->vertex, outcome);
        inproc_wait(r->progress, r->context, ready, r);
        seen = take(r);
    }
    progress_lock(r->progress);
    CHECK_OK(vertex_close(r->vertex));
    progress_unlock(r->progress);
    inproc_wait(r->progress, r->context, closed, r);
    return NULL;
}

static void create(struct rank *r, struct inproc *net, uint32_t rank, pcoll_options o)
{
    *r = (struct rank){.rank = rank, .options = o};
    pcoll_buffer buffer = {.count = COUNT, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    CHECK_OK(progress_create(&r->progress));
    struct transport *t = inproc_endpoint(net, rank, progress_bell(r->progress)->page);
    CHECK_OK(context_create(t, r->progress, &r->context));
    struct vertex_spec spec = {.ranks = RANKS,
                               .buffers = &buffer,
                               .nbuffers = 1,
                               .options = &r->options,
                               .create_domain = domain_single_create,
                               .domain_arg = &r->rank};
    CHECK_OK(vertex_create(r->context, &spec, &r->vertex));
    CHECK_OK(context_register(r->context, &r->vertex->base, 0));
    progress_add(r->progress, &r->context->source);
}

static void destroy(struct rank *r)
{
    progress_remove(r->progress, &r->context->source);
    progress_destroy(&r->progress);
    context_unregister(r->context, 0);
    vertex_destroy(&r->vertex);
    context_destroy(&r->context);
}

static void compare(const struct rank *ranks, bool full)
{
    for (int t = 0; t < ROUNDS; t++) {
        double sum = 0;
        for (int i = 0; i < RANKS; i++) {
            double here = ranks[i].sums[t];
            CHECK(!sum || !here || here == sum, "round %d: %g and %g", t, sum, here);
            sum = here ? here : sum;
        }
        if (full)
            CHECK(sum == (t + 1) * RANKS * (RANKS + 1) / 2, "round %d: %g", t, sum);
    }
}

static void run(pcoll_options o, const char *what)
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    snprintf(check_context, sizeof check_context, "%s", what);
    struct inproc *net = inproc_create(RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        create(&ranks[i], net, i, o);
    for (uint32_t i = 0; i < RANKS; i++) {
        progress_spin(ranks[i].progress, o.progress == PCOLL_PROGRESS_SPIN);
        CHECK_OK(progress_start_agent(ranks[i].progress));
    }
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_create(&threads[i], NULL, application, &ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    compare(ranks, o.policy.kind == PCOLL_FULL && !(o.policy.deadline > 0));
    for (uint32_t i = 0; i < RANKS; i++)
        destroy(&ranks[i]);
    inproc_free(net);
}

int main(void)
{
    static const char *const policies[] = {"solo",
                                           "majority",
                                           "full",
                                           "quorum:0.5",
                                           "last_of:2,max_staleness=2",
                                           "solo,linger=50us",
                                           "quorum:1.0,deadline=150us",
                                           "full,deadline=100us"};
    for (size_t policy = 0; policy < sizeof policies / sizeof *policies; policy++) {
        for (int deliver = PCOLL_DELIVER_ONE; deliver <= PCOLL_DELIVER_ALL; deliver++) {
            for (uint32_t history = 1; history <= 4; history += 3) {
                pcoll_options o = {.deliver = deliver,
                                   .late = PCOLL_LATE_CARRY,
                                   .history = history,
                                   .progress = PCOLL_PROGRESS_AGENT};
                CHECK_OK(pcoll_policy_parse(policies[policy], &o.policy));
                run(o, policies[policy]);
            }
        }
    }
    printf("threads: all tests passed\n");
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: threads (with the thread sanitizer). */
/*
 * The threaded parts (progress, doorbell, context, domain) as they run under MPI, but
 * with ranks that are threads: each has an application thread, an agent, and random
 * delays. Results are compared between ranks; the thread sanitizer watches.
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "allreduce/endpoint.h"
#include "base/random.h"
#include "check.h"
#include "inproc.h"

enum { RANKS = 4, ROUNDS = 300, COUNT = 40 };

/* With deliver="all" a result may be overwritten while it is copied out: the copy is then
 * discarded (node.h, invariant 5). The thread sanitizer must not see these reads. */
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);

struct rank {
    uint32_t rank;
    pcoll_options options;
    struct progress *progress;
    struct communicator *communicator;
    struct endpoint *endpoint;
    double sums[ROUNDS]; /* by round; 0: not seen */
    double deposited, pending;
};

static bool ready(void *arg)
{
    struct rank *r = arg;
    return r->endpoint->domain->ops->ready(r->endpoint->domain);
}

static bool closed(void *arg)
{
    struct rank *r = arg;
    return atomic_load(&r->endpoint->closing) == CLOSED;
}

static int deliver(struct rank *r, uint64_t last, void *const *buffers,
                   pcoll_round *round, uint64_t *masks, bool *moved)
{
    struct domain *d = r->endpoint->domain;
    bool all = r->options.deliver == PCOLL_DELIVER_ALL;
    if (all)
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    int rc = d->ops->deliver(d, last, UINT64_MAX, buffers, round, masks, moved);
    if (all)
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    return rc;
}

static uint64_t take(struct rank *r)
{
    struct domain *d = r->endpoint->domain;
    double recv[COUNT];
    void *buffers[] = {recv};
    pcoll_round round = {0};
    uint64_t masks[3], last = UINT64_MAX;
    bool one = r->options.deliver == PCOLL_DELIVER_ONE, moved, any = false;
    while (!(one && any) &&
           deliver(r, last, buffers, &round, masks, &moved) == PCOLL_OK) {
        any = true;
        if (moved)
            communicator_notify(r->communicator, &r->endpoint->base);
        for (int i = 0; i < COUNT; i++)
            EXPECT(recv[i] == recv[0], "element %d of round %llu", i,
                   (unsigned long long)round.index);
        if (round.index < ROUNDS)
            r->sums[round.index] = recv[0];
    }
    EXPECT(any, "nothing delivered");
    EXPECT_OK(d->ops->change(d, member_finish));
    return round.index + 1;
}

static void *application(void *arg)
{
    struct rank *r = arg;
    struct domain *d = r->endpoint->domain;
    double send[COUNT];
    const void *buffers[] = {send};
    enum deposit_outcome outcome;
    uint64_t seen = 0;
    for (uint64_t t = 0; seen < ROUNDS; t++) {
        inproc_nap(r->rank, t);
        for (int i = 0; i < COUNT; i++)
            send[i] = (double)(t + 1) * (r->rank + 1);
        r->deposited += send[0];
        EXPECT_OK(d->ops->deposit(d, buffers, &outcome));
        endpoint_deposited(r->endpoint, outcome);
        inproc_wait(r->progress, r->communicator, ready, r);
        seen = take(r);
    }
    progress_lock(r->progress);
    EXPECT_OK(endpoint_close(r->endpoint));
    progress_unlock(r->progress);
    inproc_wait(r->progress, r->communicator, closed, r);
    return NULL;
}

static void create(struct rank *r, struct inproc *net, uint32_t rank, pcoll_options o)
{
    *r = (struct rank){.rank = rank, .options = o};
    pcoll_buffer buffer = {.count = COUNT, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    EXPECT_OK(progress_create(&r->progress));
    struct transport *t =
        inproc_endpoint(net, rank, progress_doorbell(r->progress)->page);
    EXPECT_OK(communicator_create(t, r->progress, &r->communicator));
    struct endpoint_spec spec = {.ranks = RANKS,
                                 .buffers = &buffer,
                                 .nbuffers = 1,
                                 .options = &r->options,
                                 .create_domain = domain_single_create,
                                 .domain_arg = &r->rank};
    EXPECT_OK(endpoint_create(r->communicator, &spec, &r->endpoint));
    EXPECT_OK(communicator_register(r->communicator, &r->endpoint->base, 0));
    progress_add(r->progress, &r->communicator->source);
}

static void destroy(struct rank *r)
{
    progress_remove(r->progress, &r->communicator->source);
    progress_destroy(&r->progress);
    communicator_unregister(r->communicator, 0);
    endpoint_destroy(&r->endpoint);
    communicator_destroy(&r->communicator);
}

static void compare(const struct rank *ranks, bool full)
{
    for (int t = 0; t < ROUNDS; t++) {
        double sum = 0;
        for (int i = 0; i < RANKS; i++) {
            double here = ranks[i].sums[t];
            EXPECT(!sum || !here || here == sum, "round %d: %g and %g", t, sum, here);
            sum = here ? here : sum;
        }
        if (full)
            EXPECT(sum == (t + 1) * RANKS * (RANKS + 1) / 2, "round %d: %g", t, sum);
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
        EXPECT_OK(progress_start_agent(ranks[i].progress));
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
                EXPECT_OK(pcoll_policy_parse(policies[policy], &o.policy));
                run(o, policies[policy]);
            }
        }
    }
    printf("threads: all tests passed\n");
    return 0;
}

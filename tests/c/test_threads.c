/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: threads (with the thread sanitizer). */
/*
 * Domains as they run under MPI (csrc/allreduce/handle.c, handle_create.c), on ranks that are
 * threads: each has an application thread, an agent, a doorbell, and random delays. Four ranks share
 * one domain, or two with a fabric between them, or each has private memory. A result has several
 * chunks. Results are compared between ranks, and the thread sanitizer checks for races.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "allreduce/endpoint.h"
#include "base/random.h"
#include "domain/node.h"
#include "check.h"
#include "inproc.h"

enum { RANKS = 4, ROUNDS = 200, COUNT = 40 };

/* With deliver="all" a result may be overwritten while it is copied out, and the copy
 * is then discarded (node.h, invariant 5). So the thread sanitizer must ignore these
 * reads; with "one" it checks them. */
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);

struct rank {
    uint32_t rank;
    pcoll_options options;
    struct progress *progress;
    struct communicator *communicator;
    struct endpoint *endpoint;
    struct node_hooks hooks;
    double sums[ROUNDS]; /* by round; 0: not seen */
    uint64_t joined_at;
};

static struct rank ranks[RANKS];

/* handle_create.c */

static struct doorbell_page *doorbell_of(uint32_t rank)
{
    return progress_doorbell(ranks[rank].progress)->page;
}

static void wake(void *arg, uint32_t rank)
{
    (void)arg;
    doorbell_wake_waiters(doorbell_of(rank));
}

static void alert(void *arg, uint32_t rank)
{
    struct rank *r = arg;
    if (rank == r->rank)
        communicator_notify(r->communicator, &r->endpoint->base);
    else
        doorbell_ring(doorbell_of(rank));
}

static int64_t now(void *arg)
{
    return communicator_now(((struct rank *)arg)->communicator);
}

/* handle.c */

static bool call_is_over(void *arg)
{
    struct endpoint *v = ((struct rank *)arg)->endpoint;
    struct domain *d = v->domain;
    bool ready = d->ops->ready(d);
    if (!ready) {
        endpoint_help(v);
        ready = d->ops->ready(d);
    }
    return ready;
}

static bool closed(void *arg)
{
    struct rank *r = arg;
    return atomic_load(&r->endpoint->closing) == CLOSED;
}

static void wait_for_call(struct rank *r)
{
    struct domain *d = r->endpoint->domain;
    if (progress_soon(r->progress, call_is_over, r))
        return;
    node_sleeps(d, true);
    inproc_wait(r->progress, r->communicator, call_is_over, r);
    node_sleeps(d, false);
}

static bool is_mistaken(uint64_t round)
{
    return round % 5 == 3;
}

static bool deliver(struct rank *r, pcoll_round *round)
{
    struct domain *d = r->endpoint->domain;
    double recv[COUNT];
    void *buffers[] = {recv};
    const struct round_shape *shape = &r->endpoint->shape;
    size_t count = shape->payload.part[0].count;
    uint64_t masks[3];
    bool moved = false, all = r->options.deliver == PCOLL_DELIVER_ALL;
    if (all)
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    int rc = d->ops->deliver(d, UINT64_MAX, UINT64_MAX, buffers, round, masks, &moved);
    if (all)
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    if (rc != PCOLL_OK)
        return false;
    if (moved)
        endpoint_poll(r->endpoint, false);
    EXPECT(round->differ == (shape->described && is_mistaken(round->index)),
           "round %llu: the ranks %s", (unsigned long long)round->index,
           round->differ ? "differ" : "agree");
    for (size_t i = 0; i < count && !round->differ; i++)
        EXPECT(recv[i] == recv[0], "element %zu of round %llu: %g, the first one %g", i,
               (unsigned long long)round->index, recv[i], recv[0]);
    if (count && shape->described && !round->differ)
        EXPECT(recv[0] == (double)(round->index + 1) * RANKS * (RANKS + 1) / 2,
               "round %llu: %g", (unsigned long long)round->index, recv[0]);
    if (round->index < ROUNDS && count && !round->differ)
        r->sums[round->index] = recv[0];
    return true;
}

/* handle.c: pcoll_handle_describe. Rank 1 makes mistakes: another count, another call
 * number. */
static void describe(struct rank *r, uint64_t t)
{
    struct round_shape *shape = &r->endpoint->shape;
    uint64_t call = t + (r->rank == 1 && is_mistaken(t)) * ROUNDS;
    pcoll_buffer form = {.count = call * 7 % (COUNT + 1), .dtype = PCOLL_FLOAT64};
    if (!shape->described)
        return;
    EXPECT_OK(round_shape_describe(shape, &form));
    shape->intent = round_intent(call + 1);
}

static uint64_t call(struct rank *r, uint64_t t)
{
    struct domain *d = r->endpoint->domain;
    bool one = r->options.deliver == PCOLL_DELIVER_ONE, any = false;
    double send[COUNT];
    const void *buffers[] = {send};
    enum deposit_outcome outcome;
    pcoll_round round = {0};
    for (int i = 0; i < COUNT; i++)
        send[i] = (double)(t + 1) * (r->rank + 1);
    describe(r, t);
    EXPECT_OK(d->ops->deposit(d, buffers, &outcome));
    memset(send, 0, sizeof send);
    endpoint_deposited(r->endpoint, outcome);
    wait_for_call(r);
    while (!(one && any) && deliver(r, &round))
        any = true;
    EXPECT(any, "nothing delivered");
    EXPECT_OK(d->ops->change(d, member_finish));
    return round.index + 1;
}

static void join(struct rank *r)
{
    struct domain *d = r->endpoint->domain;
    pcoll_round round = {0};
    EXPECT_OK(d->ops->change(d, member_join));
    endpoint_poll(r->endpoint, false);
    while (!round.joined) {
        wait_for_call(r);
        EXPECT(deliver(r, &round), "nothing delivered");
    }
    r->joined_at = round.index;
    EXPECT_OK(d->ops->change(d, member_finish));
}

static void *application(void *arg)
{
    struct rank *r = arg;
    uint64_t t = 0;
    for (uint64_t seen = 0; seen < ROUNDS; t++) {
        inproc_pause(r->rank, t);
        seen = call(r, t);
    }
    if (!r->options.described)
        join(r);
    progress_lock(r->progress);
    EXPECT_OK(endpoint_close(r->endpoint));
    progress_unlock(r->progress);
    inproc_wait(r->progress, r->communicator, closed, r);
    return NULL;
}

/* Create the endpoint and its domain's memory, the leader before its members. */
static void share(struct rank *r, void **memory)
{
    const struct placement *p = &r->endpoint->placement;
    void **mine = &memory[p->index];
    if (p->members == 1 && !r->options.described) {
        EXPECT_OK(endpoint_settle_alone(r->endpoint));
        return;
    }
    if (p->leads) {
        size_t bytes = node_bytes(&r->endpoint->shape, &r->options, p);
        *mine = aligned_alloc(64, (bytes + 63) / 64 * 64);
        EXPECT(*mine, "no memory");
        memset(*mine, 0, bytes);
    }
    r->hooks = (struct node_hooks){.memory = *mine,
                                   .placement = p,
                                   .slot = &r->endpoint->base.slot,
                                   .arg = r,
                                   .wake = wake,
                                   .alert = alert,
                                   .now = now};
    EXPECT_OK(endpoint_settle(r->endpoint, domain_node_create, &r->hooks));
}

static void create(struct rank *r, struct inproc *net, uint32_t rank, pcoll_options o,
                   uint32_t most, void **memory)
{
    static uint64_t const hosts[RANKS];
    *r = (struct rank){.rank = rank, .options = o};
    pcoll_buffer buffer = {.count = COUNT, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    EXPECT_OK(progress_create(&r->progress));
    struct transport *t = inproc_endpoint(net, rank, doorbell_of(rank));
    EXPECT_OK(communicator_create(t, r->progress, &r->communicator));
    struct endpoint_spec spec = {.ranks = RANKS,
                                 .hosts = hosts,
                                 .most = most,
                                 .buffers = &buffer,
                                 .nbuffers = 1,
                                 .options = &r->options};
    EXPECT_OK(endpoint_create(r->communicator, &spec, &r->endpoint));
    share(r, memory);
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

static void compare(bool full)
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
    for (int i = 1; i < RANKS; i++)
        INVARIANT("agreement", ranks[i].joined_at == ranks[0].joined_at,
                  "rank %d came out of join with round %llu, rank 0 with %llu", i,
                  (unsigned long long)ranks[i].joined_at,
                  (unsigned long long)ranks[0].joined_at);
}

static void run(pcoll_options o, uint32_t most, const char *policy)
{
    pthread_t threads[RANKS];
    void *memory[RANKS] = {NULL};
    snprintf(check_context, sizeof check_context,
             "%s, deliver=%s, history=%u, %u domains%s", policy,
             o.deliver == PCOLL_DELIVER_ONE ? "one" : "all", o.history, RANKS / most,
             o.described ? ", described" : "");
    struct inproc *net = inproc_create(RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        create(&ranks[i], net, i, o, most, memory);
    for (uint32_t i = 0; i < RANKS; i++) {
        progress_spin(ranks[i].progress, o.progress == PCOLL_PROGRESS_SPIN);
        EXPECT_OK(progress_start_agent(ranks[i].progress));
    }
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_create(&threads[i], NULL, application, &ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    compare(o.policy.kind == PCOLL_FULL && !(o.policy.deadline > 0) && !o.described);
    for (uint32_t i = 0; i < RANKS; i++)
        destroy(&ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        free(memory[i]);
    inproc_free(net);
}

int main(void)
{
    static const char *const policies[] = {"solo",
                                           "majority",
                                           "full",
                                           "quorum:0.5",
                                           "first_of:2",
                                           "last_of:2,max_staleness=2",
                                           "solo,linger=50us",
                                           "quorum:1.0,deadline=150us",
                                           "full,deadline=100us"};
    for (size_t policy = 0; policy < sizeof policies / sizeof *policies; policy++) {
        for (uint32_t most = RANKS; most >= 1; most /= 2) {
            for (int kind = 0; kind < 4; kind++) {
                uint32_t history = kind & 1 ? 3 : 1;
                pcoll_options o = {
                    .deliver = kind & 2 ? PCOLL_DELIVER_ALL : PCOLL_DELIVER_ONE,
                    .late = PCOLL_LATE_CARRY,
                    .history = history,
                    .algorithm = kind & 1 ? PCOLL_ALGORITHM_RING : PCOLL_ALGORITHM_AUTO,
                    .progress = PCOLL_PROGRESS_AGENT};
                EXPECT_OK(pcoll_policy_parse(policies[policy], &o.policy));
                run(o, most, policies[policy]);
            }
        }
    }
    for (uint32_t most = RANKS; most >= 1; most /= 2)
        run((pcoll_options){.policy.kind = PCOLL_FULL,
                            .late = PCOLL_LATE_CARRY,
                            .history = 1,
                            .described = 1},
            most, "full");
    printf("threads: all tests passed\n");
    return 0;
}

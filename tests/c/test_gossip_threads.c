/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: threads (with the thread sanitizer). */
/*
 * Accumulator and queue between real threads, under the thread sanitizer. The window is shared
 * memory: words and sums are atomic, as with MPI. Messages are copied without atomics, so two ranks
 * at one slot of a queue would be a data race. (A register may be overwritten while it is read, by
 * design, and the copy is then discarded: test_gossip_steps.c covers that.)
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/random.h"
#include "gossip/gossip.h"
#include "check.h"

enum { RANKS = 4, COUNT = 1500, ACTIONS = 3000, CAP = 2 };

static struct rank {
    struct window window;
    struct gossip_memory memory;
    double model[COUNT], message[COUNT];
    uint64_t pushed, drained;
} ranks[RANKS];

static _Atomic int left = RANKS, coming = RANKS;

static _Atomic(uint64_t) *words_at(uint32_t peer, size_t offset)
{
    return (_Atomic(uint64_t) *)(ranks[peer].window.memory + offset);
}

static void add_one(_Atomic(uint64_t) *sum, double more)
{
    uint64_t old = atomic_load_explicit(sum, memory_order_relaxed), new;
    do {
        double value;
        memcpy(&value, &old, sizeof value);
        value += more;
        memcpy(&new, &value, sizeof new);
    } while (!atomic_compare_exchange_weak_explicit(
        sum, &old, new, memory_order_relaxed, memory_order_relaxed));
}

static int window_access(struct window *w, enum window_access kind, uint32_t peer,
                         size_t offset, const void *from, void *into, int dtype,
                         size_t count)
{
    char *at = ranks[peer].window.memory + offset;
    (void)w, (void)dtype;
    if (kind == WINDOW_GET)
        memcpy(into, at, count);
    else if (kind == WINDOW_PUT)
        memcpy(at, from, count);
    for (size_t i = 0; kind == WINDOW_ADD && i < count; i++)
        add_one(words_at(peer, offset) + i, ((const double *)from)[i]);
    for (size_t i = 0; kind == WINDOW_SUMS && i < count; i++)
        ((uint64_t *)into)[i] =
            atomic_load_explicit(words_at(peer, offset) + i, memory_order_relaxed);
    return PCOLL_OK;
}

static int nothing(struct window *w, uint32_t peer)
{
    (void)w, (void)peer;
    return PCOLL_OK;
}

static int fetch_add(struct window *w, uint32_t peer, size_t offset, int64_t delta,
                     int64_t *before)
{
    (void)w;
    *before = (int64_t)atomic_fetch_add(words_at(peer, offset), (uint64_t)delta);
    return PCOLL_OK;
}

static int compare_swap(struct window *w, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before)
{
    (void)w;
    uint64_t found = (uint64_t)expected;
    atomic_compare_exchange_strong(words_at(peer, offset), &found, (uint64_t)desired);
    *before = (int64_t)found;
    return PCOLL_OK;
}

static const struct window_ops ops = {.access = window_access,
                                      .complete = nothing,
                                      .flush = nothing,
                                      .fetch_add = fetch_add,
                                      .compare_swap = compare_swap};

static void collect(struct rank *r)
{
    struct gossip_model own = {.x = r->model};
    uint64_t deltas;
    EXPECT_OK(exchange_collect(&r->memory, &own, &deltas));
    EXPECT(deltas <= CAP, "%llu deltas", (unsigned long long)deltas);
}

/* Give an integer from every element, so that sums are exact. */
static void give(struct rank *r, uint32_t peer)
{
    const struct gossip_layout *l = &r->memory.layout;
    int64_t uncollected;
    int32_t reserved;
    EXPECT_OK(accumulator_reserve(&r->memory, peer, CAP, &uncollected, &reserved));
    for (size_t first = 0; reserved && first < COUNT; first += l->chunk) {
        size_t n = gossip_chunk_length(l, first);
        for (size_t i = 0; i < n; i++) {
            ((double *)r->memory.change)[i] = 1;
            r->model[first + i] -= 1;
        }
        EXPECT_OK(accumulator_add(&r->memory, peer, first, r->memory.change));
    }
    if (reserved)
        EXPECT_OK(accumulator_landed(&r->memory, peer));
}

static void push(struct rank *r, uint32_t peer, double stamp)
{
    int32_t pushed;
    for (size_t i = 0; i < COUNT; i++)
        r->message[i] = stamp;
    EXPECT_OK(queue_push(&r->memory, peer, r->message, NULL, NULL, &pushed));
    r->pushed += pushed;
}

static void drain(struct rank *r)
{
    int32_t taken;
    uint32_t source;
    EXPECT_OK(queue_take(&r->memory, NULL, r->message, &source, &taken));
    r->drained += taken;
    for (size_t i = 1; taken && i < COUNT; i++)
        INVARIANT("whole", r->message[i] == r->message[0], "element %zu", i);
}

static void *run(void *arg)
{
    struct rank *r = arg;
    uint32_t rank = r->window.rank;
    atomic_fetch_sub(&coming, 1);
    while (atomic_load(&coming))
        sched_yield();
    for (uint64_t i = 0; i < ACTIONS; i++) {
        uint32_t peer = (rank + 1 + splitmix_below(rank, 2 * i, RANKS - 1)) % RANKS;
        if (i % 8 == 0)
            sched_yield();
        switch (splitmix_below(rank, 2 * i + 1, 4)) {
        case 0:
            give(r, peer);
            break;
        case 1:
            push(r, peer, (double)(i * RANKS + rank));
            break;
        case 2:
            drain(r);
            break;
        default:
            collect(r);
        }
    }
    atomic_fetch_sub(&left, 1);
    while (atomic_load(&left)) /* other ranks may still give and send */
        sched_yield();
    drain(r);
    for (int i = 0; i < 8; i++)
        drain(r);
    collect(r);
    return NULL;
}

static void create(void)
{
    pcoll_gossip_options options = {.count = COUNT,
                                    .dtype = PCOLL_FLOAT64,
                                    .queue_slots = 3,
                                    .max_uncollected = CAP};
    for (uint32_t i = 0; i < RANKS; i++) {
        struct rank *r = &ranks[i];
        EXPECT_OK(gossip_memory_prepare(&r->memory, &options, i, RANKS, false));
        r->window = (struct window){.ops = &ops,
                                    .rank = i,
                                    .size = RANKS,
                                    .memory = calloc(1, r->memory.layout.bytes)};
        EXPECT(r->window.memory, "no memory");
        r->memory.window = &r->window;
    }
}

int main(void)
{
    pthread_t threads[RANKS];
    create();
    for (int i = 0; i < RANKS; i++)
        EXPECT(pthread_create(&threads[i], NULL, run, &ranks[i]) == 0, "no thread");
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    uint64_t pushed = 0, drained = 0;
    for (int i = 0; i < RANKS; i++) {
        pushed += ranks[i].pushed;
        drained += ranks[i].drained;
    }
    INVARIANT("once", pushed == drained && pushed > 0, "%llu sent, %llu drained",
              (unsigned long long)pushed, (unsigned long long)drained);
    for (size_t e = 0; e < COUNT; e++) {
        double sum = 0;
        for (int i = 0; i < RANKS; i++)
            sum += ranks[i].model[e];
        INVARIANT("conserved", sum == 0, "element %zu: the sum is %g", e, sum);
    }
    for (int i = 0; i < RANKS; i++) {
        gossip_memory_destroy(&ranks[i].memory);
        free(ranks[i].window.memory);
    }
    printf("gossip threads: %llu messages, all as promised\n",
           (unsigned long long)drained);
    return 0;
}

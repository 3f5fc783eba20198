/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: threads (with the thread sanitizer). */
/*
 * Grouped allreduce as it runs under MPI. The ranks are threads with an agent each: the
 * application on one side, the driver on the other, and shared windows. The thread sanitizer
 * checks that inputs and parts are read only after the notice that they are available, and
 * written only after the decision.
 *
 * (In a void round a rank may by design read memory that is being overwritten, and discards
 * the data: test_group.c covers that. Here the timeouts are too long to expire.)
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "group/group_agent.h"
#include "check.h"
#include "inproc.h"

enum { RANKS = 4, ROUNDS = 300, COUNT = 50 };

static struct rank {
    uint32_t rank;
    struct progress *progress;
    struct communicator *communicator;
    struct group g;
    struct window window;
    double x[COUNT];
} ranks[RANKS];

/* Windows. */

/* Entries of the directory may be read during a write, so read and write word by word. */
static int window_access(struct window *w, enum window_access kind, uint32_t peer,
                         size_t offset, const void *from, void *into, int dtype,
                         size_t count)
{
    int64_t *words = (int64_t *)(void *)(ranks[peer].window.memory + offset);
    size_t n = count / sizeof *words;
    (void)w, (void)dtype;
    if (kind == WINDOW_GET && offset >= ranks[peer].g.place.input_at)
        memcpy(into, words, count);
    else if (kind == WINDOW_GET)
        for (size_t i = 0; i < n; i++)
            ((int64_t *)into)[i] = __atomic_load_n(words + i, __ATOMIC_SEQ_CST);
    else
        for (size_t i = 0; i < n; i++)
            __atomic_store_n(words + i, ((const int64_t *)from)[i], __ATOMIC_SEQ_CST);
    return PCOLL_OK;
}

static int done(struct window *w, uint32_t peer)
{
    (void)w, (void)peer;
    return PCOLL_OK;
}

static int compare_swap(struct window *w, uint32_t peer, size_t offset,
                        int64_t expected, int64_t desired, int64_t *before)
{
    int64_t *word = (int64_t *)(void *)(ranks[peer].window.memory + offset);
    (void)w;
    *before = expected;
    __atomic_compare_exchange_n(word, before, desired, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return PCOLL_OK;
}

static int sync_stores(struct window *w)
{
    (void)w;
    return PCOLL_OK;
}

static void retire(struct window *w)
{
    (void)w;
}

static const struct window_ops ops = {.access = window_access,
                                      .complete = done,
                                      .flush = done,
                                      .compare_swap = compare_swap,
                                      .sync = sync_stores,
                                      .retire = retire,
                                      .destroy = retire};

/* Applications. */

static bool over(void *arg)
{
    struct rank *r = arg;
    return atomic_load(&r->g.shared.finished) == atomic_load(&r->g.shared.started);
}

static bool closed(void *arg)
{
    return atomic_load(&((struct rank *)arg)->g.base.closed);
}

static void *application(void *arg)
{
    struct rank *r = arg;
    double *input = (double *)(void *)(r->window.memory + r->g.place.input_at);
    for (uint64_t t = 0; t < ROUNDS; t++) {
        for (int i = 0; i < COUNT; i++)
            input[i] = t % 2 ? r->x[i] : (double)(r->rank + 10 * t);
        inproc_pause(r->rank, 2 * t);
        atomic_fetch_add(&r->g.shared.started, 1);
        communicator_notify(r->communicator, &r->g.base);
        inproc_pause(r->rank, 2 * t + 1);
        inproc_wait(r->progress, r->communicator, over, r);
        EXPECT(!r->g.shared.outcome.is_void && r->g.shared.outcome.index == t,
               "round %llu", (unsigned long long)t);
        memcpy(r->x, r->g.now.data.landing, sizeof r->x);
        double average = 10.0 * (double)(t - 1) + (RANKS - 1) / 2.0;
        for (int i = 0; i < COUNT && t % 2; i++)
            EXPECT(r->x[i] == average, "round %llu: %g", (unsigned long long)t,
                   r->x[i]);
    }
    progress_lock(r->progress);
    r->g.shared.closing = true;
    progress_unlock(r->progress);
    communicator_notify(r->communicator, &r->g.base);
    inproc_wait(r->progress, r->communicator, closed, r);
    return NULL;
}

static void create(struct inproc *net, uint32_t rank, int32_t keys)
{
    struct rank *r = &ranks[rank];
    *r = (struct rank){.rank = rank};
    EXPECT_OK(progress_create(&r->progress));
    struct transport *t =
        inproc_endpoint(net, rank, progress_doorbell(r->progress)->page);
    EXPECT_OK(communicator_create(t, r->progress, &r->communicator));
    r->g.communicator = r->communicator;
    r->g.options = (pcoll_group_options){.count = COUNT,
                                         .dtype = PCOLL_FLOAT64,
                                         .keys = keys,
                                         .axes = 2,
                                         .side = {2, 2},
                                         .timeout_us = 600000000,
                                         .every = 1};
    EXPECT_OK(group_object_prepare(&r->g, rank, RANKS));
    r->g.cell = rank;
    r->g.cells = calloc(RANKS, sizeof *r->g.cells);
    for (uint32_t i = 0; i < RANKS; i++)
        r->g.cells[i] = i;
    r->window = (struct window){.ops = &ops,
                                .rank = rank,
                                .size = RANKS,
                                .memory = calloc(1, r->g.place.bytes)};
    r->g.window = &r->window;
    EXPECT_OK(group_object_attach(&r->g));
    EXPECT_OK(communicator_register(r->communicator, &r->g.base, 0));
    progress_add(r->progress, &r->communicator->source);
}

static void destroy(struct rank *r)
{
    progress_remove(r->progress, &r->communicator->source);
    progress_destroy(&r->progress);
    communicator_unregister(r->communicator, 0);
    group_object_dispose(&r->g);
    communicator_destroy(&r->communicator);
    free(r->window.memory);
}

static void run(int32_t keys)
{
    pthread_t threads[RANKS];
    snprintf(check_context, sizeof check_context, "keys %d", keys);
    struct inproc *net = inproc_create(RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        create(net, i, keys);
    for (uint32_t i = 0; i < RANKS; i++) {
        EXPECT_OK(progress_start_agent(ranks[i].progress));
        progress_lock(ranks[i].progress);
        ranks[i].g.driven = true;
        progress_unlock(ranks[i].progress);
        communicator_notify(ranks[i].communicator, &ranks[i].g.base);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_create(&threads[i], NULL, application, &ranks[i]);
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < RANKS; i++)
        destroy(&ranks[i]);
    inproc_free(net);
}

int main(void)
{
    run(PCOLL_KEYS_STATIC);
    run(PCOLL_KEYS_DYNAMIC);
    printf("groups and threads: all tests passed\n");
    return 0;
}

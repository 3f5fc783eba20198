/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: threads (with the thread sanitizer). */
/*
 * A user schedule as it runs under MPI, on ranks that are threads with an agent each: start and
 * wait on one side, the driver on the other. The thread sanitizer checks for races.
 *
 * Every rank sends to all others and adds up the received data, each message with its own
 * buffer. A gate of 2 of n starts a timer.
 */
#include <pthread.h>
#include <time.h>

#include "base/random.h"
#include "user_schedule/user_schedule.h"
#include "adding.h"
#include "check.h"
#include "inproc.h"

enum { RANKS = 4, RUNS = 400, COUNT = 30 };

struct rank {
    uint32_t rank;
    struct progress *progress;
    struct communicator *communicator;
    struct builder builder;
    struct schedule_run *run;
    double mine[COUNT], parts[RANKS][COUNT], total[COUNT];
};

static bool over(void *arg)
{
    struct rank *r = arg;
    return atomic_load(&r->run->finished) == atomic_load(&r->run->started);
}

static bool closed(void *arg)
{
    struct rank *r = arg;
    return atomic_load(&r->run->closing) == RUN_CLOSED;
}

static void *application(void *arg)
{
    struct rank *r = arg;
    for (uint64_t t = 0; t < RUNS; t++) {
        for (int i = 0; i < COUNT; i++) {
            r->mine[i] = (double)(t + 1) * (r->rank + 1);
            r->total[i] = 0;
        }
        inproc_pause(r->rank, 2 * t);
        schedule_run_start(r->run);
        inproc_pause(r->rank, 2 * t + 1);
        inproc_wait(r->progress, r->communicator, over, r);
        for (int i = 0; i < COUNT; i++)
            EXPECT(r->total[i] == (double)(t + 1) * RANKS * (RANKS + 1) / 2,
                   "run %llu: %g", (unsigned long long)t, r->total[i]);
    }
    if (r->rank == 0)
        schedule_run_start(r->run); /* the others do not send in this run */
    progress_lock(r->progress);
    EXPECT_OK(schedule_run_close(r->run));
    progress_unlock(r->progress);
    inproc_wait(r->progress, r->communicator, closed, r);
    return NULL;
}

static void write_down(struct rank *r, struct builder *d)
{
    pcoll_buffer shape = {.count = COUNT, .dtype = PCOLL_FLOAT64, .op = PCOLL_SUM};
    int32_t op, add, timer, received[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) {
        EXPECT_OK(builder_send(d, r->mine, &shape, (int)i, 0, NULL, &op));
        EXPECT_OK(builder_recv(d, r->parts[i], &shape, (int)i, 0, NULL, &received[i]));
        EXPECT_OK(builder_reduce(d, r->parts[i], r->total, &shape, NULL, &add));
        EXPECT_OK(builder_after(d, add, &received[i], 1, 0));
    }
    EXPECT_OK(builder_timer(d, 50e-6, NULL, &timer));
    EXPECT_OK(builder_after(d, timer, received, RANKS, 2));
}

static void create(struct rank *r, struct inproc *net, uint32_t rank)
{
    struct sched *s;
    *r = (struct rank){.rank = rank, .builder = {.rank = rank, .size = RANKS}};
    EXPECT_OK(progress_create(&r->progress));
    struct transport *t =
        inproc_endpoint(net, rank, progress_doorbell(r->progress)->page);
    EXPECT_OK(communicator_create(t, r->progress, &r->communicator));
    write_down(r, &r->builder);
    EXPECT_OK(builder_commit(&r->builder, &s));
    EXPECT_OK(schedule_run_create(r->communicator, &r->builder, s, &r->run));
    EXPECT_OK(communicator_register(r->communicator, &r->run->base, 0));
    progress_add(r->progress, &r->communicator->source);
}

static void destroy(struct rank *r)
{
    progress_remove(r->progress, &r->communicator->source);
    progress_destroy(&r->progress);
    communicator_unregister(r->communicator, 0);
    schedule_run_destroy(&r->run);
    builder_destroy(&r->builder);
    communicator_destroy(&r->communicator);
}

static void run(bool agents)
{
    static struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    snprintf(check_context, sizeof check_context, agents ? "agents" : "manual");
    struct inproc *net = inproc_create(RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        create(&ranks[i], net, i);
    for (uint32_t i = 0; i < RANKS && agents; i++)
        EXPECT_OK(progress_start_agent(ranks[i].progress));
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
    run(true);
    run(false);
    printf("programs and threads: all tests passed\n");
    return 0;
}

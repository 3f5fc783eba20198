/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile data messages to user schedules on simulated ranks. */
#include <string.h>

#include "user_schedule/user_schedule.h"
#include "adding.h"
#include "check.h"
#include "hostile.h"
#include "transport/sim/sim_transport.h"

enum { RANKS = 4, COUNT = 8 };

static struct {
    struct hostile *hostile;
    uint32_t ranks;
    struct sim *sim;
    struct communicator *communicators[RANKS];
    struct builder builders[RANKS];
    struct schedule_run *runs[RANKS];
    int64_t memory[RANKS][3][COUNT];
} w;

static uint32_t roll(uint32_t bound)
{
    return hostile_roll(w.hostile, bound);
}

/* Receive from the previous rank, add, send to the next; maybe after a timer. */
static void create_rank(uint32_t r)
{
    pcoll_buffer shape = {.count = COUNT, .dtype = PCOLL_INT64, .op = PCOLL_MAX};
    struct builder *b = &w.builders[r];
    struct sched *s = NULL;
    int send, receive, add, timer;
    *b = (struct builder){.rank = r, .size = w.ranks};
    int next = (int)((r + 1) % w.ranks), last = (int)((r + w.ranks - 1) % w.ranks);
    EXPECT_OK(builder_send(b, w.memory[r][0], &shape, next, 1, NULL, &send));
    EXPECT_OK(builder_recv(b, w.memory[r][1], &shape, last, 1, NULL, &receive));
    EXPECT_OK(builder_reduce(b, w.memory[r][1], w.memory[r][2], &shape, NULL, &add));
    EXPECT_OK(builder_after(b, add, &receive, 1, 0));
    EXPECT_OK(builder_timer(b, 1e-6, NULL, &timer));
    EXPECT_OK(builder_after(b, send, &timer, 1, 0));
    EXPECT_OK(builder_commit(b, &s));
    EXPECT_OK(communicator_create(sim_endpoint(w.sim, r), NULL, &w.communicators[r]));
    hostile_tap(w.hostile, w.communicators[r]->transport);
    EXPECT_OK(schedule_run_create(w.communicators[r], b, s, &w.runs[r]));
    EXPECT_OK(communicator_register(w.communicators[r], &w.runs[r]->base, 0));
    sim_wake(w.sim, r, roll(20000), 0);
}

static void destroy(void)
{
    for (uint32_t r = 0; r < w.ranks; r++) {
        communicator_fail(w.communicators[r], PCOLL_EPROTOCOL); /* it may be running */
        communicator_unregister(w.communicators[r], 0);
        schedule_run_destroy(&w.runs[r]);
        builder_destroy(&w.builders[r]);
        communicator_destroy(&w.communicators[r]);
    }
    sim_free(&w.sim);
}

static bool poll(uint32_t r)
{
    communicator_poll(w.communicators[r]);
    int rc = communicator_check(w.communicators[r]);
    EXPECT(rc == PCOLL_OK || rc == PCOLL_EPROTOCOL, "%d: %s", rc, pcoll_last_error());
    w.hostile->refused += rc != PCOLL_OK;
    return rc == PCOLL_OK;
}

void hostile_schedules(struct hostile *h, uint64_t most)
{
    struct sim_stop stop;
    bool sound = true;
    memset(&w, 0, sizeof w);
    w.hostile = h;
    w.ranks = h->ranks = 2 + roll(RANKS - 1);
    h->tampers = 1 + roll(20);
    struct sim_options options = {.size = w.ranks,
                                  .seed = h->seed,
                                  .network = {.L = 2000, .o = 200, .g = 50},
                                  .hostile = true};
    EXPECT_OK(sim_create(&options, &w.sim));
    for (uint32_t r = 0; r < w.ranks; r++)
        create_rank(r);
    while (h->messages < most && sound && sim_step(w.sim, &stop)) {
        struct schedule_run *p = w.runs[stop.rank];
        if (stop.woken && atomic_load(&p->started) == atomic_load(&p->finished))
            schedule_run_start(p);
        if (stop.woken)
            sim_wake(w.sim, stop.rank, roll(20000), 0);
        sound = poll(stop.rank);
    }
    for (uint32_t r = 0; r < w.ranks; r++)
        h->done += atomic_load(&w.runs[r]->finished);
    destroy();
}

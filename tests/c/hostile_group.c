/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile messages to grouped allreduces on simulated ranks (as in test_group.c), and
 * arbitrary words in the parts of their windows that other ranks write.
 */
#include <string.h>

#include "group/group_agent.h"
#include "check.h"
#include "hostile.h"
#include "sim_window.h"

enum { RANKS = 6, COUNT = 20, TIMEOUT_US = 10000, WIRE_KINDS = WIRE_WITHDRAW + 2 };

static const int64_t longest_get_ns = 1000000;

static struct {
    struct hostile *hostile;
    uint32_t ranks;
    struct sim *sim;
    struct window *windows[RANKS];
    struct group groups[RANKS];
    struct communicator *communicators[RANKS];
    bool stands[RANKS];
} w;

static uint32_t roll(uint32_t bound)
{
    return hostile_roll(w.hostile, bound);
}

static void prepare(uint32_t r, const pcoll_group_options *options)
{
    struct group *g = &w.groups[r];
    struct transport *t = sim_endpoint(w.sim, r);
    EXPECT_OK(communicator_create(t, NULL, &w.communicators[r]));
    hostile_tap(w.hostile, t);
    g->options = *options;
    g->communicator = w.communicators[r];
    EXPECT_OK(group_object_prepare(g, r, w.ranks));
    g->cell = r;
    g->cells = calloc(w.ranks, sizeof *g->cells);
    for (uint32_t p = 0; p < w.ranks; p++)
        g->cells[p] = p;
    EXPECT_OK(communicator_register(w.communicators[r], &g->base, 0));
}

static void create(void)
{
    w.ranks = w.hostile->ranks = 2 + roll(RANKS - 1);
    struct sim_options options = {.size = w.ranks,
                                  .seed = w.hostile->seed,
                                  .network = {.L = 5000, .o = 500, .g = 100},
                                  .hostile = true,
                                  .in_order = true};
    EXPECT_OK(sim_create(&options, &w.sim));
    pcoll_group_options o = {.count = COUNT,
                             .dtype = PCOLL_FLOAT64,
                             .timeout_us = TIMEOUT_US,
                             .every = 1,
                             .measure = !roll(2),
                             .keys = (int32_t)roll(3)};
    for (uint32_t r = 0; r < w.ranks; r++)
        prepare(r, &o);
    far_windows_create(w.sim, w.ranks, 1 + roll(w.ranks), w.groups[0].place.bytes,
                       w.stands, w.windows);
    for (uint32_t r = 0; r < w.ranks; r++) {
        struct group *g = &w.groups[r];
        g->window = w.windows[r];
        EXPECT_OK(group_object_attach(g));
        g->now.data.piece = 1 + roll(8);
        g->driven = true;
        communicator_notify(w.communicators[r], &g->base);
        sim_wake(w.sim, r, roll(100000), 0);
    }
}

/* Complete the fetches before their target memory is freed. */
static void end_fetches(struct group *g)
{
    struct sim_stop stop;
    while (g->now.data.under_way || g->now.data.abandoned) {
        bool ended;
        sim_step_until(w.sim, sim_now(w.sim) + longest_get_ns, &stop);
        EXPECT_OK(group_data_poll(&g->now.data, &ended));
    }
}

static void destroy(void)
{
    for (uint32_t r = 0; r < w.ranks; r++) {
        struct group *g = &w.groups[r];
        end_fetches(g);
        communicator_unregister(w.communicators[r], 0);
        g->driven = false;
        group_object_dispose(g);
        communicator_destroy(&w.communicators[r]);
    }
    far_windows_destroy(w.ranks, w.windows);
    sim_free(&w.sim);
}

/* The application enters a round, leaves, or returns. */
static void act(uint32_t r)
{
    struct group *g = &w.groups[r];
    bool waits = atomic_load(&g->shared.finished) < atomic_load(&g->shared.started);
    if (!roll(12))
        atomic_store(&g->shared.wants_away, !atomic_load(&g->shared.wants_away));
    else if (!waits && !atomic_load(&g->shared.wants_away))
        atomic_fetch_add(&g->shared.started, 1);
    communicator_notify(w.communicators[r], &g->base);
    sim_wake(w.sim, r, roll(200000), 0);
}

static void send_hostile(void)
{
    uint32_t to = roll(w.ranks), from = (to + 1 + roll(w.ranks - 1)) % w.ranks;
    struct group *g = &w.groups[to];
    struct control message = hostile_message(w.hostile, WIRE_KINDS);
    if (roll(2))
        message.round = g->round + roll(2);
    hostile_note(w.hostile, g->base.ops->control(&g->base, from, &message));
}

/* Overwrite a word of a decision, of a count, or of an entry of the directory. */
static void write_hostile(void)
{
    struct group *g = &w.groups[roll(w.ranks)];
    size_t words = g->place.input_at / sizeof(int64_t);
    int64_t *at = (int64_t *)(void *)g->window->memory + roll((uint32_t)words);
    if (roll(2))
        at = (int64_t *)(void *)g->window->memory +
             (roll(2) ? g->now.name.seq % DECISIONS
                      : g->place.directory_at / sizeof(int64_t) + 4 * roll(w.ranks));
    *at = (int64_t)(roll(2) ? hostile_word(w.hostile)
                            : (uint64_t)*at ^ (uint64_t)1 << roll(64));
    hostile_note(w.hostile, PCOLL_OK);
}

/* Poll. A failed communicator must not do anything. */
static bool poll(uint32_t r)
{
    struct communicator *c = w.communicators[r];
    communicator_poll(c);
    int rc = communicator_check(c);
    EXPECT(rc == PCOLL_OK || rc == PCOLL_EPROTOCOL, "%d: %s", rc, pcoll_last_error());
    EXPECT(rc == PCOLL_OK || !communicator_poll(c),
           "a failed communicator still polls");
    return rc == PCOLL_OK;
}

void hostile_groups(struct hostile *h, uint64_t most)
{
    struct sim_stop stop;
    bool sound = true;
    memset(&w, 0, sizeof w);
    w.hostile = h;
    uint32_t pause = 1 + roll(60); /* steps between messages: some get far before one */
    create();
    for (uint32_t r = 0; r < w.ranks && sound; r++)
        sound = poll(r);
    while (h->messages < most && sound && sim_step(w.sim, &stop)) {
        if (stop.woken)
            act(stop.rank);
        sound = poll(stop.rank);
        for (uint32_t n = roll(pause) ? 0 : roll(8); n && sound; n--)
            send_hostile();
        if (!roll(10 * pause))
            write_hostile();
    }
    for (uint32_t r = 0; r < w.ranks; r++)
        h->done += w.groups[r].round;
    destroy();
}

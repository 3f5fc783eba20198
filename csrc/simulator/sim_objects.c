/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gossip buffers over windows in virtual time (transport/sim/sim_windows.h): the very
 * registers, accumulators and queues that run over MPI, all driven by one thread.
 */
#include "base/check.h"
#include "gossip/gossip.h"
#include "group/object.h"
#include "include/simulator.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"
#include "transport/sim/sim_windows.h"

struct pcoll_sim_gossip {
    uint32_t ranks;
    struct sim_windows *windows;
    struct pcoll_gossip *buffers; /* by rank, as the memories */
    struct gossip_memory *memories;
};

static const struct user_object_kind sim_gossip_kind = {
    .name = "the simulated gossip buffer"};

static int sim_gossip_make_rank(pcoll_sim_gossip *s, uint32_t rank,
                                const pcoll_gossip_options *options)
{
    struct gossip_memory *m = &s->memories[rank];
    int rc = gossip_memory_prepare(m, options, rank, s->ranks, false);
    if (rc == PCOLL_OK && rank == 0)
        s->windows = sim_windows_create(s->ranks, m->layout.bytes, true);
    if (rc != PCOLL_OK)
        return rc;
    m->window = sim_window(s->windows, rank);
    s->buffers[rank] =
        (struct pcoll_gossip){.base.kind = &sim_gossip_kind,
                              .memory = m,
                              .max_uncollected = options->max_uncollected};
    return PCOLL_OK; /* its memory is zero already */
}

int pcoll_sim_gossip_create(uint32_t ranks, const pcoll_gossip_options *options,
                            pcoll_sim_gossip **out)
{
    if (ranks < 1)
        return fail(PCOLL_EINVAL, "ranks: expected at least 1, got 0");
    pcoll_sim_gossip *s = must(calloc(1, sizeof *s));
    s->ranks = ranks;
    s->buffers = must(calloc(ranks, sizeof *s->buffers));
    s->memories = must(calloc(ranks, sizeof *s->memories));
    int rc = PCOLL_OK;
    for (uint32_t r = 0; r < ranks && rc == PCOLL_OK; r++)
        rc = sim_gossip_make_rank(s, r, options);
    if (rc != PCOLL_OK)
        pcoll_sim_gossip_free(&s);
    *out = s;
    return rc;
}

int pcoll_sim_gossip_rank(pcoll_sim_gossip *s, uint32_t rank, pcoll_gossip **gossip)
{
    CHECK(rank < s->ranks);
    *gossip = &s->buffers[rank];
    return PCOLL_OK;
}

int pcoll_sim_gossip_sent(pcoll_sim_gossip *s, uint32_t rank, void **parcel)
{
    CHECK(rank < s->ranks);
    *parcel = sim_windows_sent(s->windows, rank);
    return PCOLL_OK;
}

int pcoll_sim_gossip_land(pcoll_sim_gossip *s, void *parcel, uint32_t *rank)
{
    struct parcel *p = parcel;
    CHECK(p);
    *rank = sim_windows_land(s->windows, &p);
    return PCOLL_OK;
}

int pcoll_sim_gossip_free(pcoll_sim_gossip **at)
{
    pcoll_sim_gossip *s = *at;
    if (!s)
        return PCOLL_OK;
    for (uint32_t r = 0; r < s->ranks; r++)
        gossip_memory_destroy(&s->memories[r]);
    if (s->windows)
        sim_windows_free(&s->windows);
    free(s->buffers);
    free(s->memories);
    free(s);
    *at = NULL;
    return PCOLL_OK;
}

/*
 * Grouped averaging over transport/sim, each rank with a communicator of its own: the
 * very groups that run over MPI, driven one after the other as messages come and alarms
 * fall due. The ranks are near each other, so what they read they have at once.
 */

struct pcoll_sim_group {
    uint32_t ranks;
    struct sim *sim;
    struct sim_windows *windows;
    struct pcoll_group *groups; /* by rank */
    bool *stands;
};

static const struct user_object_kind sim_group_kind = {.name = "the simulated group"};

static int sim_group_make_rank(pcoll_sim_group *s, uint32_t rank,
                               const pcoll_group_options *options)
{
    struct pcoll_group *p = &s->groups[rank];
    struct group *g = &p->group;
    int rc = communicator_create(sim_endpoint(s->sim, rank), NULL, &g->communicator);
    if (rc != PCOLL_OK)
        return rc;
    p->base.kind = &sim_group_kind;
    p->base.communicator = g->communicator;
    g->options = *options;
    g->cell = rank;
    g->cells = must(calloc(s->ranks, sizeof *g->cells));
    for (uint32_t r = 0; r < s->ranks; r++)
        g->cells[r] = r;
    if ((rc = group_prepare(g, rank, s->ranks)) != PCOLL_OK)
        return rc;
    if (rank == 0)
        s->windows = sim_windows_create(s->ranks, g->place.bytes, false);
    g->window = sim_window(s->windows, rank);
    rc = group_attach(g);
    g->driven = true;
    communicator_notify(g->communicator, &g->base);
    sim_wake(s->sim, rank, 0, 0);
    return rc == PCOLL_OK ? communicator_register(g->communicator, &g->base, 0) : rc;
}

int pcoll_sim_group_create(uint32_t ranks, uint64_t seed, const pcoll_network *network,
                           const pcoll_group_options *options, pcoll_sim_group **out)
{
    pcoll_sim_group *s = must(calloc(1, sizeof *s));
    struct sim_options how = {.size = ranks, .seed = seed, .network = *network};
    int rc = sim_create(&how, &s->sim);
    s->groups = must(calloc(ranks + 1, sizeof *s->groups));
    s->stands = must(calloc(ranks + 1, sizeof *s->stands));
    s->ranks = ranks;
    for (uint32_t r = 0; r < ranks && rc == PCOLL_OK; r++)
        rc = sim_group_make_rank(s, r, options);
    if (rc != PCOLL_OK)
        pcoll_sim_group_free(&s);
    *out = s;
    return rc;
}

int pcoll_sim_group_rank(pcoll_sim_group *s, uint32_t rank, pcoll_group **group)
{
    CHECK(rank < s->ranks);
    *group = &s->groups[rank];
    return PCOLL_OK;
}

int pcoll_sim_group_wake(pcoll_sim_group *s, uint32_t rank, int32_t stands)
{
    CHECK(rank < s->ranks);
    s->stands[rank] = stands;
    sim_wake(s->sim, rank, 0, 0);
    return PCOLL_OK;
}

/* The rank looks; *over: at the end of the round that its application waits for. */
static int sim_group_poll(struct pcoll_group *p, bool *over)
{
    struct shared *shared = &p->group.shared;
    while (communicator_poll(p->base.communicator) > 0)
        ;
    *over =
        p->waiting && atomic_load(&shared->finished) >= atomic_load(&shared->started);
    return communicator_check(p->base.communicator);
}

int pcoll_sim_group_run(pcoll_sim_group *s, int64_t until, uint32_t *rank,
                        int64_t *time)
{
    struct sim_stop stop;
    bool over = false;
    int rc = PCOLL_OK;
    while (rc == PCOLL_OK && !over && sim_step_until(s->sim, until, &stop))
        if (!s->stands[stop.rank])
            rc = sim_group_poll(&s->groups[stop.rank], &over);
    *rank = over ? stop.rank : s->ranks;
    *time = sim_now(s->sim);
    return rc;
}

int pcoll_sim_group_free(pcoll_sim_group **at)
{
    pcoll_sim_group *s = *at;
    for (uint32_t r = 0; s && r < s->ranks; r++) {
        struct group *g = &s->groups[r].group;
        g->driven = false; /* not closed: all end at once */
        if (g->communicator) {
            group_dispose(g);
            communicator_destroy(&g->communicator);
        }
    }
    if (!s)
        return PCOLL_OK;
    if (s->windows)
        sim_windows_free(&s->windows);
    if (s->sim)
        sim_free(&s->sim);
    free(s->groups);
    free(s->stands);
    free(s);
    *at = NULL;
    return PCOLL_OK;
}

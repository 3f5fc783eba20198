/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gossip buffers and groups of simulated ranks, driven by one thread. They are the same
 * objects that run over MPI.
 *
 * Gossip buffers use windows of transport/sim/sim_transport.h. The caller moves time:
 * what a rank sends takes effect when the caller lands it.
 *
 * Groups use transport/sim/sim_transport.h, with one communicator for each rank. They
 * are driven one after the other, as messages arrive and alarms expire. Reading the
 * memory of another rank takes no time.
 */
#include "gossip/gossip.h"
#include "group/group_agent.h"
#include "include/simulator.h"
#include "transport/sim/sim_transport.h"

struct pcoll_sim_gossip {
    uint32_t ranks;
    struct sim_windows *windows;
    struct pcoll_gossip *buffers; /* by rank */
};

static const struct user_object_kind sim_gossip_kind = {
    .name = "the simulated gossip buffer"};

static int sim_gossip_make_rank(pcoll_sim_gossip *simulation, uint32_t rank,
                                const pcoll_gossip_options *options)
{
    struct pcoll_gossip *g = &simulation->buffers[rank];
    int rc = gossip_memory_prepare(&g->memory, options, rank, simulation->ranks, false);
    if (rc == PCOLL_OK && rank == 0)
        simulation->windows =
            sim_windows_create(simulation->ranks, g->memory.layout.bytes, true);
    if (rc != PCOLL_OK)
        return rc;
    g->memory.window = sim_window(simulation->windows, rank);
    g->base.kind = &sim_gossip_kind;
    g->max_uncollected = options->max_uncollected;
    return PCOLL_OK; /* the window is zeroed already */
}

int pcoll_sim_gossip_create(uint32_t ranks, const pcoll_gossip_options *options,
                            pcoll_sim_gossip **out)
{
    int rc = fail_if_null_as("options, sim", options, out);
    if (rc != PCOLL_OK)
        return rc;
    if (ranks < 1)
        return fail(PCOLL_EINVAL, "ranks: expected at least 1, got 0");
    pcoll_sim_gossip *simulation = sim_must(calloc(1, sizeof *simulation));
    simulation->ranks = ranks;
    simulation->buffers = sim_must(calloc(ranks, sizeof *simulation->buffers));
    for (uint32_t r = 0; r < ranks && rc == PCOLL_OK; r++)
        rc = sim_gossip_make_rank(simulation, r, options);
    if (rc != PCOLL_OK)
        pcoll_sim_gossip_free(&simulation);
    *out = simulation;
    return rc;
}

int pcoll_sim_gossip_rank(pcoll_sim_gossip *simulation, uint32_t rank,
                          pcoll_gossip **gossip)
{
    return fail_if_null_as("sim, gossip", simulation, gossip)
               ?: (*gossip = &simulation->buffers[rank], PCOLL_OK);
}

int pcoll_sim_gossip_sent(pcoll_sim_gossip *simulation, uint32_t rank, void **parcel)
{
    return fail_if_null_as("sim, parcel", simulation, parcel)
               ?: (*parcel = sim_windows_sent(simulation->windows, rank), PCOLL_OK);
}

int pcoll_sim_gossip_land(pcoll_sim_gossip *simulation, void *parcel, uint32_t *rank)
{
    struct sim_parcel *p = parcel;
    return fail_if_null_as("sim, parcel, rank", simulation, parcel, rank)
               ?: (*rank = sim_windows_land(simulation->windows, &p), PCOLL_OK);
}

int pcoll_sim_gossip_free(pcoll_sim_gossip **at)
{
    pcoll_sim_gossip *simulation = at ? *at : NULL;
    if (!simulation)
        return PCOLL_OK;
    for (uint32_t r = 0; r < simulation->ranks; r++)
        gossip_memory_destroy(&simulation->buffers[r].memory);
    if (simulation->windows)
        sim_windows_free(&simulation->windows);
    free(simulation->buffers);
    free(simulation);
    *at = NULL;
    return PCOLL_OK;
}

struct pcoll_sim_group {
    uint32_t ranks;
    struct sim *sim;
    struct sim_windows *windows;
    struct pcoll_group *groups; /* by rank */
    bool *stands;
};

static const struct user_object_kind sim_group_kind = {.name = "the simulated group"};

static int sim_group_make_rank(pcoll_sim_group *simulation, uint32_t rank,
                               const pcoll_group_options *options)
{
    struct pcoll_group *p = &simulation->groups[rank];
    struct group *g = &p->group;
    int rc = communicator_create(sim_endpoint(simulation->sim, rank), NULL,
                                 &g->communicator);
    if (rc != PCOLL_OK)
        return rc;
    p->base.kind = &sim_group_kind;
    p->base.communicator = g->communicator;
    g->options = *options;
    g->cell = rank;
    g->cells = sim_must(calloc(simulation->ranks, sizeof *g->cells));
    for (uint32_t r = 0; r < simulation->ranks; r++)
        g->cells[r] = r;
    if ((rc = group_object_prepare(g, rank, simulation->ranks)) != PCOLL_OK)
        return rc;
    if (rank == 0)
        simulation->windows =
            sim_windows_create(simulation->ranks, g->place.bytes, false);
    g->window = sim_window(simulation->windows, rank);
    rc = group_object_attach(g);
    g->driven = true;
    communicator_notify(g->communicator, &g->base);
    sim_wake(simulation->sim, rank, 0, 0);
    return rc ?: communicator_register(g->communicator, &g->base, 0);
}

int pcoll_sim_group_create(uint32_t ranks, uint64_t seed, const pcoll_network *network,
                           const pcoll_group_options *options, pcoll_sim_group **out)
{
    int rc = fail_if_null_as("network, options, sim", network, options, out);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_sim_group *simulation = sim_must(calloc(1, sizeof *simulation));
    struct sim_options how = {.size = ranks, .seed = seed, .network = *network};
    rc = sim_create(&how, &simulation->sim);
    simulation->groups = sim_must(calloc(ranks + 1, sizeof *simulation->groups));
    simulation->stands = sim_must(calloc(ranks + 1, sizeof *simulation->stands));
    simulation->ranks = ranks;
    for (uint32_t r = 0; r < ranks && rc == PCOLL_OK; r++)
        rc = sim_group_make_rank(simulation, r, options);
    if (rc != PCOLL_OK)
        pcoll_sim_group_free(&simulation);
    *out = simulation;
    return rc;
}

int pcoll_sim_group_rank(pcoll_sim_group *simulation, uint32_t rank,
                         pcoll_group **group)
{
    return fail_if_null_as("sim, group", simulation, group)
               ?: (*group = &simulation->groups[rank], PCOLL_OK);
}

int pcoll_sim_group_wake(pcoll_sim_group *simulation, uint32_t rank, int32_t stands)
{
    int rc = fail_if_null_as("sim", simulation);
    if (rc != PCOLL_OK)
        return rc;
    simulation->stands[rank] = stands;
    sim_wake(simulation->sim, rank, 0, 0);
    return PCOLL_OK;
}

int pcoll_sim_group_run(pcoll_sim_group *simulation, int64_t until, uint32_t *rank,
                        int64_t *time)
{
    struct sim_stop stop;
    bool over = false;
    int rc = fail_if_null_as("sim, rank, time", simulation, rank, time);
    if (rc != PCOLL_OK)
        return rc;
    while (rc == PCOLL_OK && !over && sim_step_until(simulation->sim, until, &stop)) {
        struct pcoll_group *p = &simulation->groups[stop.rank];
        struct group_shared *shared = &p->group.shared;
        if (simulation->stands[stop.rank])
            continue;
        while (communicator_poll(p->base.communicator) > 0)
            ;
        over = p->waiting && /* The round that its application waits for is complete. */
               atomic_load(&shared->finished) >= atomic_load(&shared->started);
        rc = communicator_check(p->base.communicator);
    }
    *rank = over ? stop.rank : simulation->ranks;
    *time = sim_now(simulation->sim);
    return rc;
}

int pcoll_sim_group_free(pcoll_sim_group **at)
{
    pcoll_sim_group *simulation = at ? *at : NULL;
    if (!simulation)
        return PCOLL_OK;
    for (uint32_t r = 0; r < simulation->ranks; r++) {
        struct group *g = &simulation->groups[r].group;
        g->driven = false; /* do not close it: all ranks end at once */
        if (g->communicator) {
            group_object_dispose(g);
            communicator_destroy(&g->communicator);
        }
    }
    if (simulation->windows)
        sim_windows_free(&simulation->windows);
    if (simulation->sim)
        sim_free(&simulation->sim);
    free(simulation->groups);
    free(simulation->stands);
    free(simulation);
    *at = NULL;
    return PCOLL_OK;
}

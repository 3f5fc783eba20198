/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gossip buffers over windows in virtual time (transport/sim/window.h): the very
 * registers, accumulators and queues that run over MPI, all driven by one thread.
 */
#include "base/check.h"
#include "gossip/gossip.h"
#include "include/simulator.h"
#include "transport/sim/memory.h"
#include "transport/sim/window.h"

struct pcoll_sim_gossip {
    uint32_t ranks;
    struct sim_windows *windows;
    struct pcoll_gossip *buffers; /* by rank, as the memories */
    struct gossip_memory *memories;
};

static const struct user_object_kind simulated = {.name =
                                                      "the simulated gossip buffer"};

static int make_rank(pcoll_sim_gossip *s, uint32_t rank,
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
        (struct pcoll_gossip){.base.kind = &simulated,
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
        rc = make_rank(s, r, options);
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

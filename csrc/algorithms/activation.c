/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activation broadcast: the union of P binomial trees, so that any endpoint can be the
 * root. Source: Di Girolamo et al. 2015; Li et al., PPoPP 2020, section 4.1.1
 * ("Activation").
 *
 * Endpoint r has out-edges k = 0 … L-1 to (r + 2^k) mod P and in-edges from (r - 2^k)
 * mod P, L = ceil(log2 P). Starting (N0) fires all out-edges; an activation through
 * in-edge k fires the out-edges j > k. Each out-edge has a gate of its own, "any of N0
 * and the in-edges below me", and is consumed on its own: an endpoint that forwarded
 * only on its first activation would leave ranks out from P = 5 on. The active part
 * starts with any of N0 and the in-edges (N1).
 *
 * Every sum of distinct powers of two below 2^L is a path with growing k, and each
 * distance d < P has one, so every endpoint is reached from every root within L hops,
 * for any P. Distances beyond P wrap around and give duplicates, which are consumed.
 *
 * Steps <= L; messages sent <= L of one control message each.
 */
#include "algorithms/algorithms.h"

int activation_edges(uint32_t size)
{
    int edges = 0;
    while (((uint64_t)1 << edges) < size)
        edges++;
    return edges;
}

uint32_t activation_source(uint32_t rank, uint32_t size, int edge)
{
    uint64_t hop = ((uint64_t)1 << edge) % size;
    return (uint32_t)((rank + size - hop) % size);
}

static uint32_t target(uint32_t rank, uint32_t size, int edge)
{
    return (uint32_t)((rank + ((uint64_t)1 << edge)) % size);
}

/* In-edges, and out-edges that fire with `root` or an in-edge below them. */
static void build_edges(struct sched *s, uint32_t rank, uint32_t size,
                        struct activation *a, int root)
{
    a->edges = activation_edges(size);
    for (int k = 0; k < a->edges; k++)
        a->from[k] = sched_control_recv(s, "activated",
                                        (int)activation_source(rank, size, k), k);
    for (int k = 0; k < a->edges; k++) {
        int out = sched_control_send(s, "activate", (int)target(rank, size, k), k);
        sched_after(s, out, root);
        for (int j = 0; j < k; j++)
            sched_after(s, out, a->from[j]);
        sched_need(s, out, 1);
    }
}

/* N1: any of the start, the force and the in-edges. */
static void build_active(struct sched *s, struct activation *a)
{
    a->active = sched_nop(s, "active");
    sched_after(s, a->active, a->start);
    if (a->force != a->start)
        sched_after(s, a->active, a->force);
    for (int k = 0; k < a->edges; k++)
        sched_after(s, a->active, a->from[k]);
    sched_need(s, a->active, 1);
}

void build_activation(struct sched *s, uint32_t rank, uint32_t size,
                      struct activation *a)
{
    a->start = a->force = sched_event(s, "start");
    build_edges(s, rank, size, a, a->start);
    build_active(s, a);
}

void build_own_activation(struct sched *s, struct activation *a)
{
    a->edges = 0;
    a->start = a->force = sched_event(s, "start");
    build_active(s, a);
}

void build_forced_activation(struct sched *s, uint32_t rank, uint32_t size,
                             struct activation *a)
{
    a->start = sched_event(s, "start");
    a->force = sched_event(s, "force");
    build_edges(s, rank, size, a, a->force);
    build_active(s, a);
}

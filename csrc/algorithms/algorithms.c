/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that all algorithms use; see algorithms.h. */
#include "algorithms/algorithms.h"

#include <string.h>

#include "base/error.h"

/* Names. */

const char *const algorithm_names[] = {
    [PCOLL_ALGORITHM_AUTO] = "auto",
    [PCOLL_ALGORITHM_RECDBL] = "recdbl",
    [PCOLL_ALGORITHM_RABENSEIFNER] = "rabenseifner",
    [PCOLL_ALGORITHM_RING] = "ring",
    [PCOLL_ALGORITHM_NATIVE] = "native",
    NULL,
};

int algorithm_by_name(const char *name)
{
    for (int i = 0; algorithm_names[i]; i++)
        if (!strcmp(name, algorithm_names[i]))
            return i;
    return -1;
}

int pcoll_algorithm_parse(const char *text, int32_t *algorithm)
{
    int rc = fail_if_null(text, algorithm);
    if (rc != PCOLL_OK)
        return rc;
    int found = algorithm_by_name(text);
    if (found < 0)
        return fail(PCOLL_EINVAL,
                    "algorithm: expected auto, recdbl, rabenseifner, ring or native, "
                    "got \"%.50s\"",
                    text);
    *algorithm = found;
    return PCOLL_OK;
}

/* Plans. */

enum { MAX_CHAINS = MAX_TEMPS / 2 };

#ifdef PCOLL_TEST_CHAIN_BYTES
enum { CHAIN_BYTES = PCOLL_TEST_CHAIN_BYTES };
#else
enum { CHAIN_BYTES = 128 * 1024 };
#endif

uint32_t largest_power_of_two(uint32_t size)
{
    uint32_t power = 1;
    while (power <= size / 2)
        power *= 2;
    return power;
}

/* Return the number of chains with pieces of about CHAIN_BYTES: while one piece is reduced,
 * another one is received. */
static uint32_t algorithm_ring_chains(uint32_t size, size_t bytes)
{
    size_t chains = bytes / size / CHAIN_BYTES;
    return chains < 1 ? 1 : chains > MAX_CHAINS ? MAX_CHAINS : (uint32_t)chains;
}

void algorithm_plan(enum pcoll_algorithm algorithm, uint32_t size, size_t bytes,
                    struct algorithm_plan *plan)
{
    *plan = (struct algorithm_plan){.algorithm = algorithm, .temps = 2};
    if (algorithm == PCOLL_ALGORITHM_RABENSEIFNER)
        plan->padded = largest_power_of_two(size);
    if (algorithm == PCOLL_ALGORITHM_NATIVE)
        plan->temps = 0;
    if (algorithm == PCOLL_ALGORITHM_RING) {
        plan->chains = algorithm_ring_chains(size, bytes);
        plan->pieces = size * plan->chains;
        plan->temps = 2 * (int)plan->chains;
    }
}

uint32_t algorithm_operations(const struct algorithm_plan *plan, uint32_t size)
{
    uint32_t steps = (uint32_t)activation_edges(size);
    if (plan->algorithm == PCOLL_ALGORITHM_RING)
        return 6 * size * plan->chains;
    return plan->algorithm == PCOLL_ALGORITHM_RABENSEIFNER ? 8 + 6 * steps
                                                           : 8 + 3 * steps;
}

/*
 * Activation broadcast: the union of P binomial trees, so that any endpoint can be the
 * root. Source: Di Girolamo et al. 2015; Li et al., PPoPP 2020, section 4.1.1
 * ("Activation").
 *
 * Endpoint r has out-edges k = 0 … L-1 to (r + 2^k) mod P and in-edges from (r - 2^k)
 * mod P, with L = ceil(log2 P). Starting (N0) fires all out-edges. An activation through
 * in-edge k fires the out-edges j > k. Each out-edge has its own gate, "any of N0 and the
 * lower in-edges", and is consumed separately: an endpoint that forwarded only its first
 * activation would leave ranks out if P >= 5. The active part starts with any of N0 and
 * the in-edges (N1).
 *
 * Every sum of distinct powers of two below 2^L is a path with growing k, and each
 * distance d < P has one, so every endpoint is reached from every root within L hops,
 * for any P. Distances beyond P wrap around and give duplicates, which are consumed.
 *
 * Steps <= L; messages sent <= L of one control message each.
 */

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

static uint32_t activation_target(uint32_t rank, uint32_t size, int edge)
{
    return (uint32_t)((rank + ((uint64_t)1 << edge)) % size);
}

void build_activation(struct sched *s, uint32_t rank, uint32_t size, bool forced,
                      struct activation *a)
{
    a->start = sched_event(s, "start");
    a->force = forced ? sched_event(s, "force") : a->start;
    a->edges = activation_edges(size);
    for (int k = 0; k < a->edges; k++)
        a->from[k] = sched_control_recv(s, "activated",
                                        (int)activation_source(rank, size, k), k);
    for (int k = 0; k < a->edges; k++) {
        int out =
            sched_control_send(s, "activate", (int)activation_target(rank, size, k), k);
        sched_after(s, out, a->force);
        for (int j = 0; j < k; j++)
            sched_after(s, out, a->from[j]);
        sched_need(s, out, 1);
    }
    a->active = sched_nop(s, "active");
    sched_after(s, a->active, a->start);
    if (forced)
        sched_after(s, a->active, a->force);
    for (int k = 0; k < a->edges; k++)
        sched_after(s, a->active, a->from[k]);
    sched_need(s, a->active, 1);
}

/*
 * Allreduce by the MPI library: MPI_Iallreduce as operations of the schedule.
 *
 * The activation makes all ranks call it in the same order of rounds, on a communicator of
 * this handle only, as MPI requires. A rank without a contribution provides the identity
 * of the op. A second, small allreduce of the headers tells which ranks have contributed
 * (docs/algorithms.md). Steps, bytes and the order of additions are those of the library.
 */

int build_allreduce_native(struct sched *s, uint32_t rank, uint32_t size, int freeze,
                           const struct algorithm_plan *plan)
{
    (void)rank;
    (void)size;
    int fill = sched_copy(s, "fill", BUFFER_RESULT, BUFFER_CONTRIBUTION);
    sched_after(s, fill, freeze);
    int end = sched_nop(s, "end");
    int header = sched_native(s, "headers", NATIVE_HEADER);
    sched_after(s, header, fill);
    sched_after(s, end, header);
    for (int part = 0; part < plan->native_parts; part++) {
        int data = sched_native(s, "allreduce", part);
        sched_after(s, data, fill);
        sched_after(s, end, data);
    }
    return end;
}

/* The data part of a round. */

int build_allreduce_alone(struct sched *s, int freeze)
{
    int copy = sched_copy(s, "alone", BUFFER_RESULT, BUFFER_CONTRIBUTION);
    sched_after(s, copy, freeze);
    int end = sched_nop(s, "end");
    sched_after(s, end, copy);
    return end;
}

int build_allreduce(struct sched *s, uint32_t rank, uint32_t size, int active,
                    const struct algorithm_plan *plan)
{
    static allreduce_builder *const builders[] = {
        [PCOLL_ALGORITHM_RECDBL] = build_allreduce_recdbl,
        [PCOLL_ALGORITHM_RABENSEIFNER] = build_allreduce_rabenseifner,
        [PCOLL_ALGORITHM_RING] = build_allreduce_ring,
        [PCOLL_ALGORITHM_NATIVE] = build_allreduce_native,
    };
    int freeze = sched_copy(s, "freeze", BUFFER_CONTRIBUTION, BUFFER_DEPOSIT);
    if (size > 1 &&
        plan->algorithm == PCOLL_ALGORITHM_RING) /* which gathers piece by piece */
        sched_slice(s, freeze, (struct slice){0, 0, 1});
    sched_after(s, freeze, active);
    if (size == 1)
        return build_allreduce_alone(s, freeze);
    return builders[plan->algorithm](s, rank, size, freeze, plan);
}

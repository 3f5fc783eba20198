/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator: the objects of partialcoll.h on simulated ranks, in one process and one thread,
 * in virtual time; a library of its own, without MPI. The functions of partialcoll.h use its
 * objects; creating and freeing them and moving time is here. Conventions are those of
 * partialcoll.h; everything is local.
 */
#ifndef PARTIALCOLL_SIMULATOR_H
#define PARTIALCOLL_SIMULATOR_H

#include "include/partialcoll.h"

#pragma GCC visibility push(default)

/* cffi:begin */

/* How the latency of messages is distributed in a simulation; the mean is always L. */
enum pcoll_latency {
    PCOLL_LATENCY_CONSTANT,
    PCOLL_LATENCY_UNIFORM,     /* spread: half of its width, as a part of the mean */
    PCOLL_LATENCY_EXPONENTIAL, /* no spread */
    PCOLL_LATENCY_LOGNORMAL    /* spread: standard deviation of the logarithm */
};

/* A simulated network, LogGP: latency, overhead, gap between messages, gap per byte. */
typedef struct pcoll_network {
    double L, o, g, G; /* nanoseconds */
    int32_t latency;   /* enum pcoll_latency */
    double spread;
} pcoll_network;

/* Skewed arrival in virtual time: rank i starts i times the skew late in each iteration, which
 * begins when all events of the last one have happened. Schedule, protocol and reductions are
 * those that run over MPI. */
typedef struct pcoll_skew {
    uint32_t ranks;
    uint64_t count; /* elements, SUM */
    int32_t dtype;  /* float32, or float64 in pcoll_skew_reduce */
    double skew;    /* nanoseconds */
    uint64_t seed;  /* of the latencies */
    pcoll_network network;
} pcoll_skew;

typedef struct pcoll_skew_result {
    uint32_t active;
    uint64_t messages; /* sent by all ranks, data and control */
    double activation; /* from the first arrival that started the round until it was
                          active on the last rank, nanoseconds */
    uint64_t wrong;    /* elements that differ from the sum over the mask */
} pcoll_skew_result;

typedef struct pcoll_skew_run pcoll_skew_run;

/* Bytes that this process can still allocate, by the machine and its control groups. */
uint64_t pcoll_memory_left(void);

/* PCOLL_EINVAL names an impossible parameter and its range. */
int pcoll_skew_create(const pcoll_skew *skew, const pcoll_options *options,
                      pcoll_skew_run **run);
/* One iteration. latency[i]: from the start of rank i until its round was complete, nanoseconds. */
int pcoll_skew_iterate(pcoll_skew_run *run, double *latency, pcoll_skew_result *result);
/* The same with the start of each rank, in nanoseconds; row i of *data becomes what rank i
 * received. */
int pcoll_skew_reduce(pcoll_skew_run *run, const double *starts, void *data,
                      double *latency);
/* May be NULL: run. */
int pcoll_skew_free(pcoll_skew_run **run);
/* About how much memory a run takes. */
int pcoll_skew_memory(const pcoll_skew *skew, const pcoll_options *options,
                      uint64_t *bytes);

/* Gossip buffers of simulated ranks. What a rank gives or sends to another is a parcel until the
 * caller lands it; everything else takes no time. */
typedef struct pcoll_sim_gossip pcoll_sim_gossip;

/* PCOLL_EINVAL names an impossible option; PCOLL_ENOMEM. */
int pcoll_sim_gossip_create(uint32_t ranks, const pcoll_gossip_options *options,
                            pcoll_sim_gossip **sim);
/* The buffer of a rank, for all functions but pcoll_gossip_free. */
int pcoll_sim_gossip_rank(pcoll_sim_gossip *sim, uint32_t rank, pcoll_gossip **gossip);
/* Take the messages that the rank has sent since the last call; *parcel is NULL if there are none.
 * Land each parcel once, at *rank. */
int pcoll_sim_gossip_sent(pcoll_sim_gossip *sim, uint32_t rank, void **parcel);
int pcoll_sim_gossip_land(pcoll_sim_gossip *sim, void *parcel, uint32_t *rank);
/* May be NULL: sim. */
int pcoll_sim_gossip_free(pcoll_sim_gossip **sim);

/* Groups of simulated ranks, for all functions but pcoll_group_free. Only messages take time, in
 * nanoseconds from 0. */
typedef struct pcoll_sim_group pcoll_sim_group;

/* PCOLL_EINVAL names an impossible option. The cell of a rank is its number. */
int pcoll_sim_group_create(uint32_t ranks, uint64_t seed, const pcoll_network *network,
                           const pcoll_group_options *options, pcoll_sim_group **sim);
int pcoll_sim_group_rank(pcoll_sim_group *sim, uint32_t rank, pcoll_group **group);
/* Wake a rank that has started, left or rejoined, so that pcoll_sim_group_run runs it. A rank that
 * `stands` still does not run until it is woken again. */
int pcoll_sim_group_wake(pcoll_sim_group *sim, uint32_t rank, int32_t stands);
/* Run until that time, or until the round of a rank that has started is complete: *rank at *time,
 * which calls pcoll_group_wait next. *rank is the number of ranks if there is none. */
int pcoll_sim_group_run(pcoll_sim_group *sim, int64_t until, uint32_t *rank,
                        int64_t *time);
/* May be NULL: sim. */
int pcoll_sim_group_free(pcoll_sim_group **sim);

/* cffi:end */

#pragma GCC visibility pop

#endif

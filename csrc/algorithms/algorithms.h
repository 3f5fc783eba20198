/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedule builders, one per file. Each adds its operations for one vertex to a
 * schedule and returns the operation that ends its part; none knows how operations are
 * carried out.
 */
#ifndef PCOLL_ALGORITHMS_H
#define PCOLL_ALGORITHMS_H

#include "../schedule/sched.h"

/* The buffers that operations name. */
enum round_buffer {
    BUFFER_DEPOSIT,      /* what the members of the vertex have handed in */
    BUFFER_CONTRIBUTION, /* frozen at the activation */
    BUFFER_RESULT,
    BUFFER_TEMP0,
    BUFFER_TEMP1
};

enum { MAX_ACTIVATION_EDGES = 32 };

/* The operations of the activation that its executor must know. */
struct activation {
    int start;  /* event: this vertex starts the round itself (N0) */
    int force;  /* event: so does it, and activates the others; start, or one of its own
                 */
    int active; /* the round is active here (N1): the data part goes after it */
    int edges;
    int from[MAX_ACTIVATION_EDGES]; /* control receive of each in-edge */
};

/* Broadcast of an activation from any vertex to all. Steps <= ceil(log2 P) hops. */
void build_activation(struct sched *s, uint32_t rank, uint32_t size,
                      struct activation *a);
/* No broadcast: every vertex starts by itself. */
void build_own_activation(struct sched *s, struct activation *a);
/* Every vertex starts by itself, and one that is forced activates all. */
void build_forced_activation(struct sched *s, uint32_t rank, uint32_t size,
                             struct activation *a);

/* In-edge k of the activation comes from this vertex. */
uint32_t activation_source(uint32_t rank, uint32_t size, int edge);
/* Number of in-edges (and out-edges): ceil(log2 size). */
int activation_edges(uint32_t size);

/*
 * Allreduce after `active`: freezes the contribution, leaves the result in
 * BUFFER_RESULT. Data edges are numbered from 0; at most DATA_EDGES of them.
 */
enum { DATA_EDGES = 34 };
int build_allreduce_recdbl(struct sched *s, uint32_t rank, uint32_t size, int active);

#endif

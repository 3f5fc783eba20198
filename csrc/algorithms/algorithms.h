/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedule builders, one per file. Each adds its operations for one endpoint to a
 * schedule and returns the operation that ends its part; none knows how operations are
 * carried out.
 */
#ifndef PCOLL_ALGORITHMS_H
#define PCOLL_ALGORITHMS_H

#include <stddef.h>

#include "include/partialcoll.h"
#include "schedule/sched.h"

enum { MAX_ACTIVATION_EDGES = 32, MAX_TEMPS = 16 };

/* The buffers that operations name. */
enum round_buffer {
    BUFFER_DEPOSIT,      /* what the members of the endpoint have handed in */
    BUFFER_CONTRIBUTION, /* frozen at the activation */
    BUFFER_RESULT,
    BUFFER_TEMP, /* the first of the temporaries */
    BUFFERS = BUFFER_TEMP + MAX_TEMPS
};

/* The operations of the activation that its executor must know. */
struct activation {
    int start;  /* event: this endpoint starts the round itself (N0) */
    int force;  /* event: so does it, and activates the others; start, or one of its own
                 */
    int active; /* the round is active here (N1): the data part goes after it */
    int edges;
    int from[MAX_ACTIVATION_EDGES]; /* control receive of each in-edge */
};

/* Broadcast of an activation from any endpoint to all. Steps <= ceil(log2 P) hops. */
void build_activation(struct sched *s, uint32_t rank, uint32_t size,
                      struct activation *a);
/* No broadcast: every endpoint starts by itself. */
void build_own_activation(struct sched *s, struct activation *a);
/* Every endpoint starts by itself, and one that is forced activates all. */
void build_forced_activation(struct sched *s, uint32_t rank, uint32_t size,
                             struct activation *a);

/* In-edge k of the activation comes from this endpoint. */
uint32_t activation_source(uint32_t rank, uint32_t size, int edge);
/* Number of in-edges (and out-edges): ceil(log2 size). */
int activation_edges(uint32_t size);

/* What an operation NATIVE is about, beside the buffers of the handle from 0. */
enum { NATIVE_HEADER = -1 };

/* As users write them, "auto" first; NULL-terminated, by enum pcoll_algorithm. */
extern const char *const algorithm_names[];
/* Its number, or -1. */
int algorithm_by_name(const char *name);

/* How a handle's data part is done, and what memory that takes. */
struct algorithm_plan {
    enum pcoll_algorithm algorithm; /* not PCOLL_ALGORITHM_AUTO */
    int temps;
    uint32_t pieces;  /* a temporary holds one of so many slices; 0: everything */
    uint32_t padded;  /* each of so many slices must be as long as a header, and there
                         must be room for one behind the last; 0: no such wish */
    uint32_t chains;  /* ring: parts that go round side by side */
    int native_parts; /* native: buffers of the handle */
};

/* For `size` endpoints and so many bytes of data. */
void algorithm_plan(enum pcoll_algorithm algorithm, uint32_t size, size_t bytes,
                    struct algorithm_plan *plan);

/* About how many operations that is for one endpoint. */
uint32_t algorithm_operations(const struct algorithm_plan *plan, uint32_t size);

/*
 * Allreduce after `active`: freezes the contribution, leaves the result in
 * BUFFER_RESULT. A copy from BUFFER_DEPOSIT freezes, if it is the first, and waits until
 * its slice of the contribution is there. Data edges are numbered from 0; at most DATA_EDGES of them.
 */
enum { DATA_EDGES = 34 };
int build_allreduce(struct sched *s, uint32_t rank, uint32_t size, int active,
                    const struct algorithm_plan *plan);

/* The builders behind it; `freeze` is the operation that freezes the contribution. */
typedef int allreduce_builder(struct sched *s, uint32_t rank, uint32_t size, int freeze,
                              const struct algorithm_plan *plan);
allreduce_builder build_allreduce_recdbl, build_allreduce_rabenseifner,
    build_allreduce_ring, build_allreduce_native;

/* One endpoint alone: its contribution is the result. The end of the round. */
int build_allreduce_alone(struct sched *s, int freeze);

/* A butterfly among the members of a group, by their places in its list. */
struct butterfly_plan {
    uint32_t members, position;
    uint32_t pieces;   /* of the own part; 0: it is empty */
    const bool *empty; /* by member: its part */
};

/* The edges of its notices, and of what is fetched after them. */
enum butterfly_edge { BUTTERFLY_INPUT, BUTTERFLY_RESULT };

/* `start`: the event after which the own input may be read. scratch: three for each
 * member. Returns the operation that ends the round. REDUCE and "average" name their
 * piece as a slice of the own part, REDUCE its member as peer. */
int build_butterfly(struct sched *s, const struct butterfly_plan *plan, int start,
                    int *scratch);

/* Endpoints beyond the largest power of two fold into the first ones: the size of what
 * is left. */
uint32_t largest_power_of_two(uint32_t size);

#endif

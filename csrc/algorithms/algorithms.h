/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedule builders. Each adds the operations of one endpoint to a schedule and returns
 * the operation that ends its part. How operations are executed is defined elsewhere.
 */
#pragma once

#include <stddef.h>

#include "include/partialcoll.h"
#include "schedule/sched.h"

enum { MAX_ACTIVATION_EDGES = 32, MAX_TEMPS = 16 };

/* The buffers that operations name. */
enum round_buffer {
    BUFFER_DEPOSIT,      /* The deposits of the endpoint's members. */
    BUFFER_CONTRIBUTION, /* Their sum, frozen at the activation. */
    BUFFER_RESULT,
    BUFFER_TEMP, /* The first of the temporaries. */
    BUFFERS = BUFFER_TEMP + MAX_TEMPS
};

/* The operations of the activation that its executor must know. */
struct activation {
    int start;  /* Event: this endpoint starts the round itself (N0). */
    int force;  /* Event: the same, and it activates the others. It may equal start. */
    int active; /* The round is active here (N1). The data part follows it. */
    int edges;
    int from; /* The control receive of in-edge 0. Those of the others follow. */
};

/* Build the broadcast of an activation from any endpoint to all, in ceil(log2 P) hops at
 * most. `forced`: every endpoint starts by itself, and one that is forced activates all. */
void build_activation(struct sched *s, uint32_t rank, uint32_t size, bool forced,
                      struct activation *a);

/* Return the endpoint at which an in-edge of the activation begins. */
uint32_t activation_source(uint32_t rank, uint32_t size, int edge);
/* Return the number of in-edges, and of out-edges: ceil(log2 size). */
int activation_edges(uint32_t size);

/* The part of an operation NATIVE: a buffer of the handle, or this. */
enum { NATIVE_HEADER = -1 };

/* The names that users write, by enum pcoll_algorithm; NULL-terminated. */
extern const char *const algorithm_names[];
/* Return the number of an algorithm, or -1. */
int algorithm_by_name(const char *name);

/* How the data part of a handle's rounds is done, and the memory that it takes. */
struct algorithm_plan {
    enum pcoll_algorithm algorithm; /* Not PCOLL_ALGORITHM_AUTO. */
    int temps;
    uint32_t pieces; /* Slices, of which a temporary holds one; 0: it holds all data. */
    uint32_t padded; /* Slices that must each be as long as a header; 0: any length. */
    uint32_t chains; /* ring: parts that are reduced concurrently. */
    int native_parts; /* native: buffers of the handle. */
};

/* Plan for `size` endpoints and `bytes` bytes of data. */
void algorithm_plan(enum pcoll_algorithm algorithm, uint32_t size, size_t bytes,
                    struct algorithm_plan *plan);

/* Return the approximate number of operations of one endpoint. */
uint32_t algorithm_operations(const struct algorithm_plan *plan, uint32_t size);

/*
 * Build an allreduce that follows `active`. It freezes the contribution and leaves the
 * result in BUFFER_RESULT. The first copy from BUFFER_DEPOSIT freezes; each waits until
 * its slice of the contribution is gathered. Data edges are numbered from 0 to
 * DATA_EDGES - 1.
 */
enum { DATA_EDGES = 34 };
int build_allreduce(struct sched *s, uint32_t rank, uint32_t size, int active,
                    const struct algorithm_plan *plan);

/* A butterfly among the members of a group. Members are numbered by their position in the
 * group's list. */
struct butterfly_plan {
    uint32_t members, position;
    uint32_t pieces;   /* Of this member's part; 0: it is empty. */
    const bool *empty; /* By member: its part is empty. */
};

/* The edges of notices, and of the fetches that follow them. */
enum butterfly_edge { BUTTERFLY_INPUT, BUTTERFLY_RESULT };

/* Build a butterfly. `start` is the event after which this member's input may be read;
 * `scratch` has room for three operations of each member. The slice of REDUCE and of
 * "average" is the piece of this member's part; the peer of REDUCE is the member whose
 * input it adds. */
int build_butterfly(struct sched *s, const struct butterfly_plan *plan, int start,
                    int *scratch);

/* Return the largest power of two up to size. The endpoints beyond it fold into the first
 * ones. */
uint32_t largest_power_of_two(uint32_t size);

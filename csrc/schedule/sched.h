/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule: the DAG of operations that one rank executes in one round of a collective
 * (Li et al., "Taming Unbalanced Training Workloads …", PPoPP 2020, section 4.1.1).
 *
 * A schedule is built once: add operations, give each a gate (how many of its
 * predecessors must be complete, k of n), name the operation that ends the round,
 * commit. The commit checks everything. Afterwards the schedule is read-only, and
 * running it (engine.h) allocates no memory.
 *
 * Operations name buffers by small integers; their meaning is defined by the executor.
 * No I/O and no MPI.
 */
#ifndef PCOLL_SCHEDULE_SCHED_H
#define PCOLL_SCHEDULE_SCHED_H

#include <stdbool.h>
#include <stdint.h>

enum op_kind { OP_SEND, OP_RECV, OP_REDUCE, OP_COPY, OP_NOP, OP_TIMER, OP_NATIVE };

enum op_class {
    OP_PLAIN,   /* issued when the gate opens */
    OP_CONTROL, /* SEND: a control message; RECV: always posted, never issued */
    OP_EVENT    /* NOP that the owner completes, such as an arrival */
};

/* The part of the data that an operation uses: slices [begin, end) of `of` even slices;
 * of = 0: all data. */
struct slice {
    uint32_t begin, end, of;
};

/* Where a message carries the header of its round. */
enum header_place { HEADER_AFTER, HEADER_BEFORE, HEADER_NONE };

struct op {
    enum op_kind kind;
    enum op_class class;
    const char *label; /* static text */
    int peer;          /* SEND, RECV: endpoint */
    int edge;          /* SEND, RECV: distinguishes messages of a pair of endpoints */
    int out, a, b;     /* buffers. REDUCE: out = a (+) b; COPY, RECV: out; SEND: a;
                          NATIVE: the part */
    struct slice slice;
    enum header_place header;             /* SEND, RECV */
    uint32_t need;                        /* k of the gate */
    uint32_t preds;                       /* n of the gate: number of predecessors */
    uint32_t first_successor, successors; /* into sched.successor, after commit */
};

struct sched {
    struct op *ops;
    uint32_t count, capacity;
    struct {
        uint32_t from, to;
    } *edges;
    uint32_t edge_count, edge_capacity;
    uint32_t *successor;
    int end; /* the round is over when it is complete and no operation runs */
    bool committed;
    bool failed; /* out of memory while building; the commit reports it */
};

struct sched *sched_create(void);
void sched_free(struct sched **s);

/* Add an operation and return its id. Adding cannot fail: the commit reports errors. */
int sched_send(struct sched *s, const char *label, int peer, int edge, int from);
int sched_recv(struct sched *s, const char *label, int peer, int edge, int into);
int sched_control_send(struct sched *s, const char *label, int peer, int edge);
int sched_control_recv(struct sched *s, const char *label, int peer, int edge);
int sched_reduce(struct sched *s, const char *label, int out, int a, int b);
int sched_copy(struct sched *s, const char *label, int into, int from);
int sched_nop(struct sched *s, const char *label);
int sched_timer(struct sched *s, const char *label);
int sched_event(struct sched *s, const char *label);

/* Note that a REDUCE adds data that came from this peer. */
void sched_from(struct sched *s, int op, int peer);
/* Restrict an operation to slices of the data. */
void sched_slice(struct sched *s, int op, struct slice slice);
/* SEND, RECV: change the place of the header; the default is HEADER_AFTER. */
void sched_header(struct sched *s, int op, enum header_place place);

/* Add a collective of the MPI library on part `part` of the data. */
int sched_native(struct sched *s, const char *label, int part);

/* Add a predecessor of op. The gate is n of n unless sched_need sets k. */
void sched_after(struct sched *s, int op, int predecessor);
/* Let the gate of op open with k of its predecessors. */
void sched_need(struct sched *s, int op, uint32_t k);
void sched_end(struct sched *s, int op);

/* Replace each peer, an index so far, by its entry in this map. */
void sched_map_peers(struct sched *s, const uint32_t *map);

/*
 * Check the schedule and make it read-only: ids are in range, 1 <= k <= n for
 * operations with predecessors, events and control receives have no predecessors, there
 * is no cycle, and there is an end. PCOLL_EINVAL names the fault.
 */
int sched_commit(struct sched *s);

/* Compute a topological order of the operations and return how many it contains: the
 * others are on a cycle, or follow one. missing[i]: number of predecessors of i that it
 * does not contain. Only after sched_commit has computed the successors. */
uint32_t sched_order(const struct sched *s, uint32_t *order, uint32_t *missing);

/* Print the schedule as text, one operation a line, or as Graphviz DOT; malloc'ed. */
char *sched_text(const struct sched *s);
char *sched_dot(const struct sched *s);

/* What GOAL needs of an operation besides its dependencies. */
struct goal_cost {
    uint64_t bytes; /* SEND, RECV */
    uint32_t tag;   /* SEND, RECV: unique among the messages of a pair of ranks */
    uint64_t time;  /* other kinds, nanoseconds */
};
/* Print the schedule of a rank in GOAL, the format that LogGOPSim and related
 * simulators read (Hoefler, Schneider, Lumsdaine, HPDC 2010); malloc'ed. */
char *sched_goal(const struct sched *s, uint32_t rank,
                 struct goal_cost (*cost)(const void *arg, int op), const void *arg);

const char *op_kind_name(enum op_kind kind);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule: the DAG of operations that one rank executes in one round of a collective
 * (Li et al., "Taming Unbalanced Training Workloads …", PPoPP 2020, section 4.1.1).
 *
 * Built once: add operations, give each a gate (how many of its predecessors must be
 * done, k of n), name the one that ends the round, commit. Commit checks everything;
 * afterwards the schedule is read-only and running it (engine.h) allocates nothing.
 *
 * Operations name buffers by small integers; what they mean is the executor's business.
 * No I/O here and no MPI.
 */
#ifndef PCOLL_SCHEDULE_SCHED_H
#define PCOLL_SCHEDULE_SCHED_H

#include <stdbool.h>
#include <stdint.h>

enum op_kind { OP_SEND, OP_RECV, OP_REDUCE, OP_COPY, OP_NOP, OP_TIMER, OP_NATIVE };

enum op_class {
    OP_PLAIN,   /* issued when its gate opens */
    OP_CONTROL, /* SEND: a short control message. RECV: always posted, never issued */
    OP_EVENT    /* NOP that only the outside completes (an arrival, say) */
};

/* The part of the data that an operation is about: the slices [begin, end) if it is cut
 * into `of` even ones. of = 0: all of it. */
struct slice {
    uint32_t begin, end, of;
};

/* Where a message has the header of its round. */
enum header_place { HEADER_BEFORE, HEADER_AFTER, HEADER_NONE };

struct op {
    enum op_kind kind;
    enum op_class class;
    const char *label; /* static text, for people */
    int peer;          /* SEND, RECV: endpoint */
    int edge;          /* SEND, RECV: distinguishes messages between one pair */
    int out, a, b;     /* buffers. REDUCE: out = a (+) b; COPY, RECV: out; SEND: a;
                          NATIVE: the part */
    struct slice slice;
    enum header_place header;             /* SEND, RECV */
    uint32_t need;                        /* gate: k … */
    uint32_t preds;                       /* … of n */
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
    int end; /* the round is over when this operation is done and nothing is running */
    bool committed;
    bool failed; /* out of memory while building; reported by commit */
};

struct sched *sched_create(void);
void sched_free(struct sched **s);

/* Each adds an operation and returns its id. Adding cannot fail: commit reports. */
int sched_send(struct sched *s, const char *label, int peer, int edge, int from);
int sched_recv(struct sched *s, const char *label, int peer, int edge, int into);
int sched_control_send(struct sched *s, const char *label, int peer, int edge);
int sched_control_recv(struct sched *s, const char *label, int peer, int edge);
int sched_reduce(struct sched *s, const char *label, int out, int a, int b);
int sched_copy(struct sched *s, const char *label, int into, int from);
int sched_nop(struct sched *s, const char *label);
int sched_timer(struct sched *s, const char *label);
int sched_event(struct sched *s, const char *label);

/* A REDUCE is about what came from there. */
void sched_from(struct sched *s, int op, int peer);
/* Not all the data, but these slices. */
void sched_slice(struct sched *s, int op, struct slice slice);
/* SEND, RECV: the header is not before the data. */
void sched_header(struct sched *s, int op, enum header_place place);

/* A vendor's collective on part `part` of the data. */
int sched_native(struct sched *s, const char *label, int part);

/* One more predecessor of op. The gate is n of n unless sched_need says otherwise. */
void sched_after(struct sched *s, int op, int predecessor);
/* The gate of op opens with k of its predecessors. */
void sched_need(struct sched *s, int op, uint32_t k);
void sched_end(struct sched *s, int op);

/* Peers are places in this map so far: put what is there in their place. */
void sched_map_peers(struct sched *s, const uint32_t *map);

/*
 * Check and seal: ids in range, 1 <= k <= n wherever there are predecessors, events and
 * control receives without predecessors, no cycle, an end. PCOLL_EINVAL names what is
 * wrong.
 */
int sched_commit(struct sched *s);

/* Operations in an order in which all predecessors of each come before it; how many there are: the
 * others lie on a cycle or behind one. missing[i]: predecessors of i that are not among them. For
 * one whose successors are known, by sched_commit. */
uint32_t sched_order(const struct sched *s, uint32_t *order, uint32_t *missing);

/* The schedule as text (one operation a line) or as Graphviz DOT; malloc'ed. */
char *sched_text(const struct sched *s);
char *sched_dot(const struct sched *s);

/* What a simulator of schedules must know of an operation beyond its dependencies. */
struct goal_cost {
    uint64_t bytes; /* SEND, RECV */
    uint32_t tag;   /* SEND, RECV: one for each message of a pair of ranks */
    uint64_t time;  /* everything else, nanoseconds */
};
/* The schedule of a rank in GOAL, the text that LogGOPSim's family of simulators reads
 * (Hoefler, Schneider, Lumsdaine, HPDC 2010); malloc'ed. */
char *sched_goal(const struct sched *s, uint32_t rank,
                 struct goal_cost (*cost)(const void *arg, int op), const void *arg);

const char *op_kind_name(enum op_kind kind);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule: the DAG of operations that one rank executes in one round of a collective (Li et
 * al., "Taming Unbalanced Training Workloads …", PPoPP 2020, section 4.1.1).
 *
 * A schedule is built once: add operations, give each a gate (how many of its predecessors must be
 * complete, k of n), name the operation that ends the round, commit. The commit checks everything.
 * Afterwards the schedule is read-only, and running it allocates no memory.
 *
 * Operations name buffers by small integers; their meaning is defined by the executor. No I/O and
 * no MPI.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum op_kind { OP_SEND, OP_RECV, OP_REDUCE, OP_COPY, OP_NOP, OP_TIMER, OP_NATIVE };

enum op_class {
    OP_PLAIN,   /* issued when the gate opens */
    OP_CONTROL, /* SEND: a control message; RECV: always posted, never issued */
    OP_EVENT    /* NOP that the owner completes, such as an arrival */
};

/* The part of the data that an operation uses: slices [begin, end) of `of` even slices; of = 0:
 * all data. */
struct slice {
    uint32_t begin, end, of;
};

/* The place of the round's header in a message. */
enum header_place { HEADER_AFTER, HEADER_BEFORE, HEADER_NONE };

/* A schedule of many ranks has many operations: this struct has 48 bytes. */
struct op {
    const char *label; /* static text */
    int peer;          /* SEND, RECV: endpoint */
    int edge;          /* SEND, RECV: distinguishes messages of a pair of endpoints */
    /* Buffers. REDUCE: out = a (+) b; COPY, RECV: out; SEND: a; NATIVE: out is the part. */
    int out;
    int8_t a, b;
    enum op_kind kind : 4;
    enum op_class class : 4;
    enum header_place header : 8; /* SEND, RECV */
    struct slice slice;
    uint32_t need;  /* k of the gate */
    uint32_t preds; /* n of the gate: number of predecessors */
    /* Into sched.successor. Those of the next operation follow. */
    uint32_t first_successor;
};

struct sched {
    /* One more than `count`: its first successor is the end of the array. */
    struct op *ops;
    uint32_t count, capacity;
    /* The edges as they were added, until the commit, which needs them by source only. */
    struct sched_edge {
        uint32_t from, to;
    } *edges;
    uint32_t edge_count, edge_capacity;
    uint32_t *successor;
    int end; /* the round is over when it is complete and no operation runs */
    bool committed;
    bool failed;    /* out of memory while building; the commit reports it */
    struct op none; /* what sched_op returns then */
};

struct sched *sched_create(void);
void sched_free(struct sched **s);

/* Make room for one more item in an array, of which this is the address. Return false without
 * memory. */
bool sched_make_room(void *array, uint32_t count, uint32_t *capacity, size_t each);

/* Add an operation, whose label stays the caller's, and return its id. Adding cannot fail: the
 * commit reports errors. */
int sched_add(struct sched *s, struct op op);
int sched_add_message(struct sched *s, enum op_kind kind, enum op_class class,
                      const char *label, int peer, int edge, int buffer);
int sched_add_local(struct sched *s, enum op_kind kind, enum op_class class,
                    const char *label, int out, int a, int b);
#define sched_send(s, label, peer, edge, from)                                         \
    sched_add_message(s, OP_SEND, OP_PLAIN, label, peer, edge, from)
#define sched_recv(s, label, peer, edge, into)                                         \
    sched_add_message(s, OP_RECV, OP_PLAIN, label, peer, edge, into)
#define sched_control_send(s, label, peer, edge)                                       \
    sched_add_message(s, OP_SEND, OP_CONTROL, label, peer, edge, -1)
#define sched_control_recv(s, label, peer, edge)                                       \
    sched_add_message(s, OP_RECV, OP_CONTROL, label, peer, edge, -1)
#define sched_reduce(s, label, out, a, b)                                              \
    sched_add_local(s, OP_REDUCE, OP_PLAIN, label, out, a, b)
#define sched_copy(s, label, into, from)                                               \
    sched_add_local(s, OP_COPY, OP_PLAIN, label, into, from, -1)
#define sched_nop(s, label) sched_add_local(s, OP_NOP, OP_PLAIN, label, -1, -1, -1)
#define sched_event(s, label) sched_add_local(s, OP_NOP, OP_EVENT, label, -1, -1, -1)
/* A collective of the MPI library on part `part` of the data. */
#define sched_native(s, label, part)                                                   \
    sched_add_local(s, OP_NATIVE, OP_PLAIN, label, part, -1, -1)

/* Return an operation, to set what was not given when it was added, before the commit: its slices, the
 * place of its header, k of its gate (n otherwise), or the peer whose data a REDUCE adds. */
struct op *sched_op(struct sched *s, int op);

/* Add a predecessor of op. */
void sched_after(struct sched *s, int op, int predecessor);
void sched_end(struct sched *s, int op);

/* Replace each peer, an index so far, by its entry in this map. */
void sched_map_peers(struct sched *s, const uint32_t *map);

/* Check the schedule and make it read-only: ids are in range, 1 <= k <= n for operations with
 * predecessors, events and control receives have no predecessors, there is no cycle, and there is
 * an end. PCOLL_EINVAL names the fault. */
int sched_commit(struct sched *s);

/* Compute a topological order of the operations and return how many it contains: the others are on
 * a cycle, or follow one. missing[i]: number of predecessors of i that it does not contain. Only
 * after sched_commit has computed the successors. */
uint32_t sched_order(const struct sched *s, uint32_t *order, uint32_t *missing);

/* Index the edges of a schedule that is not committed, and print it as text, one operation a line ("text"), or as Graphviz DOT ("dot"); the caller
 * frees the text. PCOLL_EINVAL: another format; PCOLL_ENOMEM. */
int sched_print(struct sched *s, const char *format, char **text);

/* The properties of an operation that GOAL needs besides its dependencies. */
struct goal_cost {
    uint64_t bytes; /* SEND, RECV; other kinds: bytes that are copied or reduced */
    uint32_t tag;   /* SEND, RECV: unique among the messages of a pair of ranks */
    int64_t time;   /* other kinds, nanoseconds, besides the bytes */
};
/* The same for the schedule of a rank in GOAL, the format that LogGOPSim and related simulators read
 * (Hoefler, Schneider, Lumsdaine, HPDC 2010). Copying or reducing a byte takes ns_per_byte. */
int sched_goal(struct sched *s, uint32_t rank, double ns_per_byte,
               struct goal_cost (*cost)(const void *arg, int op), const void *arg,
               char **text);

const char *op_kind_name(enum op_kind kind);

/*
 * Runs a persistent schedule, round after round, without I/O: the owner reports events to the
 * engine and asks it for the next operation.
 *
 * The engine owns two instances of the schedule: one for the current round, one for the next
 * round, since messages of the next round may arrive early. Completions for the next round are
 * recorded and have no effect until the current round is over and the next one is released. With
 * this rule no rank gets two rounds ahead.
 *
 * Every operation is consumable: it goes through waiting, ready, running and done once per round.
 * A completion of an operation that is done, or of a finished round, is dropped.
 *
 * One thread at a time may use an engine; the owner ensures that.
 */

enum op_state { OP_WAITING, OP_READY, OP_RUNNING, OP_DONE };

struct op_progress {
    uint32_t done_preds : 30;
    enum op_state state : 2;
};

struct instance {
    struct op_progress *ops; /* The first one's: all memory of the engine. */
    uint32_t *ready; /* each operation enters once a round: `count` entries suffice */
    uint32_t head, tail;
    uint32_t running;
};

struct engine {
    const struct sched *sched;
    struct instance instances[2]; /* of round r: instances[r % 2] */
    uint64_t current;
    bool released;
    uint64_t early;   /* completions that were kept for the next round */
    uint64_t dropped; /* duplicate and late completions */
};

enum engine_outcome {
    ENGINE_TAKEN,
    ENGINE_KEPT,      /* recorded for the next round */
    ENGINE_DROPPED,   /* late or duplicate */
    ENGINE_IMPOSSIBLE /* two or more rounds ahead, which the protocol forbids */
};

/* The schedule must be committed and outlive the engine. The first round is 0 unless the owner sets
 * `current` before it uses the engine. PCOLL_ENOMEM. */
int engine_init(struct engine *e, const struct sched *s);
void engine_destroy(struct engine *e);

/* Report that an operation of a round is complete: a message arrived, a send completed, or an
 * event happened. */
enum engine_outcome engine_complete(struct engine *e, uint64_t round, int op);

/* Let the current round run: nothing else holds it back. */
void engine_release(struct engine *e);

/* Return the next operation of the current round to issue, or -1. It is running from then on and
 * must be completed. NOPs are never returned. */
int engine_next(struct engine *e);

/* Return whether the end is done and no operation is ready or running. */
bool engine_over(const struct engine *e);

/* Leave the finished round: reset its instance and make the next round current. It is not released
 * yet. */
void engine_advance(struct engine *e);

enum op_state engine_state(const struct engine *e, uint64_t round, int op);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule as its user writes it down: operations with their memory, and what goes
 * before what. Out of it come the schedule for the engine and the list of messages that
 * the ranks compare. No I/O.
 *
 * Operation i of the builder is operation i of the schedule; behind them the schedule
 * has one more, which ends the run when all others are done.
 */
#ifndef PCOLL_USER_SCHEDULE_BUILDER_H
#define PCOLL_USER_SCHEDULE_BUILDER_H

#include "kernels/reduce.h"
#include "schedule/sched.h"

struct builder_op {
    enum op_kind kind;
    char *label;
    const void *from; /* read: SEND, REDUCE, COPY */
    void *into;       /* written: RECV, REDUCE, COPY */
    uint64_t count;
    size_t bytes;
    int dtype;
    int op;           /* REDUCE */
    int peer, tag;    /* SEND, RECV */
    uint32_t ordinal; /* among the messages of the same peer, direction and tag */
    int edge;         /* … of the same peer and direction: see builder_messages.c */
    int partner;      /* SEND, RECV on one rank: the other end; -1 */
    int64_t delay;    /* TIMER: nanoseconds */
    uint32_t need;    /* of the gate; 0: all */
};

struct builder {
    uint32_t rank, size;
    struct builder_op *ops;
    uint32_t count, capacity;
    struct builder_edge {
        uint32_t from, to;
    } *edges;
    uint32_t edge_count, edge_capacity;
    uint32_t tags; /* edges that some pair of ranks needs, for messages of this rank */
};

/* Each adds an operation and gives its number, or adds nothing. PCOLL_EINVAL names the
 * argument. The label is copied; NULL: none. */
int builder_send(struct builder *builder, const void *from, const pcoll_buffer *shape,
                 int dest, int tag, const char *label, int *op);
int builder_recv(struct builder *builder, void *into, const pcoll_buffer *shape,
                 int source, int tag, const char *label, int *op);
int builder_reduce(struct builder *builder, const void *from, void *into,
                   const pcoll_buffer *shape, const char *label, int *op);
int builder_copy(struct builder *builder, const void *from, void *into,
                 const pcoll_buffer *shape, const char *label, int *op);
int builder_nop(struct builder *builder, const char *label, int *op);
int builder_timer(struct builder *builder, double seconds, const char *label, int *op);
/* More predecessors; k: how many of all of them open the gate, 0: as it was. */
int builder_after(struct builder *builder, int op, const int32_t *predecessors,
                  int count, uint32_t k);

/* The schedule as it stands, not committed; NULL without memory. Its labels are the
 * builder's. */
struct sched *builder_build(struct builder *builder);
/* Check it and commit it: gates, cycles (messages of a rank to itself included), memory
 * that two operations use at once. */
int builder_commit(struct builder *builder, struct sched **out);

void builder_destroy(struct builder *builder);

/*
 * Which send meets which receive. Messages from one rank to another with the same tag
 * are matched in the order in which they were written down: the n-th send meets the
 * n-th receive, whenever they are carried out. So every message of a pair of ranks has
 * a number of its own, its edge: the place of (tag, n) among those of the pair. Both
 * sides count alike, if they have the same messages; whether they do, the ranks
 * compare.
 */

/* Fill in ordinal, edge and partner of the builder's operations, and tags.
 * PCOLL_ENOMEM.
 */
int builder_number_messages(struct builder *builder);

/*
 * A sum over all ranks of these is zero if every send has its receive, of the same size
 * and dtype; if not, it is zero once in 2^128 times.
 */
enum { DIGEST_WORDS = 2 };
void builder_digest_messages(const struct builder *builder,
                             uint64_t digest[DIGEST_WORDS]);

/* All messages of the builder in words, to find out which do not match. */
enum { MESSAGE_WORDS = 4 };
uint32_t builder_count_messages(const struct builder *builder);
/* Given how many each rank has: how many come before this rank's, and all. Other ranks
 * say so: PCOLL_EPROTOCOL on this rank if it cannot be, and nothing is committed. */
int builder_place_messages(const struct builder *builder, const uint64_t *counts,
                           uint64_t *before, uint64_t *total);
void builder_write_messages(const struct builder *builder, uint64_t *words);
/* PCOLL_EMISMATCH with the first that does not match, both sides named; PCOLL_OK if
 * there is none. `words` are those of all ranks, and are sorted. */
int builder_compare_messages(uint64_t *words, uint64_t count);

#endif

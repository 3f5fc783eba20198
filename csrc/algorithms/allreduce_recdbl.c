/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce by recursive doubling, for any P.
 * Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
 * Operations in MPICH", IJHPCA 2005, section 4.
 *
 * With m = 2^floor(log2 P): the endpoints from m on fold into the first P - m, the
 * first m exchange everything with their partner across 1, 2, 4 … endpoints, and the
 * folded ones get the result. Both partners reduce the same two operands, the one of
 * the lower endpoint on the left, so all hold the same bits.
 *
 * Steps: log2 m, plus 2 where P is no power of two. Bytes sent: S log2 m (+ S).
 * Receives alternate between two temporaries, so step k+1 is posted while step k is
 * reduced.
 */
#include "algorithms/algorithms.h"

enum { EDGE_FOLD = 0, EDGE_UNFOLD = 1, EDGE_EXCHANGE = 2 };

/* What the steps built so far have left. */
struct chain {
    struct sched *s;
    uint32_t rank;
    int freeze;
    int value;     /* buffer that holds this endpoint's part so far */
    int ready;     /* operation after which it does */
    int last_send; /* sends from `value` that must be over before it changes, or -1 */
    int free_after[2]; /* operation after which each temporary may be received into */
    int steps;
};

/* Receive from a peer and reduce into the result, lower endpoint on the left. */
static void absorb(struct chain *c, uint32_t peer, int edge)
{
    int which = c->steps++ % 2;
    int temp = BUFFER_TEMP + which;
    int recv = sched_recv(c->s, "receive", (int)peer, edge, temp);
    sched_after(c->s, recv, c->free_after[which]);
    bool lower = c->rank < peer;
    int reduce = sched_reduce(c->s, "reduce", BUFFER_RESULT, lower ? c->value : temp,
                              lower ? temp : c->value);
    sched_after(c->s, reduce, recv);
    sched_after(c->s, reduce, c->ready);
    if (c->last_send >= 0 && c->value == BUFFER_RESULT)
        sched_after(c->s, reduce, c->last_send);
    c->value = BUFFER_RESULT;
    c->ready = reduce;
    c->free_after[which] = reduce;
}

static void give(struct chain *c, uint32_t peer, int edge)
{
    c->last_send = sched_send(c->s, "send", (int)peer, edge, c->value);
    sched_after(c->s, c->last_send, c->ready);
}

/* Endpoints beyond the power of two: hand in, take the result. */
static int build_folded(struct chain *c, uint32_t peer)
{
    give(c, peer, EDGE_FOLD);
    int recv = sched_recv(c->s, "result", (int)peer, EDGE_UNFOLD, BUFFER_RESULT);
    sched_after(c->s, recv, c->freeze);
    int end = sched_nop(c->s, "end");
    sched_after(c->s, end, recv);
    sched_after(c->s, end, c->last_send);
    return end;
}

int build_allreduce_recdbl(struct sched *s, uint32_t rank, uint32_t size, int freeze,
                           const struct algorithm_plan *plan)
{
    (void)plan;
    struct chain c = {.s = s,
                      .rank = rank,
                      .freeze = freeze,
                      .value = BUFFER_CONTRIBUTION,
                      .ready = freeze,
                      .last_send = -1,
                      .free_after = {freeze, freeze}};
    uint32_t power = largest_power_of_two(size), extra = size - power;

    if (rank >= power)
        return build_folded(&c, rank - power);
    if (rank < extra)
        absorb(&c, rank + power, EDGE_FOLD);
    for (uint32_t hop = 1, k = 0; hop < power; hop *= 2, k++) {
        give(&c, rank ^ hop, EDGE_EXCHANGE + (int)k);
        absorb(&c, rank ^ hop, EDGE_EXCHANGE + (int)k);
    }
    if (rank < extra)
        give(&c, rank + power, EDGE_UNFOLD);
    int end = sched_nop(s, "end");
    sched_after(s, end, c.ready);
    return end;
}

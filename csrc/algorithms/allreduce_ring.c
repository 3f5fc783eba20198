/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce round a ring, in pieces, for any P >= 2.
 * Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", JPDC 2009; the pieces are those of Thakur et al. (see recursive
 * doubling), pipelined.
 *
 * The data is cut into P segments. Segment s starts at endpoint s+1, goes round once
 * while every endpoint adds its own on the right, and is complete at endpoint s; then
 * it goes round once more. Each endpoint so sends to the next and receives from the one
 * before, all the time. Each segment is cut again, into chains that go round side by
 * side: while a piece of one is reduced, pieces of others are under way.
 *
 * Steps: 2 (P-1). Bytes sent: 2 S (P-1)/P.
 *
 * A piece of the contribution is gathered when it is needed: the members of the domain
 * add up later pieces while the first ones travel.
 *
 * A piece travels behind its header in the first turn; after it every endpoint knows
 * the whole header: none in the second one. Each chain has two temporaries, and in each
 * turn two edges, for odd and even steps: a receive is posted only when the one two
 * steps before it is over, so there is never a choice.
 */
#include "algorithms/algorithms.h"

enum { EDGES_OF_CHAIN = 4, EDGE_GATHER = 2 };

struct ring {
    struct sched *s;
    uint32_t rank, size;
    const struct algorithm_plan *plan;
    uint32_t chain;
    int begun; /* operation after which the chain may gather its first piece */
};

/* Of this chain, the piece of the segment `behind` endpoints behind this one. */
static struct slice piece(const struct ring *r, uint32_t behind)
{
    uint32_t segment = (r->rank + 2 * r->size - behind) % r->size;
    uint32_t i = segment * r->plan->chains + r->chain;
    return (struct slice){i, i + 1, r->plan->pieces};
}

static int add_send(const struct ring *r, int edge, int from, struct slice slice,
                    enum header_place place, int after)
{
    int next = (int)((r->rank + 1) % r->size);
    int send =
        sched_send(r->s, "send", next, (int)r->chain * EDGES_OF_CHAIN + edge, from);
    sched_slice(r->s, send, slice);
    sched_header(r->s, send, place);
    sched_after(r->s, send, after);
    return send;
}

static int add_recv(const struct ring *r, int edge, int into, struct slice slice,
                    enum header_place place, int after)
{
    int last = (int)((r->rank + r->size - 1) % r->size);
    int recv =
        sched_recv(r->s, "receive", last, (int)r->chain * EDGES_OF_CHAIN + edge, into);
    sched_slice(r->s, recv, slice);
    sched_header(r->s, recv, place);
    sched_after(r->s, recv, after);
    return recv;
}

/* Wait for a piece of the contribution. */
static int add_gather(const struct ring *r, struct slice slice, int after)
{
    int gather = sched_copy(r->s, "gather", BUFFER_CONTRIBUTION, BUFFER_DEPOSIT);
    sched_slice(r->s, gather, slice);
    sched_after(r->s, gather, after);
    return gather;
}

/* The first turn: what this endpoint owns at its end is reduced. */
static int reduce_scatter(struct ring *r, int freeze)
{
    int temps[2] = {BUFFER_TEMP + 2 * (int)r->chain,
                    BUFFER_TEMP + 2 * (int)r->chain + 1};
    int sent[2], value = temps[1]; /* sent[i]: the send that temporary i was used for */
    int ready = sched_copy(r->s, "begin", value, BUFFER_CONTRIBUTION);
    sched_slice(r->s, ready, piece(r, 1));
    sched_after(r->s, ready, add_gather(r, piece(r, 1), r->begun));
    r->begun = ready;
    for (uint32_t i = 0; i + 1 < r->size; i++) {
        int edge = i % 2, temp = temps[edge];
        sent[1 - edge] =
            add_send(r, edge, value, piece(r, i + 1), HEADER_BEFORE, ready);
        int recv = add_recv(r, edge, temp, piece(r, i + 2), HEADER_BEFORE,
                            i == 0 ? freeze : sent[edge]);
        bool last = i + 2 == r->size;
        value = last ? BUFFER_RESULT : temp;
        ready = sched_reduce(r->s, "reduce", value, temp, BUFFER_CONTRIBUTION);
        sched_slice(r->s, ready, piece(r, i + 2));
        sched_after(r->s, ready, add_gather(r, piece(r, i + 2), recv));
    }
    return ready;
}

/* The second turn, in the result itself. */
static void gather(const struct ring *r, int reduced, int end)
{
    int ready = reduced, before = reduced;
    for (uint32_t i = 0; i + 1 < r->size; i++) {
        int edge = EDGE_GATHER + i % 2;
        add_send(r, edge, BUFFER_RESULT, piece(r, i), HEADER_NONE, ready);
        int recv =
            add_recv(r, edge, BUFFER_RESULT, piece(r, i + 1), HEADER_NONE, before);
        before = i == 0 ? reduced : ready;
        ready = recv;
        sched_after(r->s, end, recv);
    }
}

int build_allreduce_ring(struct sched *s, uint32_t rank, uint32_t size, int freeze,
                         const struct algorithm_plan *plan)
{
    int end = sched_nop(s, "end");
    int whole = sched_copy(s, "gathered", BUFFER_CONTRIBUTION, BUFFER_DEPOSIT);
    struct ring r = {s, rank, size, plan, 0, freeze};
    for (; r.chain < plan->chains; r.chain++) {
        int reduced = reduce_scatter(&r, freeze);
        sched_after(s, whole, reduced);
        gather(&r, reduced, end);
    }
    sched_after(s, end, whole);
    return end;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce by recursive halving and doubling, for any P.
 * Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
 * Operations in MPICH", IJHPCA 2005, section 4 (Rabenseifner's algorithm).
 *
 * With m = 2^floor(log2 P): the endpoints from m on fold into the first P - m. Then the
 * partners across 1, 2, 4 … endpoints each give the other one half of what they still
 * own, and reduce what they keep (the lower endpoint on the left, so the bits are those
 * of recursive doubling); and, the other way round, give each other what they own until
 * all own everything. The folded ones get the result.
 *
 * Steps: 2 log2 m, plus 2 where P is no power of two. Bytes sent: 2 S (m-1)/m (+ S).
 *
 * Headers travel with the halves of the first phase, next to them, in space that this
 * endpoint has given away before. A reduction changes the header, and the next half's
 * goes where the last one's data may be: so a half is reduced when the other one has
 * gone. After the first phase every endpoint knows the whole header: none in the
 * second.
 */
#include "algorithms/algorithms.h"

enum { EDGE_FOLD = 0, EDGE_UNFOLD = 1, EDGE_EXCHANGE = 2, MAX_STEPS = 32 };

/* One endpoint on its way. */
struct walk {
    struct sched *s;
    uint32_t rank;
    struct slice owned;
    int value; /* buffer that holds what is owned */
    int ready; /* operation after which it does */
    int last_send;
    int free_after[2]; /* operation after which each temporary may be received into */
    int received;
    struct step {
        struct slice owned, given; /* before it, in it */
    } step[MAX_STEPS];
};

static struct slice first_half(struct slice s)
{
    return (struct slice){s.begin, s.begin + (s.end - s.begin) / 2, s.of};
}

static struct slice second_half(struct slice s)
{
    return (struct slice){s.begin + (s.end - s.begin) / 2, s.end, s.of};
}

static void send_slice(struct walk *w, uint32_t peer, int edge, struct slice slice,
                       enum header_place place)
{
    int send = sched_send(w->s, "send", (int)peer, edge, w->value);
    sched_slice(w->s, send, slice);
    sched_header(w->s, send, place);
    sched_after(w->s, send, w->ready);
    w->last_send = send;
}

/* Receive a slice and reduce it into the result, lower endpoint on the left. */
static int absorb(struct walk *w, uint32_t peer, int edge, struct slice slice,
                  enum header_place place)
{
    int which = w->received++ % 2, temp = BUFFER_TEMP + which;
    bool lower = w->rank < peer;
    int recv = sched_recv(w->s, "receive", (int)peer, edge, temp);
    sched_slice(w->s, recv, slice);
    sched_header(w->s, recv, place);
    sched_after(w->s, recv, w->free_after[which]);
    int reduce = sched_reduce(w->s, "reduce", BUFFER_RESULT, lower ? w->value : temp,
                              lower ? temp : w->value);
    sched_slice(w->s, reduce, slice);
    sched_after(w->s, reduce, recv);
    sched_after(w->s, reduce, w->ready);
    w->value = BUFFER_RESULT;
    w->ready = w->free_after[which] = reduce;
    return reduce;
}

/* Across 2^k endpoints: the lower one keeps the first half. */
static void halve(struct walk *w, int k)
{
    uint32_t peer = w->rank ^ (uint32_t)1 << k;
    bool lower = w->rank < peer;
    struct slice first = first_half(w->owned), second = second_half(w->owned);
    struct slice given = lower ? second : first;
    w->step[k] = (struct step){.owned = w->owned, .given = given};
    send_slice(w, peer, EDGE_EXCHANGE + k, given, lower ? HEADER_AFTER : HEADER_BEFORE);
    w->owned = lower ? first : second;
    int reduce = absorb(w, peer, EDGE_EXCHANGE + k, w->owned,
                        lower ? HEADER_BEFORE : HEADER_AFTER);
    sched_after(w->s, reduce, w->last_send); /* which has the header as it was before */
}

/* The way back: give what is owned, get what was given. Both after the first phase:
 * until then the messages of this edge are of that one, and what was given still has
 * headers in it. */
static void unite(struct walk *w, int k, int halved)
{
    uint32_t peer = w->rank ^ (uint32_t)1 << k;
    int send = sched_send(w->s, "give", (int)peer, EDGE_EXCHANGE + k, BUFFER_RESULT);
    sched_slice(w->s, send, w->owned);
    sched_header(w->s, send, HEADER_NONE);
    sched_after(w->s, send, w->ready);
    int recv = sched_recv(w->s, "gather", (int)peer, EDGE_EXCHANGE + k, BUFFER_RESULT);
    sched_slice(w->s, recv, w->step[k].given);
    sched_header(w->s, recv, HEADER_NONE);
    sched_after(w->s, recv, halved);
    int both = sched_nop(w->s, "united");
    sched_after(w->s, both, recv);
    sched_after(w->s, both, w->ready);
    w->ready = both;
    w->owned = w->step[k].owned;
}

static int build_folded(struct walk *w, uint32_t peer)
{
    send_slice(w, peer, EDGE_FOLD, (struct slice){0}, HEADER_BEFORE);
    int recv = sched_recv(w->s, "result", (int)peer, EDGE_UNFOLD, BUFFER_RESULT);
    sched_after(w->s, recv, w->ready);
    int end = sched_nop(w->s, "end");
    sched_after(w->s, end, recv);
    sched_after(w->s, end, w->last_send);
    return end;
}

int build_allreduce_rabenseifner(struct sched *s, uint32_t rank, uint32_t size,
                                 int freeze, const struct algorithm_plan *plan)
{
    uint32_t power = largest_power_of_two(size), extra = size - power;
    struct walk w = {.s = s,
                     .rank = rank,
                     .owned = {0, plan->padded, plan->padded},
                     .value = BUFFER_CONTRIBUTION,
                     .ready = freeze,
                     .free_after = {freeze, freeze}};
    if (rank >= power)
        return build_folded(&w, rank - power);
    if (rank < extra)
        absorb(&w, rank + power, EDGE_FOLD, (struct slice){0}, HEADER_BEFORE);
    int steps = 0;
    while ((uint32_t)1 << steps < power)
        halve(&w, steps++);
    int halved = w.ready;
    for (int k = steps; k-- > 0;)
        unite(&w, k, halved);
    if (rank < extra)
        send_slice(&w, rank + power, EDGE_UNFOLD, (struct slice){0}, HEADER_BEFORE);
    int end = sched_nop(s, "end");
    sched_after(s, end, w.ready);
    return end;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Names and plans, the activation, and the algorithms for the data part; see algorithms.h. */
#include "algorithms/algorithms.h"

#include <string.h>

#include "base/error.h"

/* Names. */

const char *const algorithm_names[] = {
    [PCOLL_ALGORITHM_AUTO] = "auto",
    [PCOLL_ALGORITHM_RECDBL] = "recdbl",
    [PCOLL_ALGORITHM_RABENSEIFNER] = "rabenseifner",
    [PCOLL_ALGORITHM_RING] = "ring",
    [PCOLL_ALGORITHM_NATIVE] = "native",
    NULL,
};

int algorithm_by_name(const char *name)
{
    for (int i = 0; algorithm_names[i]; i++)
        if (!strcmp(name, algorithm_names[i]))
            return i;
    return -1;
}

int pcoll_algorithm_parse(const char *text, int32_t *algorithm)
{
    int rc = fail_if_null(text, algorithm);
    if (rc != PCOLL_OK)
        return rc;
    int found = algorithm_by_name(text);
    if (found < 0)
        return fail(PCOLL_EINVAL,
                    "algorithm: expected auto, recdbl, rabenseifner, ring or native, "
                    "got \"%.50s\"",
                    text);
    *algorithm = found;
    return PCOLL_OK;
}

/* Plans. */

enum { MAX_CHAINS = MAX_TEMPS / 2 };

#ifdef PCOLL_TEST_CHAIN_BYTES
enum { CHAIN_BYTES = PCOLL_TEST_CHAIN_BYTES };
#else
enum { CHAIN_BYTES = 128 * 1024 };
#endif

uint32_t largest_power_of_two(uint32_t size)
{
    uint32_t power = 1;
    while (power <= size / 2)
        power *= 2;
    return power;
}

/* Return the number of chains with pieces of about CHAIN_BYTES: while one piece is reduced,
 * another one is received. */
static uint32_t algorithm_ring_chains(uint32_t size, size_t bytes)
{
    size_t chains = bytes / size / CHAIN_BYTES;
    return chains < 1 ? 1 : chains > MAX_CHAINS ? MAX_CHAINS : (uint32_t)chains;
}

void algorithm_plan(enum pcoll_algorithm algorithm, uint32_t size, size_t bytes,
                    struct algorithm_plan *plan)
{
    *plan = (struct algorithm_plan){.algorithm = algorithm, .temps = 2};
    if (algorithm == PCOLL_ALGORITHM_RABENSEIFNER)
        plan->padded = largest_power_of_two(size);
    if (algorithm == PCOLL_ALGORITHM_NATIVE)
        plan->temps = 0;
    if (algorithm == PCOLL_ALGORITHM_RING) {
        plan->chains = algorithm_ring_chains(size, bytes);
        plan->pieces = size * plan->chains;
        plan->temps = 2 * (int)plan->chains;
    }
}

uint32_t algorithm_operations(const struct algorithm_plan *plan, uint32_t size)
{
    uint32_t steps = (uint32_t)activation_edges(size);
    if (plan->algorithm == PCOLL_ALGORITHM_RING)
        return 6 * size * plan->chains;
    return plan->algorithm == PCOLL_ALGORITHM_RABENSEIFNER ? 8 + 6 * steps
                                                           : 8 + 3 * steps;
}

/*
 * Activation broadcast: the union of P binomial trees, so that any endpoint can be the
 * root. Source: Di Girolamo et al. 2015; Li et al., PPoPP 2020, section 4.1.1
 * ("Activation").
 *
 * Endpoint r has out-edges k = 0 … L-1 to (r + 2^k) mod P and in-edges from (r - 2^k)
 * mod P, with L = ceil(log2 P). Starting (N0) fires all out-edges. An activation through
 * in-edge k fires the out-edges j > k. Each out-edge has its own gate, "any of N0 and the
 * lower in-edges", and is consumed separately: an endpoint that forwarded only its first
 * activation would leave ranks out if P >= 5. The active part starts with any of N0 and
 * the in-edges (N1).
 *
 * Every sum of distinct powers of two below 2^L is a path with growing k, and each
 * distance d < P has one, so every endpoint is reached from every root within L hops,
 * for any P. Distances beyond P wrap around and give duplicates, which are consumed.
 *
 * Steps <= L; messages sent <= L of one control message each.
 */

int activation_edges(uint32_t size)
{
    int edges = 0;
    while (((uint64_t)1 << edges) < size)
        edges++;
    return edges;
}

uint32_t activation_source(uint32_t rank, uint32_t size, int edge)
{
    uint64_t hop = ((uint64_t)1 << edge) % size;
    return (uint32_t)((rank + size - hop) % size);
}

void build_activation(struct sched *s, uint32_t rank, uint32_t size, bool forced,
                      struct activation *a)
{
    a->start = sched_event(s, "start");
    a->force = forced ? sched_event(s, "force") : a->start;
    a->edges = activation_edges(size);
    a->from = a->start + 1 + forced;
    for (int k = 0; k < a->edges; k++)
        sched_control_recv(s, "activated", (int)activation_source(rank, size, k), k);
    for (int k = 0; k < a->edges; k++) {
        int target = (int)((rank + ((uint64_t)1 << k)) % size);
        int out = sched_control_send(s, "activate", target, k);
        sched_after(s, out, a->force);
        for (int j = 0; j < k; j++)
            sched_after(s, out, a->from + j);
        sched_op(s, out)->need = 1;
    }
    a->active = sched_nop(s, "active");
    sched_after(s, a->active, a->start);
    if (forced)
        sched_after(s, a->active, a->force);
    for (int k = 0; k < a->edges; k++)
        sched_after(s, a->active, a->from + k);
    sched_op(s, a->active)->need = 1;
}

/*
 * Allreduce by recursive doubling, for any P.
 * Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
 * Operations in MPICH", IJHPCA 2005, section 4.
 *
 * Let m = 2^floor(log2 P). The endpoints from m on fold into the first P - m. The first
 * m exchange all data with their partners at the distances 1, 2, 4 …, and the folded
 * endpoints receive the result. Both partners reduce the same two operands, with the one
 * of the lower endpoint on the left, so all endpoints have the same bits.
 *
 * Steps: log2 m, plus 2 where P is no power of two. Bytes sent: S log2 m (+ S).
 * Receives alternate between two temporaries, so step k+1 is posted while step k is
 * reduced.
 */

enum { EDGE_FOLD = 0, EDGE_UNFOLD = 1, EDGE_EXCHANGE = 2, MAX_STEPS = 32 };

/* The state of one endpoint after the steps that were built so far, of this algorithm and of the
 * next one. */
struct chain {
    struct sched *s;
    uint32_t rank;
    int value;         /* buffer that holds this endpoint's part so far */
    int ready;         /* operation after which it does */
    int last_send;     /* from `value` */
    int free_after[2]; /* operation after which each temporary may be received into */
    int received;
    struct slice owned; /* of the next algorithm */
    struct step {
        struct slice owned, given; /* before it, in it */
    } step[MAX_STEPS];
};

static const struct slice everything = {0};

static void chain_send(struct chain *c, uint32_t peer, int edge, struct slice slice,
                       enum header_place place)
{
    c->last_send = sched_send(c->s, "send", (int)peer, edge, c->value);
    sched_op(c->s, c->last_send)->slice = slice;
    sched_op(c->s, c->last_send)->header = place;
    sched_after(c->s, c->last_send, c->ready);
}

/* Receive a slice and reduce it into the result, lower endpoint on the left. */
static int chain_absorb(struct chain *c, uint32_t peer, int edge, struct slice slice,
                        enum header_place place)
{
    int which = c->received++ % 2, temp = BUFFER_TEMP + which;
    bool lower = c->rank < peer;
    int recv = sched_recv(c->s, "receive", (int)peer, edge, temp);
    sched_op(c->s, recv)->slice = slice;
    sched_op(c->s, recv)->header = place;
    sched_after(c->s, recv, c->free_after[which]);
    int reduce = sched_reduce(c->s, "reduce", BUFFER_RESULT, lower ? c->value : temp,
                              lower ? temp : c->value);
    sched_op(c->s, reduce)->slice = slice;
    sched_after(c->s, reduce, recv);
    sched_after(c->s, reduce, c->ready);
    c->value = BUFFER_RESULT;
    c->ready = c->free_after[which] = reduce;
    return reduce;
}

/* Build an endpoint beyond the power of two: it sends its contribution and receives the
 * result. */
static int chain_build_folded(struct chain *c, uint32_t peer)
{
    chain_send(c, peer, EDGE_FOLD, everything, HEADER_AFTER);
    int recv = sched_recv(c->s, "result", (int)peer, EDGE_UNFOLD, BUFFER_RESULT);
    sched_after(c->s, recv, c->ready);
    int end = sched_nop(c->s, "end");
    sched_after(c->s, end, recv);
    sched_after(c->s, end, c->last_send);
    return end;
}

/* Exchange all data with the endpoint at distance 2^k. */
static void recdbl_exchange(struct chain *c, int k)
{
    uint32_t peer = c->rank ^ (uint32_t)1 << k;
    int sent = c->value, edge = EDGE_EXCHANGE + k;
    chain_send(c, peer, edge, everything, HEADER_AFTER);
    int reduce = chain_absorb(c, peer, edge, everything, HEADER_AFTER);
    if (sent == BUFFER_RESULT) /* which the reduction changes */
        sched_after(c->s, reduce, c->last_send);
}

/*
 * Allreduce by recursive halving and doubling, for any P.
 * Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
 * Operations in MPICH", IJHPCA 2005, section 4 (Rabenseifner's algorithm).
 *
 * Let m = 2^floor(log2 P). The endpoints from m on fold into the first P - m. In the first
 * phase, partners at the distances 1, 2, 4 … each send one half of the data that they
 * still own, and reduce the other half (with the lower endpoint on the left, so the bits
 * are those of recursive doubling). In the second phase, in reverse order, they send each
 * other what they own until all own everything. The folded endpoints receive the result.
 *
 * Steps: 2 log2 m, plus 2 where P is no power of two. Bytes sent: 2 S (m-1)/m (+ S).
 *
 * Headers travel with the halves of the first phase. They are next to the half, in space
 * that this endpoint has given away before. A reduction changes the header, and the next
 * header is written where data of the last send may be. So a half is reduced only after
 * the other half was sent. After the first phase every endpoint knows the whole header,
 * and messages of the second phase have none.
 */

/* Build the exchange with the endpoint at distance 2^k. The lower endpoint keeps the first
 * half. */
static void rabenseifner_halve(struct chain *w, int k)
{
    uint32_t peer = w->rank ^ (uint32_t)1 << k;
    bool lower = w->rank < peer;
    struct slice first = w->owned, second = w->owned;
    first.end = second.begin = first.begin + (first.end - first.begin) / 2;
    struct slice given = lower ? second : first;
    w->step[k] = (struct step){.owned = w->owned, .given = given};
    chain_send(w, peer, EDGE_EXCHANGE + k, given, lower ? HEADER_AFTER : HEADER_BEFORE);
    w->owned = lower ? first : second;
    int reduce = chain_absorb(w, peer, EDGE_EXCHANGE + k, w->owned,
                              lower ? HEADER_BEFORE : HEADER_AFTER);
    sched_after(w->s, reduce, w->last_send); /* which has the header as it was before */
}

/* Build a step of the second phase: send what is owned, receive what was given away. Both
 * follow the first phase: until then the messages of this edge belong to that phase, and
 * the space that was given away has headers in it. */
static void rabenseifner_unite(struct chain *w, int k, int halved)
{
    uint32_t peer = w->rank ^ (uint32_t)1 << k;
    int send = sched_send(w->s, "give", (int)peer, EDGE_EXCHANGE + k, BUFFER_RESULT);
    sched_op(w->s, send)->slice = w->owned;
    sched_op(w->s, send)->header = HEADER_NONE;
    sched_after(w->s, send, w->ready);
    int recv = sched_recv(w->s, "gather", (int)peer, EDGE_EXCHANGE + k, BUFFER_RESULT);
    sched_op(w->s, recv)->slice = w->step[k].given;
    sched_op(w->s, recv)->header = HEADER_NONE;
    sched_after(w->s, recv, halved);
    int both = sched_nop(w->s, "united");
    sched_after(w->s, both, recv);
    sched_after(w->s, both, w->ready);
    w->ready = both;
    w->owned = w->step[k].owned;
}

/* Build recursive doubling or Rabenseifner's algorithm. */
static int build_allreduce_folding(struct sched *s, uint32_t rank, uint32_t size,
                                   int freeze, const struct algorithm_plan *plan)
{
    bool halves = plan->algorithm == PCOLL_ALGORITHM_RABENSEIFNER;
    uint32_t power = largest_power_of_two(size), extra = size - power;
    struct chain c = {.s = s,
                      .rank = rank,
                      .owned = {0, plan->padded, plan->padded},
                      .value = BUFFER_CONTRIBUTION,
                      .ready = freeze,
                      .free_after = {freeze, freeze}};
    int steps = 0;
    if (rank >= power)
        return chain_build_folded(&c, rank - power);
    if (rank < extra)
        chain_absorb(&c, rank + power, EDGE_FOLD, everything, HEADER_AFTER);
    for (; (uint32_t)1 << steps < power; steps++)
        (halves ? rabenseifner_halve : recdbl_exchange)(&c, steps);
    int halved = c.ready;
    for (int k = steps; halves && k-- > 0;)
        rabenseifner_unite(&c, k, halved);
    if (rank < extra)
        chain_send(&c, rank + power, EDGE_UNFOLD, everything, HEADER_AFTER);
    int end = sched_nop(s, "end");
    sched_after(s, end, c.ready);
    return end;
}

/*
 * Allreduce along a ring, in pieces, for any P >= 2.
 * Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", JPDC 2009; the pieces are those of Thakur et al. (see recursive
 * doubling), pipelined.
 *
 * The data is cut into P segments. In the first turn, segment s starts at endpoint s+1,
 * visits all endpoints, each of which adds its own data on the right, and is complete at
 * endpoint s. In the second turn it visits them again. So each endpoint sends to the next
 * and receives from the previous one all the time. Each segment is cut into chains, which
 * travel concurrently: while a piece of one is reduced, pieces of others are under way.
 *
 * Steps: 2 (P-1). Bytes sent: 2 S (P-1)/P.
 *
 * A piece of the contribution is gathered when it is needed: the members of the domain
 * add up later pieces while the first ones travel.
 *
 * A piece travels with the header in the first turn. After it every endpoint knows the
 * whole header, and messages of the second turn have none. Each chain has two
 * temporaries, and in each turn two edges, for odd and even steps. A receive is posted
 * only when the receive two steps before it is complete, so it can match one message only.
 */

enum { EDGES_OF_CHAIN = 4, EDGE_GATHER = 2 };

struct ring {
    struct sched *s;
    uint32_t rank, size;
    const struct algorithm_plan *plan;
    uint32_t chain;
    int begun; /* operation after which the chain may gather its first piece */
};

/* Return this chain's piece of the segment that belongs to the endpoint `behind` places
 * before this one. */
static struct slice ring_piece(const struct ring *r, uint32_t behind)
{
    uint32_t segment = (r->rank + 2 * r->size - behind) % r->size;
    uint32_t i = segment * r->plan->chains + r->chain;
    return (struct slice){i, i + 1, r->plan->pieces};
}

/* Send a piece to the next endpoint, or receive one from the previous one. */
static int ring_add(const struct ring *r, bool sends, int edge, int buffer,
                    struct slice slice, enum header_place place, int after)
{
    uint32_t peer = (r->rank + (sends ? 1 : r->size - 1)) % r->size;
    edge += (int)r->chain * EDGES_OF_CHAIN;
    int op = sends ? sched_send(r->s, "send", (int)peer, edge, buffer)
                   : sched_recv(r->s, "receive", (int)peer, edge, buffer);
    sched_op(r->s, op)->slice = slice;
    sched_op(r->s, op)->header = place;
    sched_after(r->s, op, after);
    return op;
}

/* Wait for a piece of the contribution. */
static int ring_add_gather(const struct ring *r, struct slice slice, int after)
{
    int gather = sched_copy(r->s, "gather", BUFFER_CONTRIBUTION, BUFFER_DEPOSIT);
    sched_op(r->s, gather)->slice = slice;
    sched_after(r->s, gather, after);
    return gather;
}

/* Build the first turn. Return the reduction of the piece that this endpoint owns. */
static int ring_reduce_scatter(struct ring *r, int freeze)
{
    int temps[2] = {BUFFER_TEMP + 2 * (int)r->chain,
                    BUFFER_TEMP + 2 * (int)r->chain + 1};
    int sent[2], value = temps[1]; /* sent[i]: the send that temporary i was used for */
    int ready = sched_copy(r->s, "begin", value, BUFFER_CONTRIBUTION);
    sched_op(r->s, ready)->slice = ring_piece(r, 1);
    sched_after(r->s, ready, ring_add_gather(r, ring_piece(r, 1), r->begun));
    r->begun = ready;
    for (uint32_t i = 0; i + 1 < r->size; i++) {
        int edge = i % 2, temp = temps[edge];
        sent[1 - edge] =
            ring_add(r, true, edge, value, ring_piece(r, i + 1), HEADER_AFTER, ready);
        int recv = ring_add(r, false, edge, temp, ring_piece(r, i + 2), HEADER_AFTER,
                            i == 0 ? freeze : sent[edge]);
        bool last = i + 2 == r->size;
        value = last ? BUFFER_RESULT : temp;
        ready = sched_reduce(r->s, "reduce", value, temp, BUFFER_CONTRIBUTION);
        sched_op(r->s, ready)->slice = ring_piece(r, i + 2);
        sched_after(r->s, ready, ring_add_gather(r, ring_piece(r, i + 2), recv));
    }
    return ready;
}

/* Build the second turn, in the result itself. */
static void ring_gather(const struct ring *r, int reduced, int end)
{
    int ready = reduced, before = reduced;
    for (uint32_t i = 0; i + 1 < r->size; i++) {
        int edge = EDGE_GATHER + i % 2;
        ring_add(r, true, edge, BUFFER_RESULT, ring_piece(r, i), HEADER_NONE, ready);
        int recv = ring_add(r, false, edge, BUFFER_RESULT, ring_piece(r, i + 1),
                            HEADER_NONE, before);
        before = i == 0 ? reduced : ready;
        ready = recv;
        sched_after(r->s, end, recv);
    }
}

static int build_allreduce_ring(struct sched *s, uint32_t rank, uint32_t size,
                                int freeze, const struct algorithm_plan *plan)
{
    int end = sched_nop(s, "end");
    int whole = sched_copy(s, "gathered", BUFFER_CONTRIBUTION, BUFFER_DEPOSIT);
    struct ring r = {s, rank, size, plan, 0, freeze};
    for (; r.chain < plan->chains; r.chain++) {
        int reduced = ring_reduce_scatter(&r, freeze);
        sched_after(s, whole, reduced);
        ring_gather(&r, reduced, end);
    }
    sched_after(s, end, whole);
    return end;
}

/*
 * Allreduce by the MPI library: MPI_Iallreduce as operations of the schedule.
 *
 * The activation makes all ranks call it in the same order of rounds, on a communicator of
 * this handle only, as MPI requires. A rank without a contribution provides the identity
 * of the op. A second, small allreduce of the headers tells which ranks have contributed
 * (docs/algorithms.md). Steps, bytes and the order of additions are those of the library.
 */

static int build_allreduce_native(struct sched *s, uint32_t rank, uint32_t size,
                                  int freeze, const struct algorithm_plan *plan)
{
    (void)rank;
    (void)size;
    int fill = sched_copy(s, "fill", BUFFER_RESULT, BUFFER_CONTRIBUTION);
    sched_after(s, fill, freeze);
    int end = sched_nop(s, "end");
    int header = sched_native(s, "headers", NATIVE_HEADER);
    sched_after(s, header, fill);
    sched_after(s, end, header);
    for (int part = 0; part < plan->native_parts; part++) {
        int data = sched_native(s, "allreduce", part);
        sched_after(s, data, fill);
        sched_after(s, end, data);
    }
    return end;
}

/* The data part of a round. */

/* `freeze` is the operation that freezes. */
typedef int allreduce_builder(struct sched *s, uint32_t rank, uint32_t size, int freeze,
                              const struct algorithm_plan *plan);

int build_allreduce(struct sched *s, uint32_t rank, uint32_t size, int active,
                    const struct algorithm_plan *plan)
{
    static allreduce_builder *const builders[] = {
        [PCOLL_ALGORITHM_RECDBL] = build_allreduce_folding,
        [PCOLL_ALGORITHM_RABENSEIFNER] = build_allreduce_folding,
        [PCOLL_ALGORITHM_RING] = build_allreduce_ring,
        [PCOLL_ALGORITHM_NATIVE] = build_allreduce_native,
    };
    int freeze = sched_copy(s, "freeze", BUFFER_CONTRIBUTION, BUFFER_DEPOSIT);
    if (size > 1 &&
        plan->algorithm == PCOLL_ALGORITHM_RING) /* which gathers piece by piece */
        sched_op(s, freeze)->slice = (struct slice){0, 0, 1};
    sched_after(s, freeze, active);
    if (size > 1)
        return builders[plan->algorithm](s, rank, size, freeze, plan);
    int copy = sched_copy(s, "alone", BUFFER_RESULT, BUFFER_CONTRIBUTION);
    sched_after(s, copy, freeze);
    int end = sched_nop(s, "end");
    sched_after(s, end, copy);
    return end;
}

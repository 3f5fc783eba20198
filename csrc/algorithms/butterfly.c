/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Butterfly: the allreduce of a small group, with parts of different lengths.
 * Source: Ryabinin et al., "Moshpit SGD", NeurIPS 2021, section 2.2, figure 1, with the
 * uneven parts of appendix G.
 *
 * The data is cut into one part for each member, as long as the member's share; parts may
 * be empty. Every member sends a notice that its input is ready. The owner of a part
 * fetches that part of every input, in pieces, and reduces them in the order of the
 * members. It sends a notice that its part is done, and every member fetches the part.
 *
 * Steps: 2. Bytes that member i receives: S (1 - w_i) + S w_i (M - 1), and it sends as
 * many; w_i is its share of the data. With equal shares 2 S (M - 1)/M.
 *
 * Messages with data are receives without a send: the executor may fetch one-sidedly, or
 * post a receive that its peer answers. There is room for two pieces of each member, odd
 * and even ones: a piece is fetched after the piece two before it has been reduced.
 */
#include "algorithms/algorithms.h"

struct butterfly {
    struct sched *s;
    const struct butterfly_plan *plan;
    int start;
};

/* Send a notice to all other members, after `after`. */
static void butterfly_add_notices(const struct butterfly *b, const char *label,
                                  int edge, int after, int end)
{
    for (uint32_t j = 0; j < b->plan->members; j++) {
        if (j == b->plan->position)
            continue;
        int send = sched_control_send(b->s, label, (int)j, edge);
        sched_after(b->s, send, after);
        sched_after(b->s, end, send);
    }
}

/* Fetch a piece of member j's input after `there` and `place` (-1: none). */
static int butterfly_add_fetch(const struct butterfly *b, uint32_t j, uint32_t piece,
                               int there, int place)
{
    int fetch = sched_recv(b->s, "fetch", (int)j, BUTTERFLY_INPUT, BUFFER_TEMP);
    sched_op(b->s, fetch)->slice = (struct slice){piece, piece + 1, b->plan->pieces};
    sched_after(b->s, fetch, there);
    if (place >= 0)
        sched_after(b->s, fetch, place);
    return fetch;
}

static int butterfly_add_reduce(const struct butterfly *b, uint32_t j, uint32_t piece,
                                int here, int before)
{
    int reduce = sched_reduce(b->s, "reduce", BUFFER_RESULT, BUFFER_RESULT,
                              j == b->plan->position ? BUFFER_DEPOSIT : BUFFER_TEMP);
    sched_op(b->s, reduce)->peer = (int)j;
    sched_op(b->s, reduce)->slice = (struct slice){piece, piece + 1, b->plan->pieces};
    sched_after(b->s, reduce, here);
    if (before >= 0)
        sched_after(b->s, reduce, before);
    return reduce;
}

/* Average one piece of this member's part. reduced[j] is the reduction of the piece two
 * before it, and then of this one; `averaged` is the average of the piece two before it,
 * or -1. */
static int butterfly_add_piece(const struct butterfly *b, uint32_t piece,
                               const int *there, int *reduced, int averaged)
{
    int last = averaged;
    for (uint32_t j = 0; j < b->plan->members; j++) {
        int here = j == b->plan->position
                       ? b->start
                       : butterfly_add_fetch(b, j, piece, there[j], reduced[j]);
        last = reduced[j] = butterfly_add_reduce(b, j, piece, here, last);
    }
    int average = sched_copy(b->s, "average", BUFFER_RESULT, BUFFER_RESULT);
    sched_op(b->s, average)->slice = (struct slice){piece, piece + 1, b->plan->pieces};
    sched_after(b->s, average, last);
    return average;
}

/* Build this member's part. there[j] is the notice that member j's input is ready;
 * `reduced` is memory for two operations of each member. */
static void butterfly_add_own_part(const struct butterfly *b, const int *there,
                                   int *reduced, int end)
{
    uint32_t members = b->plan->members;
    int averaged[2] = {-1, -1};
    for (uint32_t i = 0; i < 2 * members; i++)
        reduced[i] = -1;
    int all = sched_nop(b->s, "part reduced");
    for (uint32_t piece = 0; piece < b->plan->pieces; piece++) {
        int odd = piece % 2;
        averaged[odd] = butterfly_add_piece(
            b, piece, there, reduced + odd * (int)members, averaged[odd]);
        sched_after(b->s, all, averaged[odd]);
    }
    butterfly_add_notices(b, "part is done", BUTTERFLY_RESULT, all, end);
    sched_after(b->s, end, all);
}

static void butterfly_add_part_of(const struct butterfly *b, uint32_t owner, int end)
{
    int done = sched_control_recv(b->s, "part is done", (int)owner, BUTTERFLY_RESULT);
    int fetch =
        sched_recv(b->s, "fetch part", (int)owner, BUTTERFLY_RESULT, BUFFER_RESULT);
    sched_after(b->s, fetch, done);
    sched_after(b->s, fetch, b->start);
    sched_after(b->s, end, fetch);
}

int build_butterfly(struct sched *s, const struct butterfly_plan *plan, int start,
                    int *scratch)
{
    struct butterfly b = {s, plan, start};
    int end = sched_nop(s, "end"), *there = scratch;
    sched_after(s, end, start);
    butterfly_add_notices(&b, "input is there", BUTTERFLY_INPUT, start, end);
    for (uint32_t j = 0; j < plan->members; j++) {
        bool own = j == plan->position;
        there[j] =
            own ? start
                : sched_control_recv(s, "input is there", (int)j, BUTTERFLY_INPUT);
        if (!own) /* A member that reduces nothing counts the others, too. */
            sched_after(s, end, there[j]);
        if (!own && !plan->empty[j])
            butterfly_add_part_of(&b, j, end);
    }
    if (plan->pieces)
        butterfly_add_own_part(&b, there, scratch + plan->members, end);
    return end;
}

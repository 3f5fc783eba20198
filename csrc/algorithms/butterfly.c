/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Butterfly: the allreduce of a small group whose members move what is worth moving.
 * Source: Ryabinin et al., "Moshpit SGD", NeurIPS 2021, section 2.2, figure 1, with the
 * uneven parts of appendix G.
 *
 * The data is cut into one part for each member, as long as its owner's share; parts
 * may be empty. Everybody says that its input is there (a notice); the owner of a part
 * fetches that part of every input, in pieces, and reduces them in the order of the
 * members; it says that its part is done (a notice), and everybody fetches it.
 *
 * Steps: 2. Bytes that member i receives: S (1 - w_i) + S w_i (M - 1), and it sends as
 * many; w_i is its share of the data. With equal shares 2 S (M - 1)/M.
 *
 * The messages with data are receives alone: the executor may fetch one-sidedly, or
 * post a receive that its peer answers. A piece of one member has two places, for odd
 * and even pieces: it is fetched when the piece two before it has been reduced.
 */
#include "algorithms/algorithms.h"

struct butterfly {
    struct sched *s;
    const struct butterfly_plan *plan;
    int start;
};

/* Tell everybody else, after `after`. */
static void add_notices(const struct butterfly *b, const char *label, int edge,
                        int after, int end)
{
    for (uint32_t j = 0; j < b->plan->members; j++) {
        if (j == b->plan->position)
            continue;
        int send = sched_control_send(b->s, label, (int)j, edge);
        sched_after(b->s, send, after);
        sched_after(b->s, end, send);
    }
}

/* This piece of member j's input, when `there` and `place` are done (-1: no matter). */
static int add_fetch(const struct butterfly *b, uint32_t j, uint32_t piece, int there,
                     int place)
{
    int fetch = sched_recv(b->s, "fetch", (int)j, BUTTERFLY_INPUT, BUFFER_TEMP);
    sched_slice(b->s, fetch, (struct slice){piece, piece + 1, b->plan->pieces});
    sched_after(b->s, fetch, there);
    if (place >= 0)
        sched_after(b->s, fetch, place);
    return fetch;
}

static int add_reduce(const struct butterfly *b, uint32_t j, uint32_t piece, int here,
                      int before)
{
    int reduce = sched_reduce(b->s, "reduce", BUFFER_RESULT, BUFFER_RESULT,
                              j == b->plan->position ? BUFFER_DEPOSIT : BUFFER_TEMP);
    sched_from(b->s, reduce, (int)j);
    sched_slice(b->s, reduce, (struct slice){piece, piece + 1, b->plan->pieces});
    sched_after(b->s, reduce, here);
    if (before >= 0)
        sched_after(b->s, reduce, before);
    return reduce;
}

/* The average of one piece of the own part. reduced[j]: of the piece two before it, and
 * then of this one; averaged: of the one two before it, or -1. */
static int add_piece(const struct butterfly *b, uint32_t piece, const int *there,
                     int *reduced, int averaged)
{
    int last = averaged;
    for (uint32_t j = 0; j < b->plan->members; j++) {
        int here = j == b->plan->position
                       ? b->start
                       : add_fetch(b, j, piece, there[j], reduced[j]);
        last = reduced[j] = add_reduce(b, j, piece, here, last);
    }
    int average = sched_copy(b->s, "average", BUFFER_RESULT, BUFFER_RESULT);
    sched_slice(b->s, average, (struct slice){piece, piece + 1, b->plan->pieces});
    sched_after(b->s, average, last);
    return average;
}

/* there[j]: the notice that member j's input is there. reduced: scratch, two for each
 * member. */
static void add_own_part(const struct butterfly *b, const int *there, int *reduced,
                         int end)
{
    uint32_t members = b->plan->members;
    int averaged[2] = {-1, -1};
    for (uint32_t i = 0; i < 2 * members; i++)
        reduced[i] = -1;
    int all = sched_nop(b->s, "part reduced");
    for (uint32_t piece = 0; piece < b->plan->pieces; piece++) {
        int odd = piece % 2;
        averaged[odd] =
            add_piece(b, piece, there, reduced + odd * (int)members, averaged[odd]);
        sched_after(b->s, all, averaged[odd]);
    }
    add_notices(b, "part is done", BUTTERFLY_RESULT, all, end);
    sched_after(b->s, end, all);
}

static void add_part_of(const struct butterfly *b, uint32_t owner, int end)
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
    add_notices(&b, "input is there", BUTTERFLY_INPUT, start, end);
    for (uint32_t j = 0; j < plan->members; j++) {
        bool own = j == plan->position;
        there[j] =
            own ? start
                : sched_control_recv(s, "input is there", (int)j, BUTTERFLY_INPUT);
        if (!own) /* who reduces nothing counts the others as well */
            sched_after(s, end, there[j]);
        if (!own && !plan->empty[j])
            add_part_of(&b, j, end);
    }
    if (plan->pieces)
        add_own_part(&b, there, scratch + plan->members, end);
    return end;
}

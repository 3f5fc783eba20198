/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who closes next? On a communicator one participant closes at a time, because their
 * agreements must not mix, and it must be the same one on all ranks. The ranks need not
 * ask for it in one order: one that is at MPI_Finalize closes all that it has left, the
 * others free theirs in whatever order their program does.
 *
 * So each rank votes for all that it is asked to close, and the one with the lowest
 * slot that all have voted for is next. If there is none, the ranks vote again a little
 * later: somebody may have been asked for more by then.
 */
#include <stdlib.h>

#include "../base/error.h"
#include "context.h"

static const int64_t vote_again_after = 5000000; /* ns */

static int vote(struct context *c)
{
    struct closings *closing = &c->closing;
    uint64_t *ballot = calloc(c->capacity, sizeof *ballot);
    if (!ballot)
        return fail(PCOLL_ENOMEM, "no memory to close a handle");
    free(closing->ballot);
    closing->ballot = ballot;
    closing->voting = true;
    for (struct participant *p = closing->first; p; p = p->next_closing)
        ballot[p->slot] = 1;
    closing->agreement = (struct agreement){
        .values = ballot, .count = (int)c->capacity, .op = AGREE_SUM};
    return context_agree(c, &closing->agreement);
}

int context_close(struct context *c, struct participant *p)
{
    struct participant **end = &c->closing.first;
    while (*end)
        end = &(*end)->next_closing;
    *end = p;
    p->next_closing = NULL;
    atomic_fetch_add(&c->closings, 1);
    bool busy = c->closing.turn || c->closing.voting || c->closing.vote_at != INT64_MAX;
    return busy ? PCOLL_OK : vote(c);
}

/* The first that all have voted for leaves the queue. */
static struct participant *choose(struct context *c)
{
    struct participant **best = NULL;
    for (struct participant **at = &c->closing.first; *at; at = &(*at)->next_closing)
        if (c->closing.ballot[(*at)->slot] == c->transport->size &&
            (!best || (*at)->slot < (*best)->slot))
            best = at;
    struct participant *p = best ? *best : NULL;
    if (p)
        *best = p->next_closing;
    return p;
}

int closing_voted(struct context *c)
{
    c->closing.voting = false;
    c->closing.turn = choose(c);
    if (c->closing.turn)
        return c->closing.turn->ops->begin_close(c->closing.turn);
    c->closing.vote_at = context_now(c) + vote_again_after;
    context_wake_at(c, c->closing.vote_at);
    return PCOLL_OK;
}

int closing_look(struct context *c, int64_t now)
{
    if (now < c->closing.vote_at) {
        context_wake_at(c, c->closing.vote_at);
        return PCOLL_OK;
    }
    c->closing.vote_at = INT64_MAX;
    return vote(c);
}

int context_closed(struct context *c, struct participant *p)
{
    (void)p;
    c->closing.turn = NULL;
    atomic_fetch_sub(&c->closings, 1);
    if (c->progress)
        progress_notify(c->progress);
    return c->closing.first ? vote(c) : PCOLL_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of those that close, and the votes on it; see closing.h. */
#include "runtime/closing.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"

static const int64_t vote_again_after = 5000000; /* ns */

static int vote(struct communicator *c)
{
    CHECK(!c->closing.voting && !c->closing.turn);
    struct closings *closing = &c->closing;
    uint64_t *ballot = calloc(c->capacity, sizeof *ballot);
    if (!ballot)
        return fail(PCOLL_ENOMEM, "no memory to close a handle");
    free(closing->ballot);
    closing->ballot = ballot;
    closing->voting = true;
    for (struct object *p = closing->first; p; p = p->next_closing)
        ballot[p->slot] = 1;
    closing->agreement = (struct agreement){.values = ballot,
                                            .count = (int)c->capacity,
                                            .op = AGREE_SUM,
                                            .object = &closing->base};
    return communicator_agree(c, &closing->agreement);
}

/* The first that all have voted for leaves the queue. */
static struct object *choose(struct communicator *c)
{
    struct object **best = NULL;
    for (struct object **at = &c->closing.first; *at; at = &(*at)->next_closing)
        if (c->closing.ballot[(*at)->slot] == c->transport->living &&
            (!best || (*at)->slot < (*best)->slot))
            best = at;
    struct object *p = best ? *best : NULL;
    if (p)
        *best = p->next_closing;
    return p;
}

/* The vote is over. */
static int begin_turn(struct communicator *c)
{
    CHECK(atomic_load(&c->closing.agreement.done));
    struct closings *closing = &c->closing;
    closing->voting = false;
    closing->turn = choose(c);
    if (closing->turn)
        return closing->turn->ops->begin_close(closing->turn);
    communicator_alarm(c, &closing->base, communicator_now(c) + vote_again_after);
    return PCOLL_OK;
}

static int closing_run(struct object *p)
{
    CHECK(((struct closings *)p)->communicator);
    struct closings *closing = (struct closings *)p;
    struct communicator *c = closing->communicator;
    return closing->voting ? begin_turn(c) : vote(c);
}

static const struct object_ops closing_ops = {.run = closing_run};

int communicator_close(struct communicator *c, struct object *p)
{
    CHECK(!c->progress || progress_is_driven(c->progress));
    CHECK(!atomic_load(&p->closed));
    CHECK(c->objects[p->slot] == p);
    struct closings *closing = &c->closing;
    if (!closing->communicator) {
        closing->communicator = c;
        closing->base = object_init(&closing_ops);
        communicator_attach(c, &closing->base);
    }
    struct object **end = &closing->first;
    for (; *end; end = &(*end)->next_closing)
        CHECK(*end != p);
    *end = p;
    p->next_closing = NULL;
    atomic_fetch_add(&c->closings, 1);
    bool waits = closing->base.alarm != INT64_MAX; /* for the time to vote again */
    bool busy = closing->turn || closing->voting || waits;
    return busy ? PCOLL_OK : vote(c);
}

int communicator_closed(struct communicator *c, struct object *p)
{
    CHECK(c->closing.turn == p);
    CHECK(!atomic_load(&p->closed));
    CHECK(atomic_load(&c->closings) > 0);
    c->closing.turn = NULL;
    atomic_store(&p->closed, true); /* its owner may free it when the driver is out */
    atomic_fetch_sub(&c->closings, 1);
    if (c->progress)
        progress_wake_waiters(c->progress);
    return c->closing.first ? vote(c) : PCOLL_OK;
}

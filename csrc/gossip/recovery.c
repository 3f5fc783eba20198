/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gossip buffer's part in going on without the dead (runtime/recovery.h). The window is
 * one of memory that the ranks share (runtime/shared_window.h), so it stays as it is, and
 * the buffer is its own successor. Calls are counted (outage_enter), so none is under way
 * here; when all have taken part in the census, none is anywhere, and each settles.
 */
#include "base/check.h"
#include "base/error.h"
#include "gossip/object.h"
#include "gossip/settle.h"
#include "runtime/closing.h"
#include "runtime/recovery.h"

static pcoll_gossip *of(struct user_object *o)
{
    return (pcoll_gossip *)o;
}

static uint64_t complete(struct user_object *o)
{
    (void)o;
    return 0; /* it has no rounds */
}

static int settle_the_dead(struct gossip_memory *m, const struct transport *t)
{
    int rc = PCOLL_OK;
    for (uint32_t r = 0; r < t->size && rc == PCOLL_OK; r++)
        if (!transport_lives(t, r))
            rc = settle_dead(m, r);
    return rc;
}

static int rebuild(struct user_object *o, struct communicator *c,
                   const struct recovery_plan *plan)
{
    pcoll_gossip *g = of(o);
    const struct transport *t = c->transport;
    CHECK(plan->slot == g->object.slot);
    if (!g->spent) /* it had closed, here */
        return PCOLL_OK;
    int rc = settle_own(g->memory);
    return rc == PCOLL_OK && transport_lowest(t) == t->rank
               ? settle_the_dead(g->memory, t)
               : rc;
}

static int inherit(struct user_object *o, struct object **object)
{
    pcoll_gossip *g = of(o);
    g->object.alarm = INT64_MAX;
    atomic_store(&g->object.closed, false); /* all close it anew */
    *object = &g->object;
    return PCOLL_OK;
}

static void go(struct user_object *o, struct communicator *c)
{
    pcoll_gossip *g = of(o);
    if (o->orphan || !atomic_load(&o->closing))
        return;
    progress_lock(c->progress);
    int rc = communicator_close(c, &g->object);
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    progress_unlock(c->progress);
}

const struct recoverable gossip_recoverable = {
    .complete = complete,
    .rebuild = rebuild,
    .inherit = inherit,
    .go = go,
};

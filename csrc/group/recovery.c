/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grouped allreduce's part in going on without the dead (runtime/recovery.h). It is its own
 * successor, with the window that it had, which is of memory that the ranks share
 * (runtime/shared_window.h); restart.c has what becomes of its rounds.
 *
 * Its application may start and wait meanwhile: it touches its input and counts alone, and
 * what else it looks at is changed under the progress lock. Others may go on before this rank
 * does: their messages are taken, and answered, on the new communicator, but it is not driven.
 */
#include <stdlib.h>

#include "base/check.h"
#include "group/object.h"
#include "runtime/agreement.h"
#include "runtime/recovery.h"

static struct group *group_create_group_of(struct user_object *o)
{
    return &((pcoll_group *)o)->group;
}

static uint64_t group_create_complete(struct user_object *o)
{
    return group_create_group_of(o)->round;
}

/* The plan has the highest round that anybody who lives is at: it may have begun, and somebody who
 * has died may have declared itself for the next one. */
static int group_create_rebuild(struct user_object *o, struct communicator *c,
                                const struct recovery_plan *plan)
{
    struct group *g = group_create_group_of(o);
    CHECK(plan->slot == g->base.slot && plan->complete >= g->round);
    free(g->restart.words);
    g->restart.round = plan->complete + (g->dynamic ? 2 : 1);
    g->restart.communicator = c;
    return agree_gather(c, group_agent_state_word(g), &g->restart.words);
}

static int group_create_inherit(struct user_object *o, struct object **object)
{
    struct group *g = group_create_group_of(o);
    struct progress *p = o->communicator->progress;
    progress_lock(p);
    int rc = group_agent_restart(g, g->restart.words, g->restart.round);
    g->communicator = g->restart.communicator;
    g->driven = false;
    atomic_store(&g->base.closed, false); /* all close it anew */
    *object = &g->base;
    progress_unlock(p);
    return rc;
}

static void group_create_resume(struct user_object *o, struct communicator *c)
{
    struct group *g = group_create_group_of(o);
    progress_lock(c->progress);
    g->communicator = c;
    g->driven = true;
    int rc = o->orphan ? PCOLL_OK : group_agent_drive(g);
    if (rc != PCOLL_OK)
        communicator_fail(c, rc);
    progress_unlock(c->progress);
}

const struct recoverable group_create_recoverable = {
    .complete = group_create_complete,
    .rebuild = group_create_rebuild,
    .inherit = group_create_inherit,
    .go = group_create_resume,
};

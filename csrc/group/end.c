/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a grouped allreduce: freed by its user, or by MPI_Finalize. It leaves, and
 * when nothing of it is under way here, it asks for its turn to close (closing.c).
 */
#include <stdlib.h>

#include "group.h"

static void ask_to_close(struct pcoll_group *g)
{
    progress_lock(g->context->progress);
    g->closing = true;
    progress_unlock(g->context->progress);
    context_kick(g->context, &g->base);
}

static bool is_closed(void *arg)
{
    struct pcoll_group *g = arg;
    return atomic_load(&g->closed) || atomic_load(&g->context->failure);
}

/* After a failure MPI may still write to its memory, which is better lost. */
static void end(struct pcoll_group *g)
{
    bool healthy = atomic_load(&g->context->failure) == PCOLL_OK;
    progress_lock(g->context->progress);
    context_unregister(g->context, g->base.slot);
    progress_unlock(g->context->progress);
    if (healthy)
        group_dispose(g);
    g->window = NULL;
}

int pcoll_group_free(pcoll_group **at, int64_t timeout_us)
{
    struct pcoll_group *g = *at;
    int rc = PCOLL_OK;
    if (!g)
        return PCOLL_OK;
    if (g->window) {
        if ((rc = group_enter(g)) != PCOLL_OK)
            return rc;
        ask_to_close(g);
        if (progress_wait(g->context->progress, is_closed, g, timeout_us) ==
            PCOLL_EAGAIN)
            return group_leave_call(g, PCOLL_EAGAIN);
        rc = context_check(g->context);
        runtime_remove(&g->entry);
        end(g);
        runtime_release(g->context);
    }
    free(g);
    *at = NULL;
    return rc;
}

/* The application still has it and may free it later: it stays, empty. */

void group_begin_end(struct runtime_entry *entry)
{
    ask_to_close((struct pcoll_group *)entry);
}

void group_end(struct runtime_entry *entry)
{
    struct pcoll_group *g = (struct pcoll_group *)entry;
    while (progress_wait(g->context->progress, is_closed, g, 1000000) == PCOLL_EAGAIN)
        ;
    end(g);
}

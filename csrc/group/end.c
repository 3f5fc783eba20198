/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a grouped allreduce: freed by its user, or by MPI_Finalize. It leaves, and
 * when nothing of it is under way here, it asks for its turn to close (closing.c).
 */
#include <stdlib.h>

#include "group/group.h"

#include "base/check.h"

static void ask_to_close(struct pcoll_group *g)
{
    progress_lock(g->communicator->progress);
    g->shared.closing = true;
    progress_unlock(g->communicator->progress);
    communicator_notify(g->communicator, &g->base);
}

static bool is_closed(void *arg)
{
    struct pcoll_group *g = arg;
    return atomic_load(&g->shared.closed) || atomic_load(&g->communicator->failure);
}

/* After a failure MPI may still write to its memory, which is better lost. */
static void end(struct pcoll_group *g)
{
    bool healthy = atomic_load(&g->communicator->failure) == PCOLL_OK;
    progress_lock(g->communicator->progress);
    communicator_unregister(g->communicator, g->base.slot);
    progress_unlock(g->communicator->progress);
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
        if (progress_wait(g->communicator->progress, is_closed, g, timeout_us) ==
            PCOLL_EAGAIN)
            return group_leave_call(g, PCOLL_EAGAIN);
        rc = communicator_check(g->communicator);
        process_remove(&g->entry);
        end(g);
        process_release(g->communicator);
    }
    free(g);
    *at = NULL;
    return rc;
}

/* The application still has it and may free it later: it stays, empty. */

void group_begin_end(struct process_entry *entry)
{
    ask_to_close((struct pcoll_group *)entry);
}

void group_end(struct process_entry *entry)
{
    struct pcoll_group *g = (struct pcoll_group *)entry;
    CHECK(g->shared.closing && g->window);
    while (progress_wait(g->communicator->progress, is_closed, g, 1000000) ==
           PCOLL_EAGAIN)
        ;
    end(g);
}

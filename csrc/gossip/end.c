/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a gossip buffer: freed by its user, or by MPI_Finalize. Freeing a window
 * is collective and blocks, so all first agree that it is this one's turn
 * (runtime/closing.h); then the driver frees it, whatever its own rank waits for: the
 * ranks need not free their buffers in one order.
 */
#include <stdlib.h>

#include "gossip/object.h"
#include "runtime/closing.h"

#include "base/check.h"

static pcoll_gossip *of(struct object *p)
{
    return (pcoll_gossip *)((char *)p - offsetof(pcoll_gossip, base));
}

static int nothing(struct object *p)
{
    (void)p;
    return PCOLL_OK;
}

static int no_message(struct object *p, int op, size_t bytes)
{
    (void)p, (void)bytes;
    return fail(PCOLL_EPROTOCOL, "a message (%d) for a gossip buffer", op);
}

static int no_control(struct object *p, uint32_t source, const struct control *message)
{
    (void)p, (void)message;
    return fail(PCOLL_EPROTOCOL, "a message of rank %u for a gossip buffer", source);
}

static int begin_close(struct object *p)
{
    pcoll_gossip *g = of(p);
    CHECK(!atomic_load(&g->closed));
    window_spend(g->communicator, g->memory->window, &g->spent);
    atomic_store(&g->closed, true);
    return communicator_closed(g->communicator, p);
}

const struct object_ops gossip_object = {.run = nothing,
                                         .done = no_message,
                                         .control = no_control,
                                         .begin_close = begin_close};

static void ask_to_close(pcoll_gossip *g)
{
    progress_lock(g->communicator->progress);
    int rc = g->closing ? PCOLL_OK : communicator_close(g->communicator, &g->base);
    g->closing = true;
    if (rc != PCOLL_OK)
        communicator_fail(g->communicator, rc);
    progress_unlock(g->communicator->progress);
}

static bool is_closed(void *arg)
{
    pcoll_gossip *g = arg;
    return atomic_load(&g->closed) || atomic_load(&g->communicator->failure);
}

/* After a failure the window is still there, and stays: others may not have come to
 * free theirs. */
static void dispose(pcoll_gossip *g)
{
    progress_lock(g->communicator->progress);
    communicator_unregister(g->communicator, g->base.slot);
    progress_unlock(g->communicator->progress);
    gossip_memory_free(&g->memory);
    free(g->spent);
    g->spent = NULL;
}

int pcoll_gossip_free(pcoll_gossip **at, int64_t timeout_us)
{
    pcoll_gossip *g = *at;
    int rc = PCOLL_OK;
    if (!g)
        return PCOLL_OK;
    if (g->memory) {
        if ((rc = gossip_enter(g)) != PCOLL_OK)
            return rc;
        ask_to_close(g);
        if (progress_wait(g->communicator->progress, is_closed, g, timeout_us) ==
            PCOLL_EAGAIN)
            return gossip_leave(g, PCOLL_EAGAIN);
        rc = communicator_check(g->communicator);
        process_remove(&g->entry);
        dispose(g);
        process_release(g->communicator);
    }
    free(g);
    *at = NULL;
    return rc;
}

/* The application still has it and may free it later: it stays, empty. */

void gossip_begin_end(struct process_entry *entry)
{
    ask_to_close((pcoll_gossip *)entry);
}

void gossip_end(struct process_entry *entry)
{
    pcoll_gossip *g = (pcoll_gossip *)entry;
    while (progress_wait(g->communicator->progress, is_closed, g, 1000000) ==
           PCOLL_EAGAIN)
        ;
    dispose(g);
}

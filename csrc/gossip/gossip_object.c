/* SPDX-License-Identifier: Apache-2.0 */
/* Making a gossip buffer, going on without the dead, and its end. */
#include "gossip/gossip.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "gossip/accumulator.h"
#include "gossip/gossip_queue.h"
#include "kernels/reduce.h"
#include "runtime/agreement.h"
#include "runtime/closing.h"
#include "runtime/recovery.h"
#include "runtime/shared_window.h"
#include "transport/mpi/mpi_transport.h"

enum field {
    FIELD_COUNT,
    FIELD_DTYPE,
    FIELD_BITS,
    FIELD_ROTATE,
    FIELD_SHAPE,
    FIELD_QUEUE_SLOTS,
    FIELD_MAX_UNCOLLECTED,
    FIELD_TOPOLOGY,
    FIELDS
};

static const char *const rotate_names[] = {"no", "yes", NULL};

static const struct agree_field fields[FIELDS] = {
    [FIELD_COUNT] = {"like (number of elements)", NULL},
    [FIELD_DTYPE] = {"like (dtype)", dtype_names},
    [FIELD_BITS] = {"codec (bits, 0: none)", NULL},
    [FIELD_ROTATE] = {"codec (rotate)", rotate_names},
    [FIELD_SHAPE] = {"like (shape, its hash)", NULL},
    [FIELD_QUEUE_SLOTS] = {"queue_slots", NULL},
    [FIELD_MAX_UNCOLLECTED] = {"max_uncollected", NULL},
    [FIELD_TOPOLOGY] = {"topology (its hash)", NULL},
};

static int compare(struct communicator *c, int local, const pcoll_gossip_options *o)
{
    uint64_t own[FIELDS] = {[FIELD_COUNT] = o->count,
                            [FIELD_DTYPE] = (uint64_t)o->dtype,
                            [FIELD_BITS] = (uint64_t)o->bits,
                            [FIELD_ROTATE] = o->rotate != 0,
                            [FIELD_SHAPE] = o->shape,
                            [FIELD_QUEUE_SLOTS] = o->queue_slots,
                            [FIELD_MAX_UNCOLLECTED] = o->max_uncollected,
                            [FIELD_TOPOLOGY] = o->topology};
    return agree_same(c, local, fields, own, FIELDS);
}

static int prepare(struct communicator *c, const pcoll_gossip_options *o,
                   struct gossip_memory *m)
{
    const struct transport *t = c->transport;
    bool agent = t->off_node || c->outage;
    int rc = user_object_check_failure(o->on_failure, o->progress);
    if (rc == PCOLL_OK)
        rc = gossip_memory_prepare(m, o, t->rank, t->size, t->off_node);
    return rc == PCOLL_OK && agent ? process_start_agent(c, o->progress, true) : rc;
}

/* Collective. A window of MPI that some could not make stays lost with those who could: to
 * free it all are needed. */
static int open_window(struct communicator *c, const void *comm,
                       struct gossip_memory *m)
{
    communicator_end_leftovers(c);
    int rc = window_open(c, comm, m->layout.bytes, &m->window);
    return rc == PCOLL_OK ? agree_outcome(c, gossip_memory_clear(m)) : rc;
}

static int join_others(struct communicator *c, const void *comm, int local,
                       const pcoll_gossip_options *options, struct gossip_memory *m,
                       struct object *p)
{
    agree_settle(c);
    int rc = compare(c, local, options);
    if (rc == PCOLL_OK)
        rc = open_window(c, comm, m);
    return rc == PCOLL_OK ? agree_enter(c, p) : rc;
}

static int create(struct communicator *c, const void *comm,
                  const pcoll_gossip_options *options, pcoll_gossip **gossip)
{
    pcoll_gossip *g = calloc(1, sizeof *g);
    struct gossip_memory *m = calloc(1, sizeof *m);
    struct spent_window *spent = calloc(1, sizeof *spent);
    int local = g && m && spent ? prepare(c, options, m)
                                : fail(PCOLL_ENOMEM, "no memory for a gossip buffer");
    if (g)
        g->object = object_init(&gossip_object);
    int rc = join_others(c, comm, local, options, m, g ? &g->object : NULL);
    if (rc != PCOLL_OK) {
        if (m && m->window && m->window->local)
            m->window->ops->destroy(m->window);
        if (m)
            gossip_memory_free(&m);
        free(spent);
        free(g);
        return rc;
    }
    user_object_init(&g->base, &gossip_kind);
    g->memory = m;
    g->spent = spent;
    g->max_uncollected = options->max_uncollected;
    g->look_at = pcoll_tells_of_failures() && !c->outage ? 1 : 0;
    user_object_made(&g->base, c, &g->object, options->progress);
    *gossip = g;
    return PCOLL_OK;
}

int pcoll_gossip_create(const void *comm, const pcoll_gossip_options *options,
                        pcoll_gossip **gossip)
{
    struct communicator *c;
    int rc = user_object_admit(&gossip_kind, comm,
                               (enum pcoll_failure)options->on_failure, &c);
    if (rc != PCOLL_OK)
        return rc;
    outage_enter(c->outage);
    rc = create(c, comm, options, gossip);
    outage_leave(c->outage);
    return rc;
}

/*
 * A gossip buffer's part in going on without the dead (runtime/recovery.h). The window is
 * one of memory that the ranks share (runtime/shared_window.h), so it stays as it is, and
 * the buffer is its own successor. Calls are counted (outage_enter), so none is under way
 * here; when all have taken part in the census, none is anywhere, and each settles.
 */

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
    pcoll_gossip *g = (pcoll_gossip *)o;
    const struct transport *t = c->transport;
    CHECK(plan->slot == g->object.slot);
    if (!g->spent) /* it had closed, here */
        return PCOLL_OK;
    int rc = accumulator_settle(g->memory);
    if (rc == PCOLL_OK)
        rc = queue_settle(g->memory);
    return rc == PCOLL_OK && transport_lowest(t) == t->rank
               ? settle_the_dead(g->memory, t)
               : rc;
}

static int inherit(struct user_object *o, struct object **object)
{
    pcoll_gossip *g = (pcoll_gossip *)o;
    g->object.alarm = INT64_MAX;
    atomic_store(&g->object.closed, false); /* all close it anew */
    *object = &g->object;
    return PCOLL_OK;
}

static void go(struct user_object *o, struct communicator *c)
{
    pcoll_gossip *g = (pcoll_gossip *)o;
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

/*
 * The end of a gossip buffer: freed by its user, or by MPI_Finalize (user_object.h).
 * Freeing a window is collective and blocks, so all first agree that it is this one's
 * turn (runtime/closing.h); then the driver frees it, whatever its own rank waits for: the
 * ranks need not free their buffers in one order.
 */

static pcoll_gossip *gossip_of(struct object *p)
{
    return (pcoll_gossip *)((char *)p - offsetof(pcoll_gossip, object));
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

static int begin_turn(struct object *p)
{
    pcoll_gossip *g = gossip_of(p);
    if (g->spent) /* else it had closed before somebody died */
        window_spend(g->base.communicator, g->memory->window, &g->spent);
    return communicator_closed(g->base.communicator, p);
}

const struct object_ops gossip_object = {.run = nothing,
                                         .done = no_message,
                                         .control = no_control,
                                         .begin_close = begin_turn};

static int begin_close(struct user_object *o)
{
    return communicator_close(o->communicator, o->object);
}

/* After a failure the window is still there, and stays if it is MPI's: others may not have
 * come to free theirs. */
static void dispose(struct user_object *o, bool healthy)
{
    pcoll_gossip *g = (pcoll_gossip *)o;
    struct window *w = g->memory->window;
    (void)healthy;
    if (g->spent && w->local)
        w->ops->destroy(w);
    gossip_memory_free(&g->memory);
    free(g->spent);
    g->spent = NULL;
}

const struct user_object_kind gossip_kind = {
    .name = "the gossip buffer",
    .plural = "gossip buffers",
    .close = begin_close,
    .dispose = dispose,
    .recoverable = &gossip_recoverable,
};

int pcoll_gossip_free(pcoll_gossip **at, int64_t timeout_us)
{
    pcoll_gossip *g = *at;
    bool over = true;
    int rc = g ? user_object_end(&g->base, timeout_us, &over) : PCOLL_OK;
    if (over) {
        free(g);
        *at = NULL;
    }
    return rc;
}

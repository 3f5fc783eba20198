/* SPDX-License-Identifier: Apache-2.0 */
/* Making a gossip buffer. */
#include <stdlib.h>

#include "runtime/agreement.h"
#include "kernels/reduce.h"
#include "transport/mpi/mpi_transport.h"
#include "gossip/object.h"
#include "runtime/shared_window.h"

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

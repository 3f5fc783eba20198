/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a handle: each rank makes its part, then all compare their arguments, agree on
 * a slot, enter the vertex in their tables, and agree that all have done so. A rank
 * that fails takes part in the agreements all the same, so that it fails on every rank.
 */
#include <stdlib.h>

#include "../base/error.h"
#include "../transport/mpi.h"
#include "agree.h"
#include "handle.h"
#include "options.h"

static int check_threads(const struct context *c, const pcoll_options *o)
{
    if (o->progress == PCOLL_PROGRESS_MANUAL || c->transport->threads)
        return PCOLL_OK;
    return fail(
        PCOLL_ETHREAD,
        "progress: the agent needs MPI_THREAD_MULTIPLE, and MPI was initialised "
        "with less; initialise it with MPI_THREAD_MULTIPLE or ask for manual "
        "progress");
}

static int start_agent(struct context *c, const pcoll_options *o)
{
    if (o->progress == PCOLL_PROGRESS_MANUAL)
        return PCOLL_OK;
    progress_lock(c->progress);
    int rc = progress_start_agent(c->progress, o->progress);
    progress_unlock(c->progress);
    return rc;
}

/* This rank's part, before anybody else is asked. */
static int make_vertex(struct context *c, const pcoll_buffer *buffers, int nbuffers,
                       const pcoll_options *o, struct vertex **v)
{
    int rc = options_check(o);
    if (rc == PCOLL_OK)
        rc = check_threads(c, o);
    if (rc == PCOLL_OK)
        rc = start_agent(c, o);
    if (rc != PCOLL_OK)
        return rc;
    return vertex_create(c,
                         &(struct vertex_spec){.ranks = c->transport->size,
                                               .buffers = buffers,
                                               .nbuffers = nbuffers,
                                               .options = o,
                                               .create_domain = domain_single_create,
                                               .domain_arg = &c->transport->rank},
                         v);
}

static int register_vertex(struct context *c, struct vertex *v, uint32_t slot)
{
    progress_lock(c->progress);
    int rc = context_register(c, &v->base, slot);
    progress_unlock(c->progress);
    return rc;
}

static bool nothing_closes(void *arg)
{
    struct context *c = arg;
    return !atomic_load(&c->closings) || atomic_load(&c->failure);
}

/* A Free that was interrupted goes on in the background; its agreements come first. */
static void wait_for_closings(struct context *c)
{
    while (progress_wait(c->progress, nothing_closes, c, 1000000) == PCOLL_EAGAIN)
        ;
}

/* Agree with the others; in the table on all ranks before the first one may send. */
static int join_others(struct context *c, int local, const pcoll_buffer *buffers,
                       int nbuffers, const pcoll_options *o, struct vertex *v)
{
    uint32_t slot;
    wait_for_closings(c);
    int rc = agree_arguments(c, local, buffers, nbuffers, o);
    if (rc == PCOLL_OK)
        rc = agree_slot(c, &slot);
    if (rc != PCOLL_OK)
        return rc;
    int registered = register_vertex(c, v, slot);
    rc = agree_outcome(c, registered);
    if (rc != PCOLL_OK && registered == PCOLL_OK) {
        progress_lock(c->progress);
        context_unregister(c, slot);
        progress_unlock(c->progress);
    }
    return rc;
}

int pcoll_allreduce_create(const void *comm, const pcoll_buffer *buffers,
                           int32_t nbuffers, const pcoll_options *options,
                           pcoll_handle **handle)
{
    struct context *c;
    struct vertex *v = NULL;
    if (runtime_forked())
        return fail(PCOLL_ESTATE, "handles cannot be made in a forked process");
    int rc = mpi_check_comm(comm);
    if (rc == PCOLL_OK)
        rc = runtime_context(comm, &c);
    if (rc != PCOLL_OK)
        return rc;
    pcoll_handle *h = calloc(1, sizeof *h);
    int local = h ? make_vertex(c, buffers, nbuffers, options, &v)
                  : fail(PCOLL_ENOMEM, "no memory for a handle");
    rc = join_others(c, local, buffers, nbuffers, options, v);
    if (rc != PCOLL_OK) {
        if (v)
            vertex_destroy(&v);
        free(h);
        return rc;
    }
    *h = (pcoll_handle){.entry = {.begin_end = handle_begin_end,
                                  .end = handle_end,
                                  .slot = v->base.slot},
                        .context = c,
                        .vertex = v};
    runtime_add(&h->entry);
    *handle = h;
    return PCOLL_OK;
}

int pcoll_memory_estimate(uint32_t ranks, const pcoll_buffer *buffers, int32_t nbuffers,
                          const pcoll_options *options, uint64_t *bytes)
{
    struct round_shape shape;
    int rc = options_check(options);
    if (rc == PCOLL_OK)
        rc = round_shape_init(&shape, ranks, buffers, nbuffers);
    if (rc != PCOLL_OK)
        return rc;
    *bytes =
        domain_single_bytes(&shape, options) + vertex_bytes(&shape, &options->policy);
    round_shape_destroy(&shape);
    return PCOLL_OK;
}

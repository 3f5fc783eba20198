/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks come to share memory: the leader of each domain makes a segment, tells all
 * which file it is, and the members open it. Each then reserves its own part, and all
 * agree that all could.
 */
#include "sharing.h"

#include <stdlib.h>
#include <unistd.h>

#include "../base/error.h"
#include "../domain/node.h"
#include "agree.h"

/* A native handle leaves everything to the vendor; a record is of single ranks. */
const uint64_t *sharing_hosts(const struct context *c, const pcoll_options *options)
{
    bool alone = options->domain == PCOLL_DOMAIN_RANK ||
                 options->algorithm == PCOLL_ALGORITHM_NATIVE || arrivals_wanted();
    return alone ? NULL : c->transport->hosts;
}

static struct bell_page *bell_of(const struct vertex *v, uint32_t rank)
{
    const struct transport *t = v->context->transport;
    return rank == t->rank ? progress_bell(v->context->progress)->page : t->bells[rank];
}

static void wake(void *arg, uint32_t rank)
{
    bell_wake_waiters(bell_of(arg, rank));
}

static void alert(void *arg, uint32_t rank)
{
    struct vertex *v = arg;
    if (rank == v->context->transport->rank)
        context_kick(v->context, &v->base);
    else
        bell_ring(bell_of(v, rank));
}

static int64_t now(void *arg)
{
    return context_now(((struct vertex *)arg)->context);
}

static int open_segment(struct vertex *v, size_t bytes, uint64_t fd)
{
    uint32_t leader = v->plane.leader[v->plane.index];
    if (!fd)
        return fail(PCOLL_ENOMEM, "rank %u could not make the memory of its domain",
                    leader);
    return segment_open(v->context->transport->pids[leader], fd - 1, bytes,
                        bell_of(v, leader)->cookie, &v->segment);
}

static int reserve(struct vertex *v, const pcoll_options *options)
{
    int rc = PCOLL_OK;
    for (int part = 0; part < NODE_PARTS && rc == PCOLL_OK; part++) {
        size_t offset, bytes;
        node_part(&v->shape, options, &v->plane, (enum node_part)part, &offset, &bytes);
        rc = segment_reserve(&v->segment, offset, bytes);
    }
    return rc;
}

/* common: options as far as the memory depends on them. */
static int settle_node(struct vertex *v, const pcoll_options *options,
                       const pcoll_options *common, size_t bytes, uint64_t fd)
{
    int rc = v->plane.leads ? PCOLL_OK : open_segment(v, bytes, fd);
    if (rc == PCOLL_OK)
        rc = reserve(v, common);
    struct node_site site = {.memory = v->segment.memory,
                             .plane = &v->plane,
                             .slot = &v->base.slot,
                             .owned_sends = common->owned_send,
                             .arg = v,
                             .wake = wake,
                             .alert = alert,
                             .cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN),
                             .now = now};
    return rc == PCOLL_OK ? vertex_settle(v, options, domain_node_create, &site) : rc;
}

static int settle_single(struct vertex *v, const pcoll_options *options)
{
    return vertex_settle(v, options, domain_single_create,
                         &v->context->transport->rank);
}

static int share(struct context *c, struct vertex *v, const pcoll_options *options,
                 const pcoll_options *common)
{
    const struct plane *p = &v->plane;
    bool shares = p->members > 1;
    size_t bytes = shares ? node_bytes(&v->shape, common, p) : 0;
    int made =
        shares && p->leads
            ? segment_create(bytes, bell_of(v, c->transport->rank)->cookie, &v->segment)
            : PCOLL_OK;
    uint64_t *fds;
    int rc = agree_gather(c, (uint64_t)(v->segment.fd + 1), &fds);
    if (rc == PCOLL_OK) {
        uint64_t fd = fds[p->leader[p->index]];
        if (made == PCOLL_OK)
            made = shares ? settle_node(v, options, common, bytes, fd)
                          : settle_single(v, options);
        rc = agree_outcome(c, made);
    }
    free(fds);
    segment_sealed(&v->segment);
    return rc;
}

int sharing_settle(struct context *c, struct vertex *v, const pcoll_options *options)
{
    if (v->plane.domains == v->plane.ranks)
        return agree_outcome(c, settle_single(v, options));
    uint64_t owned = options->owned_send != 0;
    int rc = agree_max(c, &owned, 1);
    pcoll_options common = *options;
    common.owned_send = owned != 0;
    return rc == PCOLL_OK ? share(c, v, options, &common) : rc;
}

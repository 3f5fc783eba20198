/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks come to share memory: the leader of each domain makes a segment, tells all
 * which file it is, and the members open it. Each then reserves its own part, and all
 * agree that all could.
 */
#include "allreduce/sharing.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "domain/node.h"
#include "runtime/agreement.h"

/* A native handle leaves everything to the vendor. A record is of single ranks, and its
 * replay, which may run on other hosts, must add in the same order. */
void sharing_place(const struct communicator *c, const pcoll_options *options,
                   struct endpoint_spec *spec)
{
    bool unplaced = options->algorithm == PCOLL_ALGORITHM_NATIVE || event_log_wanted();
    spec->hosts = unplaced ? NULL : c->transport->hosts;
    spec->most = options->domain == PCOLL_DOMAIN_RANK ? 1 : options->domain_ranks;
}

static struct doorbell_page *doorbell_of(const struct endpoint *v, uint32_t rank)
{
    const struct transport *t = v->communicator->transport;
    return rank == t->rank ? progress_doorbell(v->communicator->progress)->page
                           : t->doorbells[rank];
}

static void wake(void *arg, uint32_t rank)
{
    doorbell_wake_waiters(doorbell_of(arg, rank));
}

static void alert(void *arg, uint32_t rank)
{
    struct endpoint *v = arg;
    if (rank == v->communicator->transport->rank)
        communicator_notify(v->communicator, &v->base);
    else
        doorbell_ring(doorbell_of(v, rank));
}

static int64_t now(void *arg)
{
    return communicator_now(((struct endpoint *)arg)->communicator);
}

/* Return the number of cores that the members of this rank's domain may use together: a
 * container or a batch system may give them fewer than the machine has. */
static uint32_t count_cores(const struct endpoint *v)
{
    const struct placement *p = &v->placement;
    const uint64_t *pids = v->communicator->transport->pids;
    cpu_set_t one, all;
    CPU_ZERO(&all);
    for (uint32_t i = 0; i < p->members; i++)
        if (sched_getaffinity((pid_t)pids[p->member[i]], sizeof one, &one) == 0)
            CPU_OR(&all, &all, &one);
    int cores = CPU_COUNT(&all);
    return (uint32_t)(cores ? cores : sysconf(_SC_NPROCESSORS_ONLN));
}

static int open_segment(struct endpoint *v, size_t bytes, uint64_t fd)
{
    uint32_t leader = v->placement.leader[v->placement.index];
    if (!fd)
        return fail(PCOLL_ENOMEM, "rank %u could not make the memory of its domain",
                    leader);
    return segment_open(v->communicator->transport->pids[leader], fd - 1, bytes,
                        doorbell_of(v, leader)->cookie, &v->segment);
}

static int reserve(struct endpoint *v, const pcoll_options *options)
{
    int rc = PCOLL_OK;
    for (int part = 0; part < NODE_PARTS && rc == PCOLL_OK; part++) {
        size_t offset, bytes;
        node_part(&v->shape, options, &v->placement, (enum node_part)part, &offset,
                  &bytes);
        rc = segment_reserve(&v->segment, offset, bytes);
    }
    return rc;
}

/* common: options as far as the memory depends on them. */
static int settle_node(struct endpoint *v, const pcoll_options *options,
                       const pcoll_options *common, size_t bytes, uint64_t fd)
{
    int rc = v->placement.leads ? PCOLL_OK : open_segment(v, bytes, fd);
    if (rc == PCOLL_OK)
        rc = reserve(v, common);
    struct node_hooks hooks = {.memory = v->segment.memory,
                               .placement = &v->placement,
                               .slot = &v->base.slot,
                               .owned_sends = common->owned_send,
                               .arg = v,
                               .wake = wake,
                               .alert = alert,
                               .cores = count_cores(v),
                               .now = now};
    return rc == PCOLL_OK ? endpoint_settle(v, options, domain_node_create, &hooks)
                          : rc;
}

static int settle_single(struct endpoint *v, const pcoll_options *options)
{
    return endpoint_settle(v, options, domain_single_create,
                           &v->communicator->transport->rank);
}

static int share(struct communicator *c, struct endpoint *v,
                 const pcoll_options *options, const pcoll_options *common)
{
    const struct placement *p = &v->placement;
    bool shares = p->members > 1;
    size_t bytes = shares ? node_bytes(&v->shape, common, p) : 0;
    int made = shares && p->leads
                   ? segment_create(bytes, doorbell_of(v, c->transport->rank)->cookie,
                                    &v->segment)
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

int sharing_settle(struct communicator *c, struct endpoint *v,
                   const pcoll_options *options)
{
    if (v->placement.domains == v->placement.ranks)
        return agree_outcome(c, settle_single(v, options));
    uint64_t owned = options->owned_send != 0;
    int rc = agree_max(c, &owned, 1);
    pcoll_options common = *options;
    common.owned_send = owned != 0;
    return rc == PCOLL_OK ? share(c, v, options, &common) : rc;
}

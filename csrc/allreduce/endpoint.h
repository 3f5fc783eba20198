/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One handle on one domain, seen from the fabric: schedule, engine, buffers, and the
 * decisions when the next round starts. Driven by one thread at a time; the application
 * reaches it through the domain and communicator_notify only.
 *
 * Every rank has one. Where ranks share a domain only its leader's drives rounds on the
 * fabric; the others', and all of them if there is one domain only, have a schedule
 * without messages that is never run, and take part in the closing.
 *
 * Life of a round t here:
 *   released   round t-1 is over and nobody's unread result is in the way
 *   started    the policy is met by our own members (N0), or an activation came
 *   frozen     the contributions of the members are taken: the round is active
 *   over       the engine is done, sends included: published, then t+1
 *
 * Closing (a collective), step by step:
 *   QUEUED    another handle of this communicator closes first: as OPEN.
 *   ENTERING  a barrier. Until it is over everything goes on as before: ranks that have
 *             left or joined still owe the others their part.
 *   COUNTING  this endpoint starts no more rounds. Agree on the most rounds that any
 *             endpoint has activated: each one's own starts lie before its count, so
 *             none is missed.
 *   REPORTS   only where rounds have coordinators: add up how many reports each
 *             endpoint has been sent; nobody sends any more.
 *   DRAINING  bring all of these rounds to their end, starting them where they have not
 *             been. Then send a last message on every activation edge, and wait for the
 *             one of every in-edge, and for all reports: after them nothing can come
 *             any more.
 *   CONFIRMING  only where the handle goes on when ranks die: a barrier. Who is past it
 *             may be gone when another one dies, but then nobody lacks a round.
 */
#ifndef PCOLL_ALLREDUCE_ENDPOINT_H
#define PCOLL_ALLREDUCE_ENDPOINT_H

#include "domain/placement.h"
#include "domain/segment.h"
#include "schedule/engine.h"
#include "allreduce/event_log.h"
#include "runtime/communicator.h"
#include "allreduce/data.h"
#include "allreduce/endpoint_trigger.h"

struct stall_answers; /* stall_answer.h */

enum closing {
    OPEN,
    QUEUED,
    ENTERING,
    COUNTING,
    REPORTS,
    DRAINING,
    CONFIRMING,
    CLOSED
};

struct endpoint {
    struct object base; /* first: found again from it */
    struct communicator *communicator;
    struct round_shape shape;
    struct domain *domain;
    struct placement placement;
    bool drives;            /* executes the schedule */
    struct segment segment; /* under the domain, if it is shared */
    pcoll_policy policy;
    uint64_t seed; /* of the draws, together with the slot */

    struct sched *sched;
    struct activation activation;
    struct engine engine;
    uint32_t gathering; /* operations that wait for the domain */
    bool frozen;        /* the current round is active here */
    uint32_t initiator; /* lowest member that started it, or ROUND_NOBODY */
    struct round_data data;
    struct channel *channel; /* native: opened by whoever makes the handle */
    uint64_t *live;          /* a set of ranks */
    struct endpoint_trigger trigger;

    struct agreement closing_agreement;
    uint64_t closing_rounds; /* rounds that must be over before the end */
    int64_t told;            /* alarm that the application has told the driver of */
    _Atomic int closing;
    bool last_sent;
    uint32_t last_received; /* a set of edges */
    bool confirms;          /* its closing ends with CONFIRMING */
    pcoll_options options;  /* as it was made with, for one that follows it */

    struct staging *staging;             /* NULL: the buffers are the host's */
    struct stall_answers *stall_answers; /* under the progress lock */
    struct event_log *event_log;         /* NULL: neither recorded nor replayed */
};

struct endpoint_spec {
    uint32_t ranks;        /* of the communicator */
    const uint64_t *hosts; /* by rank, as in placement.h; NULL: no two share memory */
    uint32_t most;         /* ranks in a domain; 0: any number */
    bool off_node;         /* as the transport's */
    const pcoll_buffer *buffers;
    int nbuffers;
    user_reduction_fn *make_user; /* for MPI's ops and datatypes; NULL: refused */
    const pcoll_options *options;
    domain_create_fn *create_domain; /* NULL: endpoint_settle comes later */
    void *domain_arg;
    /* It follows another one, which has stopped, without these ranks (a set); then no
     * buffers. */
    const struct endpoint *follows;
    const uint64_t *failed;
};

int endpoint_create(struct communicator *c, const struct endpoint_spec *spec,
                    struct endpoint **out);
/* Give it its domain. */
int endpoint_settle(struct endpoint *v, const pcoll_options *options,
                    domain_create_fn *create_domain, void *domain_arg);
/* Driver: begin to open the channel that the algorithm needs, if it does; to be used
 * when the transport says that it is open. Collective. */
int endpoint_open(struct endpoint *v);
void endpoint_destroy(struct endpoint **v);
/* The form of a handle's messages, and its algorithm. The shape is to be destroyed. */
int endpoint_lay_out(const struct endpoint_spec *spec,
                     const struct placement *placement, struct round_shape *shape,
                     struct algorithm_plan *plan);
/* Of one that follows `old`: rounds begin with this one, whose predecessor's message is
 * `last` (NULL: there is none). On all ranks before the first calls endpoint_inherit. A
 * newcomer has no old one: NULL. */
void endpoint_begin_at(struct endpoint *v, struct endpoint *old, uint64_t round,
                       const struct round_header *last);
/* Take over this rank's state and deposits. Its application is kept away meanwhile. Of a
 * newcomer: it has read none of the last rounds. */
int endpoint_inherit(struct endpoint *v, struct endpoint *old,
                     const struct round_header *last);
/* Bytes that an endpoint holds besides its domain. */
size_t endpoint_bytes(const struct round_shape *shape,
                      const struct algorithm_plan *plan, const pcoll_policy *policy);

/* Driver: the ranks whose arrivals the current round waits for; NULL: of any, or it has
 * started. */
const uint64_t *endpoint_awaited(struct endpoint *v);

/* Application: it has made a deposit. Sees to it that the driver looks, if there is
 * something in it for the driver. */
void endpoint_deposited(struct endpoint *v, enum deposit_outcome outcome);

/* Application, in shared memory only: do what there is to do. When it is to be looked
 * at again is told to the driver, once. */
void endpoint_help(struct endpoint *v);

/* Application or driver: something has changed that may let a round start. */
int endpoint_poll(struct endpoint *v, bool driver);

/* Driver: run what can be run. */
int endpoint_run(struct endpoint *v);

/* Driver: close, after the handles of this communicator that close already; on all
 * ranks in the same order. Over when closing is CLOSED. Idempotent. */
int endpoint_close(struct endpoint *v);

#endif

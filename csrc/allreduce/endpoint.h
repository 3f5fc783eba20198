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
#include "include/partialcoll.h"
#include "protocol/round_trigger.h"
#include "protocol/vote_count.h"
#include "runtime/communicator.h"
#include "schedule/engine.h"
#include "transport/transport.h"
#include "allreduce/data.h"
#include "allreduce/event_log.h"

/*
 * What an endpoint knows of the start of its current round: what its members have
 * brought is counted here; where a coordinator decides it is reported there, and the
 * coordinator counts what comes (protocol/vote_count.h). The decision itself is
 * protocol/round_trigger.h.
 *
 * A report is sent whenever it has grown, and carries the whole count. One for the next
 * round is kept, since its sender may be a round ahead; one for a round that has started
 * or is over is dropped. Timers: linger at the coordinator, deadline wherever somebody
 * has arrived.
 */

struct control_message;
struct endpoint;

struct endpoint_trigger {
    struct policy_round round; /* of the current round, if open */
    bool open;
    struct policy_report sent;     /* to the coordinator */
    struct vote_count votes[2];    /* of round r: votes[r % 2] */
    uint64_t *arrived, *deposited; /* sets of ranks */
    uint32_t *absences;            /* in a row, by rank; NULL: not counted */
    int64_t first_arrival, met;    /* times, or ROUND_NEVER */
    uint32_t first;                /* the rank whose arrival that was */
    uint64_t *reports_sent;        /* by endpoint; NULL where there are none */
    uint64_t reports_received;
};

int endpoint_trigger_init(struct endpoint *v);
void endpoint_trigger_destroy(struct endpoint *v);
size_t endpoint_trigger_bytes(const pcoll_policy *policy, uint32_t ranks,
                              uint32_t endpoints);

/* Shall the endpoint start the current round, which is released and not active? Sets
 * *start, and the initiator; reports to the coordinator; may set an alarm. */
int endpoint_trigger_evaluate(struct endpoint *v, bool *start);
/* Has the deadline of the current round passed for those who have arrived here? May set
 * an alarm. */
bool endpoint_trigger_deadline(struct endpoint *v);
/* A report of an endpoint came, of the current round, the next one, or one before. */
void endpoint_trigger_take(struct endpoint *v, const struct control_message *m);
/* The current round is over, with this header: say in it whether the policy was kept,
 * and count absences. Before the live set changes. */
void endpoint_trigger_finish(struct endpoint *v, struct round_header *result);

/* Are reports still under way to this endpoint, when all have been sent? */
bool endpoint_trigger_reports_missing(const struct endpoint *v);

/* The ranks whose arrivals start the current round; NULL: those of any. */
const uint64_t *endpoint_trigger_awaited(struct endpoint *v);

struct stall_answers; /* control.h */

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

extern const struct object_ops endpoint_ops;

/* It is this one's turn to close: the barrier begins. */
int endpoint_enter_closing(struct endpoint *v);
/* Next step of closing, if the agreement of the last one is over. */
int endpoint_continue_closing(struct endpoint *v);
/* All rounds are over: the last messages. */
int endpoint_drain(struct endpoint *v);

/* The schedule of a handle in GOAL. */

/* A byte that is copied or reduced takes so many nanoseconds. malloc'ed. */
char *endpoint_goal(const struct endpoint *v, double ns_per_byte);

/* What a handle may be asked for. */

/* PCOLL_EINVAL names the option that is impossible and its range. */
int options_check(const pcoll_options *options);
/* With less memory where that changes nothing but how long a rank that joins may take
 * to read a round before the others wait for it. */
pcoll_options options_thrifty(const pcoll_options *o);

#endif

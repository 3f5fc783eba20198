/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint: one handle on one domain, seen from the fabric. It has the schedule, the engine,
 * the buffers, and the decision when the next round starts. One thread at a time, the driver,
 * uses it. The application reaches it through the domain and communicator_notify only.
 *
 * Every rank has an endpoint. Where ranks share a domain, only the leader's endpoint drives
 * rounds on the fabric. The endpoints of the other members, and all endpoints if there is only
 * one domain, have a schedule without messages that never runs, and take part in the closing.
 *
 * A round t passes through these states here:
 *   released   round t-1 is over, and no result that a member has not read is in the way
 *   started    the own members meet the policy, or an activation arrived
 *   frozen     the contributions of the members are taken: the round is active
 *   over       the engine is done, sends included: the result is published, t+1 follows
 *
 * Closing (a collective) takes these steps:
 *   QUEUED    some rank has not freed the handle, or another handle of this communicator closes
 *             first. Otherwise as OPEN: ranks that have left or joined still owe the others their
 *             part.
 *   ENTERING  all ranks have freed the handle (the vote, runtime/communicator.h). Otherwise as OPEN
 *             until all questions of this endpoint (control.h) are answered. It asks no more then.
 *   COUNTING  only with several domains: start no more rounds. The ranks agree on the most rounds
 *             that any endpoint has activated. The starts of each endpoint lie before its own
 *             count, so none is missed.
 *   REPORTS   only where rounds have coordinators: add up how many reports each endpoint has
 *             been sent. No endpoint sends any more.
 *   DRAINING  complete all of these rounds, starting them where they have not been started.
 *             Then send a last message on every activation edge, and wait for the last message
 *             on every edge to this endpoint and for all reports. Nothing can arrive after them.
 *   CONFIRMING  only where the handle continues when ranks die: a barrier. A rank past it may be
 *             gone when another one dies, but then no rank lacks a round.
 */
#pragma once

#include "domain/node.h"
#include "protocol/policy.h"
#include "runtime/communicator.h"
#include "allreduce/data.h"
#include "allreduce/event_log.h"

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

/*
 * An endpoint's state on the start of its current round. It counts the deposits of its own
 * members. If a coordinator decides, the endpoint reports this count to the coordinator, which
 * adds up the reports (protocol/policy.h decides then, too).
 *
 * An endpoint sends a report whenever its count has grown; a report carries the whole count. A
 * report for the next round is kept, because its sender may be a round ahead. A report for a
 * round that has started or is over is dropped. Linger is timed by the coordinator, the deadline
 * by every endpoint with an arrival.
 */
struct endpoint_trigger {
    struct policy_round round; /* What the current round asks for, if `open`. */
    bool open;
    struct policy_report sent;  /* The last report to the coordinator. */
    struct vote_count votes[2]; /* The votes of round r are votes[r % 2]. */
    /* Sets as those of `round`, all in one block of memory with the arrays below. */
    uint64_t *live, *arrived, *deposited;
    uint32_t *absences; /* Rounds missed in a row, by rank. NULL: they do not matter. */
    int64_t first_arrival, met; /* Times, or ROUND_NEVER. */
    uint32_t first;             /* The rank that arrived at first_arrival. */
    uint64_t *reports_sent;     /* By endpoint. NULL: rounds have no coordinators. */
    uint64_t reports_received;
};

struct endpoint {
    struct object base; /* First, so that the endpoint is found from it. */
    struct communicator *communicator;
    struct round_shape shape;
    struct domain *domain;
    struct placement placement;
    bool drives;            /* This endpoint executes the schedule. */
    struct segment segment; /* The memory of the domain, if it is shared. */
    pcoll_options options;  /* As given at creation. */

    struct sched *sched;
    struct activation activation;
    struct engine engine;
    uint32_t gathering; /* Number of operations that wait for the domain. */
    bool frozen;        /* The current round is active here. */
    uint32_t initiator; /* Lowest member that started the round, or ROUND_NOBODY. */
    struct round_data data;
    struct channel *channel; /* Of a native handle: opened by endpoint_open. */
    struct endpoint_trigger trigger;

    struct agreement closing_agreement;
    uint64_t closing_rounds; /* Rounds that must be over before the end. */
    int64_t alarm_given;     /* Alarm that the application has given to the driver. */
    _Atomic int closing;     /* enum closing */
    bool last_sent;          /* The last messages of the closing were sent. */
    uint32_t last_received;  /* Set of edges on which the last message arrived. */

    struct staging *staging;             /* NULL: the buffers are on the host. */
    struct stall_answers *stall_answers; /* Protected by the drive lock. */
    uint32_t unanswered; /* Answers that this endpoint still expects. As above. */
    struct event_log *event_log; /* NULL: neither recorded nor replayed. */
};

struct endpoint_spec {
    uint32_t ranks; /* Size of the communicator. */
    const uint64_t
        *hosts;    /* By rank, as in placement.h. NULL: no ranks share memory. */
    uint32_t most; /* Maximum number of ranks in a domain. 0: no limit. */
    bool off_node; /* As in the transport. */
    const pcoll_buffer *buffers;
    int nbuffers;
    user_reduction_fn *make_user; /* For MPI ops and datatypes. NULL: refuse them. */
    const pcoll_options *options;
    /* The endpoint that this one succeeds, which has stopped; then there are no buffers. */
    const struct endpoint *follows;
    const uint64_t *failed; /* Set of ranks that have died. NULL: none. */
};

/* endpoint_create.c */

/* Check the options. PCOLL_EINVAL names the wrong option and its range. */
int options_check(const pcoll_options *options);
/* Return options that take less memory. They change nothing but how long a rank that joins may
 * take to read a round before the others wait for it. */
pcoll_options options_thrifty(const pcoll_options *o);

/* Make an endpoint without a domain. */
int endpoint_create(struct communicator *c, const struct endpoint_spec *spec,
                    struct endpoint **out);
/* Give the endpoint its domain; the second function, one in private memory. */
int endpoint_settle(struct endpoint *endpoint, domain_create_fn *create_domain,
                    void *arg);
int endpoint_settle_alone(struct endpoint *endpoint);
/* Driver: begin to open the channel, if the algorithm needs one. The channel may be used when
 * the transport says that it is open. Collective. */
int endpoint_open(struct endpoint *endpoint);
void endpoint_destroy(struct endpoint **endpoint);
/* Determine the form of a handle's messages and its algorithm. The caller destroys the shape. */
int endpoint_lay_out(const struct endpoint_spec *spec,
                     const struct placement *placement, struct round_shape *shape,
                     struct algorithm_plan *plan);
/* Begin a successor at this round. `last` is the message of the round before (NULL: none). All
 * ranks call this before the first one calls endpoint_inherit. `old` is NULL on a joining rank. */
void endpoint_begin_at(struct endpoint *endpoint, struct endpoint *old, uint64_t round,
                       const struct round_header *last);
/* Copy state and deposits of this rank from `old`. The caller keeps the application away. A
 * joining rank (`old` is NULL) has read none of the last rounds. */
int endpoint_inherit(struct endpoint *endpoint, struct endpoint *old,
                     const struct round_header *last);
/* Return the bytes that an endpoint takes besides its domain. */
size_t endpoint_bytes(const struct round_shape *shape,
                      const struct algorithm_plan *plan, const pcoll_policy *policy);

/* endpoint.c */

int endpoint_trigger_init(struct endpoint *endpoint);
/* Return the bytes that it takes. */
size_t endpoint_trigger_bytes(const pcoll_policy *policy, uint32_t ranks,
                              uint32_t endpoints, size_t words);
/* Find out who is live after the round with this header (NULL: before the first one). */
void endpoint_trigger_find_live(struct endpoint *endpoint,
                                const struct round_header *last);

extern const struct object_ops endpoint_ops;

/* Driver: return the ranks whose arrivals the current round waits for, or NULL if any rank will
 * do or the round has started. */
const uint64_t *endpoint_awaited(struct endpoint *endpoint);
/* Application: a deposit has been made. Notify the driver, if the deposit concerns it. */
void endpoint_deposited(struct endpoint *endpoint, enum deposit_outcome outcome);
/* Application, in shared memory only: help with the round. Notify the driver, once, of the time
 * when the endpoint must be polled again. */
void endpoint_help(struct endpoint *endpoint);
/* Application or driver: something has changed that may let a round start. */
void endpoint_poll(struct endpoint *endpoint, bool driver);
/* Driver: run what can be run. */
int endpoint_run(struct endpoint *endpoint);
/* Driver: close, after the handles of this communicator that close already. All ranks close in
 * the same order. The endpoint has closed when `closing` is CLOSED. Idempotent. */
int endpoint_close(struct endpoint *endpoint);

/* Print the schedule in GOAL (sched_goal), for a round to which all contribute. */
int endpoint_goal(const struct endpoint *endpoint, double ns_per_byte, char **text);

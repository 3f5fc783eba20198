/* SPDX-License-Identifier: Apache-2.0 */
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
#ifndef PCOLL_ALLREDUCE_ENDPOINT_TRIGGER_H
#define PCOLL_ALLREDUCE_ENDPOINT_TRIGGER_H

#include "protocol/round_trigger.h"
#include "protocol/vote_count.h"
#include "transport/transport.h"

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

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When does the current round start at this vertex? What its members have brought is
 * counted here; where a coordinator decides it is reported there, and the coordinator
 * adds up what comes.
 *
 * A report is sent whenever it has grown, and carries the whole count, so the
 * coordinator keeps the largest of each vertex: reports that overtake each other do no
 * harm. One for the next round is kept, since its sender may be a round ahead; one for
 * a round that has started or is over is dropped. Timers: linger at the coordinator,
 * deadline wherever somebody has arrived.
 */
#ifndef PCOLL_ALLREDUCE_STARTING_H
#define PCOLL_ALLREDUCE_STARTING_H

#include "../protocol/policy.h"
#include "../transport/transport.h"

struct vertex;

/* What a coordinator has been told about a round. */
struct tally {
    struct policy_report *of_vertex; /* NULL where no coordinator is needed */
    struct policy_report total;
    uint32_t last; /* lowest rank there of the vertex that reported last */
};

struct starting {
    struct policy_round round; /* of the current round, if open */
    bool open;
    struct policy_report sent;     /* to the coordinator */
    struct tally tally[2];         /* of round r: tally[r % 2] */
    uint64_t *arrived, *deposited; /* sets of ranks */
    uint32_t *absences;            /* in a row, by rank; NULL: not counted */
    int64_t first_arrival, met;    /* times, or NEVER */
    uint32_t first_rank;           /* whose arrival that was */
    uint64_t *tokens_sent;         /* by vertex; NULL where there are none */
    uint64_t tokens_received;
};

int starting_init(struct vertex *v);
void starting_destroy(struct vertex *v);
size_t starting_bytes(const pcoll_policy *policy, uint32_t ranks, uint32_t vertices);

/* Shall the vertex start the current round, which is released and not active? Sets
 * *start, and the initiator; reports to the coordinator; may set an alarm. */
int starting_look(struct vertex *v, bool *start);
/* Has the deadline of the current round passed for those who have arrived here? May set
 * an alarm. */
bool starting_deadline_over(struct vertex *v);
/* A report of a vertex came. */
int starting_take(struct vertex *v, uint32_t vertex, const struct control *message);
/* The current round is over, with this header: say in it whether the policy was kept,
 * and count absences. Before the live set changes. */
void starting_finish(struct vertex *v, struct round_header *result);

/* The ranks whose arrivals start the current round; NULL: those of any. */
const uint64_t *starting_awaited(struct vertex *v);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a round may start: the policies of docs/semantics.md, as pure functions of who
 * is live and who has arrived.
 *
 *   solo         any live rank arrives                               (PPoPP 2020, 4.1)
 *   majority     one rank, drawn per round by all alike, arrives     (PPoPP 2020, 4.2)
 *   first_of(m)  the first of m drawn ranks arrives
 *   last_of(m)   the last of m drawn ranks arrives
 *   quorum(Q)    Q ranks have arrived
 *   full         all live ranks have arrived: an ordinary allreduce
 *
 * What one endpoint can see for itself it decides alone. What has to be counted
 * (quorum, last_of, and everything with linger or max_staleness) goes through a
 * coordinator, an endpoint drawn per round, to which the others report. Reports are
 * cumulative.
 */
#ifndef PCOLL_PROTOCOL_POLICY_H
#define PCOLL_PROTOCOL_POLICY_H

#include <stdbool.h>

#include "base/bitset.h"
#include "include/partialcoll.h"
#include "protocol/round.h"

/* What a round asks for; the same on all ranks, from the rounds before it. */
struct policy_round {
    uint32_t ranks;       /* of the communicator */
    uint32_t coordinator; /* an endpoint */
    const uint64_t *live; /* ranks that take part */
    uint64_t *drawn;      /* live ranks that were drawn */
    uint64_t *overdue;    /* live ranks absent for max_staleness rounds */
    uint32_t live_count, drawn_count, overdue_count;
};

/* How many live ranks have come: of an endpoint, or of all together. */
struct policy_report {
    uint32_t arrived; /* at the open round */
    uint32_t drawn;   /* of the drawn ones */
    uint32_t overdue; /* of the overdue ones: with a deposit, even if only stored */
};

/* Where the draws of a handle come from. */
struct policy_draw {
    uint64_t stream;
    uint64_t round;
    uint32_t endpoints;
};

/* PCOLL_EINVAL names what is impossible among so many ranks, and the range. */
int policy_check(const struct pcoll_policy *policy, uint32_t ranks);

/* Find out what a round asks for. round has ranks, live and room for the two sets;
 * absences[i] are the rounds that rank i has missed in a row (NULL: not counted). */
void policy_open(const struct pcoll_policy *policy, const struct policy_draw *draw,
                 const uint32_t *absences, struct policy_round *round);

/* Count who has come: sets of ranks, those that have arrived and those with a deposit.
 */
struct policy_report policy_count(const struct policy_round *round,
                                  const uint64_t *arrived, const uint64_t *deposited);

/* What of a report matters: where ranks are drawn and nobody lingers until all are
 * there, the others need not report. */
struct policy_report policy_relevant(const struct pcoll_policy *policy,
                                     struct policy_report report);
/* Are ranks drawn, one of which starts the round? */
bool policy_draws(const struct pcoll_policy *policy);

/* Does it need somebody who looks at the time? */
bool policy_has_timers(const struct pcoll_policy *policy);

/* Does a coordinator decide? */
bool policy_coordinated(const struct pcoll_policy *policy);
/* Does the endpoint that starts have to activate the others? (Under full all start by
 * themselves, unless a deadline cuts them short.) */
bool policy_activates(const struct pcoll_policy *policy);
/* Does every endpoint start when its own members are there? */
bool policy_starts_alone(const struct pcoll_policy *policy);

/* May the round start? `report` is of all endpoints if a coordinator decides, else of
 * this one, whose ranks are `members`. */
bool policy_met(const struct pcoll_policy *policy, const struct policy_round *round,
                const struct policy_report *report, const uint64_t *members);

/* Have all live ranks arrived, by a report of all endpoints? */
bool policy_all_arrived(const struct policy_round *round,
                        const struct policy_report *report);

/* A round is over, with this header: was the policy met after all? */
bool policy_kept(const struct pcoll_policy *policy, const struct policy_round *round,
                 const struct round_header *header);

/* The ranks whose arrivals start the round; NULL: those of any. */
const uint64_t *policy_awaited(const struct pcoll_policy *policy,
                               const struct policy_round *round);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a round may start: the policies, as pure functions of live ranks and arrivals.
 *
 *   solo         any live rank has arrived                              (PPoPP 2020, 4.1)
 *   majority     one rank, drawn for the round, has arrived             (PPoPP 2020, 4.2)
 *   first_of(m)  the first of m drawn ranks has arrived
 *   last_of(m)   the last of m drawn ranks has arrived
 *   quorum(Q)    Q ranks, or this fraction of all ranks, have arrived
 *   full         all live ranks have arrived: an ordinary allreduce
 *
 * An endpoint decides alone what it can see for itself. What has to be counted (quorum,
 * last_of, and every policy with linger or max_staleness) goes through a coordinator: an
 * endpoint, drawn for the round, to which the others report. Draws are the same on all ranks.
 *
 * There is no I/O. Times are given in nanoseconds of any one clock; the time at which to decide
 * again is returned as an alarm.
 */
#pragma once

#include "include/partialcoll.h"
#include "protocol/round.h"

/* The requirements of a round, which follow from earlier ones: they are the same on all ranks. */
struct policy_round {
    uint32_t ranks;       /* Ranks of the communicator. */
    uint32_t coordinator; /* The endpoint that counts. */
    const uint64_t *live; /* The set of ranks that take part. */
    uint64_t *drawn;      /* The set of live ranks that were drawn. */
    uint64_t *overdue;    /* The set of live ranks absent for max_staleness rounds. */
    uint32_t live_count, drawn_count, overdue_count;
    uint32_t own_count; /* The live ranks of this endpoint. */
    /* All sets, and the sets of arrivals, have this many words, from this word of a set of all
     * ranks on. */
    uint32_t first_word, words;
};

/* Counts of live ranks, at one endpoint or at all of them together. */
struct policy_report {
    uint32_t arrived; /* Ranks that arrived at the open round. */
    uint32_t drawn;   /* The drawn ones among them. */
    uint32_t overdue; /* Overdue ranks with a deposit, even if it is only stored. */
};

/* The values that the draws of a round depend on. */
struct policy_draw {
    uint64_t seed;
    uint32_t slot; /* The number of the handle on its communicator. */
    uint64_t round;
    uint32_t endpoints;
};

/* Check a policy for this number of ranks. PCOLL_EINVAL names what is impossible. */
int policy_check(const struct pcoll_policy *policy, uint32_t ranks);
/* Return whether the sets must have all ranks. Otherwise those of this endpoint are enough. */
bool policy_takes_all(const struct pcoll_policy *policy);
/* Find out what a round requires. The caller sets ranks, words and live, with the counts of live
 * ranks, and provides memory for the two other sets. absences[i] is the number of rounds in a row
 * that rank i has missed (NULL: not counted). */
void policy_open(const struct pcoll_policy *policy, const struct policy_draw *draw,
                 const uint32_t *absences, struct policy_round *round);

/* Count the ranks of two sets: those that have arrived, and those with a deposit. */
struct policy_report policy_count(const struct policy_round *round,
                                  const uint64_t *arrived, const uint64_t *deposited);

/* Return the part of a report that matters: drawn ranks only, if no linger waits for others. */
struct policy_report policy_relevant(const struct pcoll_policy *policy,
                                     struct policy_report report);
/* Return whether the policy depends on time. */
static inline bool policy_has_timers(const struct pcoll_policy *policy)
{
    return policy->linger > 0 || policy->deadline > 0;
}

/* Return whether a coordinator decides. */
bool policy_coordinated(const struct pcoll_policy *policy);
/* Return whether the endpoint that starts has to activate the others. With full all start by
 * themselves, unless a deadline ends the wait. */
bool policy_activates(const struct pcoll_policy *policy);
/* Return whether every endpoint starts when its own members have arrived. */
bool policy_starts_alone(const struct pcoll_policy *policy);
/* Return whether the round may start. `report` is as in struct round_state. */
bool policy_met(const struct pcoll_policy *policy, const struct policy_round *round,
                const struct policy_report *report);
/* Return whether a complete round with this header met the policy; room for two full sets. */
bool policy_kept(const struct pcoll_policy *policy, const struct policy_round *round,
                 const struct round_header *header, uint64_t *arrived,
                 uint64_t *active);
/* Return the set of ranks whose arrivals start the round; NULL: any rank's. */
const uint64_t *policy_awaited(const struct pcoll_policy *policy,
                               const struct policy_round *round);

/*
 * The counts of a coordinator: how many ranks have arrived at each endpoint, and at all
 * together. A report carries the whole count of its endpoint and is sent whenever that has
 * grown. The largest counts are kept, so the order of reports does not matter.
 */

struct vote_count {
    struct policy_report *of_endpoint; /* By endpoint, memory of the owner; NULL: there
                                          are no reports. */
    uint32_t endpoints;
    struct policy_report total;
    uint32_t last; /* The lowest rank that arrived at the last endpoint to report. */
};

/* Initialize. of_endpoint has room for `endpoints` reports. */
void vote_count_init(struct vote_count *count, struct policy_report *of_endpoint,
                     uint32_t endpoints);
/* Add a report. `rank` may have started the round; or it is ROUND_NOBODY. */
void vote_count_add(struct vote_count *count, uint32_t endpoint,
                    const struct policy_report *report, uint32_t rank);
/* Clear the counts for another round. */
void vote_count_clear(struct vote_count *count);
/* Return whether one report counts more than another. */
bool vote_count_grown(const struct policy_report *now,
                      const struct policy_report *before);

/*
 * The decision when a round starts. It is made by each member of a domain without a
 * fabric, by each endpoint that starts alone, or by the coordinator. A round is opened
 * once. Then the decision is evaluated whenever a count has changed.
 */

/* The time of events that never happen. */
#define ROUND_NEVER INT64_MAX

/* The known state of an open round. */
struct round_state {
    const struct policy_report *report; /* Of all endpoints if a coordinator decides,
                                           otherwise of this one. */
    uint32_t starter;      /* The lowest rank whose arrival may start the round. */
    uint32_t first;        /* The rank that arrived first. */
    int64_t first_arrival; /* When it arrived, or ROUND_NEVER. */
    int64_t met_since;     /* When the policy was met, as far as known; ROUND_NEVER. */
    int64_t now;           /* Not read if the policy has no timers. */
};

struct round_trigger {
    bool start;
    uint32_t initiator; /* The rank that starts the round. */
    int64_t met_since;  /* To be passed to the next evaluation. */
    int64_t alarm;      /* When to evaluate again; ROUND_NEVER: after a change. */
};

/* Decide whether the policy is met and the linger has passed. */
struct round_trigger round_trigger_evaluate(const struct pcoll_policy *policy,
                                            const struct policy_round *round,
                                            const struct round_state *state);

/* Decide whether the first rank has waited longer than the deadline. */
struct round_trigger round_trigger_deadline(const struct pcoll_policy *policy,
                                            const struct round_state *state);
/* Return the lowest of these ranks whose arrival may start the round, or ROUND_NOBODY. */
uint32_t round_trigger_starter(const struct pcoll_policy *policy,
                               const struct policy_round *round,
                               const uint64_t *arrived);
/* After a round, before the live set changes: return how many in a row a rank has missed. */
uint32_t round_absences(uint32_t before, bool active, bool live);

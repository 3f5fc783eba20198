/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When does a round start? The one decision, of whoever may start it: each member of a
 * domain without a fabric, each endpoint that starts alone, the coordinator where one
 * counts. What a round asks for is opened once; then whatever has been counted is put to
 * it, as often as something has changed.
 *
 * Pure: times are given, in nanoseconds of whatever clock, and what is to be looked at
 * again later comes back as an alarm.
 */
#ifndef PCOLL_PROTOCOL_ROUND_TRIGGER_H
#define PCOLL_PROTOCOL_ROUND_TRIGGER_H

#include "protocol/policy.h"

/* A time that has not come. */
#define ROUND_NEVER INT64_MAX

/* What a round of this handle asks for, among so many endpoints. `round` has ranks, live
 * and room for the two sets. */
struct round_draw {
    uint64_t seed;
    uint32_t slot; /* of the handle */
    uint64_t round;
    uint32_t endpoints;
};
void round_trigger_open(const struct pcoll_policy *policy,
                        const struct round_draw *draw, const uint32_t *absences,
                        struct policy_round *round);

/* What is known of an open round. */
struct round_state {
    const struct policy_report *report; /* of all endpoints if a coordinator decides */
    const uint64_t *members; /* of this endpoint; NULL if a coordinator decides */
    uint32_t starter;        /* the lowest rank whose arrival can have started it */
    uint32_t first;          /* the rank that arrived first … */
    int64_t first_arrival;   /* … and when, or ROUND_NEVER */
    int64_t met_since;       /* the policy, as far as is known, or ROUND_NEVER */
    int64_t now;             /* anything where the policy has no timers */
};

struct round_trigger {
    bool start;
    uint32_t initiator; /* of the round that starts: a rank */
    int64_t met_since;  /* to be given next time */
    int64_t alarm;      /* look again then; ROUND_NEVER: when something has changed */
};

/* Is the policy met, and has it lingered for the others? */
struct round_trigger round_trigger_evaluate(const struct pcoll_policy *policy,
                                            const struct policy_round *round,
                                            const struct round_state *state);

/* Has somebody waited for longer than the deadline? */
struct round_trigger round_trigger_deadline(const struct pcoll_policy *policy,
                                            const struct round_state *state);

/* The lowest rank among these whose arrival can have started the round. */
uint32_t round_trigger_starter(const struct pcoll_policy *policy,
                               const struct policy_round *round,
                               const uint64_t *arrived);

/* A round is over: how many has this rank missed in a row? Before the live set changes.
 */
uint32_t round_absences(uint32_t before, bool active, bool live);

#endif

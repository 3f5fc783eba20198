/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the coordinator of a round has been told: how many ranks have come at each
 * endpoint, and at all of them together.
 *
 * A report carries the whole count of its endpoint and is sent whenever that has grown,
 * so the largest is kept: reports that overtake each other do no harm.
 */
#ifndef PCOLL_PROTOCOL_VOTE_COUNT_H
#define PCOLL_PROTOCOL_VOTE_COUNT_H

#include "protocol/policy.h"

struct vote_count {
    struct policy_report *of_endpoint; /* the owner's; NULL: nobody is told anything */
    uint32_t endpoints;
    struct policy_report total;
    uint32_t last; /* lowest rank there of the endpoint that reported last */
};

/* of_endpoint has room for so many. */
void vote_count_init(struct vote_count *count, struct policy_report *of_endpoint,
                     uint32_t endpoints);
/* `rank` is one that may have started the round, or ROUND_NOBODY. */
void vote_count_add(struct vote_count *count, uint32_t endpoint,
                    const struct policy_report *report, uint32_t rank);
/* For another round. */
void vote_count_clear(struct vote_count *count);

/* Does one report say more than another? */
bool vote_count_grown(const struct policy_report *now,
                      const struct policy_report *before);

#endif

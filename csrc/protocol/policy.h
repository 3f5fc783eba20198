/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a round may start: the policies of docs/semantics.md, as pure functions of who
 * is live and who has arrived.
 *
 *   solo      any live rank arrives                                  (PPoPP 2020, 4.1)
 *   majority  one rank, drawn per round by all ranks alike, arrives  (PPoPP 2020, 4.2)
 *   full      all live ranks arrive: an ordinary allreduce
 *
 * To add a policy: a row in `table` of policy.c.
 */
#ifndef PCOLL_PROTOCOL_POLICY_H
#define PCOLL_PROTOCOL_POLICY_H

#include <stdbool.h>

#include "../base/bitset.h"
#include "../include/partialcoll.h"

/* What a vertex (the ranks of one domain) knows when it asks whether to start a round.
 */
struct policy_view {
    uint32_t ranks;          /* of the communicator */
    const uint64_t *live;    /* ranks that take part */
    const uint64_t *members; /* ranks of this vertex */
    const uint64_t *arrived; /* members that have arrived at the open round */
    uint64_t stream;         /* of the draws; the same on all ranks */
    uint64_t round;
};

/* May this vertex start the round of its own accord? */
bool policy_met(const struct pcoll_policy *policy, const struct policy_view *view);

/* Does the vertex that starts have to activate the others? (Under full all start.) */
bool policy_activates(const struct pcoll_policy *policy);

/* The one rank without which the round does not start, or -1 if it is not one. */
int policy_awaited(const struct pcoll_policy *policy, const struct policy_view *view);

/* The rank drawn for a round: uniform, or the next live one after it; -1 without any.
 */
int policy_drawn(const struct policy_view *view);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "allreduce/options.h"

#include <stdbool.h>

#include "base/error.h"
#include "protocol/policy.h"
#include "allreduce/event_log.h"
#include "runtime/user_object.h"

void pcoll_options_init(pcoll_options *options)
{
    if (!options)
        return;
    *options = (pcoll_options){
        .policy.kind = PCOLL_SOLO,
        .algorithm = PCOLL_ALGORITHM_AUTO,
        .deliver = PCOLL_DELIVER_ONE,
        .late = PCOLL_LATE_CARRY,
        .progress = PCOLL_PROGRESS_AGENT,
        .history = 8,
        .domain = PCOLL_DOMAIN_NODE,
    };
}

static int check_failure(const pcoll_options *o)
{
    int rc = user_object_check_failure(o->on_failure, o->progress);
    if (rc != PCOLL_OK || o->on_failure == PCOLL_FAILURE_RAISE)
        return rc;
    if (o->algorithm == PCOLL_ALGORITHM_NATIVE)
        return fail(
            PCOLL_EINVAL,
            "on_failure: \"continue\" cannot take back what algorithm \"native\" "
            "has left to MPI; use another one");
    if (o->device)
        return fail(PCOLL_EINVAL,
                    "on_failure: \"continue\" is for buffers of the host only");
    if (event_log_wanted())
        return fail(PCOLL_EINVAL, "on_failure: \"continue\" cannot be recorded or "
                                  "replayed: when ranks die is not in the record");
    return PCOLL_OK;
}

int options_check(const pcoll_options *o)
{
    if (o->invalid)
        return fail(PCOLL_EINVAL, "invalid arguments");
    char text[256]; /* the longest has 130 */
    int rc = pcoll_policy_format(&o->policy, text, sizeof text);
    if (rc != PCOLL_OK)
        return rc;
    if (o->history < 1 || o->history > 1u << 20)
        return fail(PCOLL_EINVAL, "history: expected 1 to %u rounds, got %u", 1u << 20,
                    o->history);
    if (o->deliver < PCOLL_DELIVER_ONE || o->deliver > PCOLL_DELIVER_ALL)
        return fail(PCOLL_EINVAL, "deliver: unknown value %d", o->deliver);
    if (o->algorithm < PCOLL_ALGORITHM_AUTO || o->algorithm > PCOLL_ALGORITHM_NATIVE)
        return fail(PCOLL_EINVAL, "algorithm: unknown value %d", o->algorithm);
    if (o->domain < PCOLL_DOMAIN_NODE || o->domain > PCOLL_DOMAIN_AUTO)
        return fail(PCOLL_EINVAL, "domain: unknown value %d", o->domain);
    if (o->late < PCOLL_LATE_CARRY || o->late > PCOLL_LATE_DROP)
        return fail(PCOLL_EINVAL, "late: unknown value %d", o->late);
    if (o->progress < PCOLL_PROGRESS_AGENT || o->progress > PCOLL_PROGRESS_SPIN)
        return fail(PCOLL_EINVAL, "progress: unknown value %d", o->progress);
    if (o->progress == PCOLL_PROGRESS_MANUAL && policy_has_timers(&o->policy))
        return fail(PCOLL_EINVAL,
                    "progress: linger and deadline need the agent, and manual progress "
                    "has none");
    return check_failure(o);
}

/* Where all arrive at every round and are given every round, none can be two rounds
 * behind: one result to read and one to build are enough, and they stay in the cache.
 */
pcoll_options options_thrifty(const pcoll_options *o)
{
    pcoll_options thrifty = *o;
    bool all_arrive = o->policy.kind == PCOLL_FULL && o->policy.deadline <= 0;
    if (all_arrive && o->deliver == PCOLL_DELIVER_ONE)
        thrifty.history = 1;
    return thrifty;
}

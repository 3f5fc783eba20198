/* SPDX-License-Identifier: Apache-2.0 */
/* The table of policies and its text form. */
#include "policy.h"

#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../base/splitmix.h"

int policy_drawn(const struct policy_view *view)
{
    uint32_t first = splitmix_below(view->stream, view->round, view->ranks);
    for (uint32_t i = 0; i < view->ranks; i++) {
        uint32_t rank = (first + i) % view->ranks;
        if (bitset_has(view->live, rank))
            return (int)rank;
    }
    return -1;
}

static bool any_arrived(const struct policy_view *view)
{
    for (size_t i = 0; i < bitset_words(view->ranks); i++)
        if (view->arrived[i] & view->live[i])
            return true;
    return false;
}

static bool drawn_arrived(const struct policy_view *view)
{
    int drawn = policy_drawn(view);
    return drawn >= 0 && bitset_has(view->arrived, (uint32_t)drawn);
}

/* Members that are not live do not hold a round up; but nobody starts one for itself.
 */
static bool all_arrived(const struct policy_view *view)
{
    size_t words = bitset_words(view->ranks);
    for (size_t i = 0; i < words; i++)
        if (view->members[i] & view->live[i] & ~view->arrived[i])
            return false;
    return !bitset_empty(view->live, words);
}

static const struct {
    const char *name;
    bool (*met)(const struct policy_view *);
    bool activates;
    bool draws; /* one rank that is waited for */
} table[] = {
    [PCOLL_SOLO] = {"solo", any_arrived, true, false},
    [PCOLL_MAJORITY] = {"majority", drawn_arrived, true, true},
    [PCOLL_FULL] = {"full", all_arrived, false, false},
};
enum { POLICIES = sizeof table / sizeof *table };

bool policy_met(const struct pcoll_policy *policy, const struct policy_view *view)
{
    return table[policy->kind].met(view);
}

int policy_awaited(const struct pcoll_policy *policy, const struct policy_view *view)
{
    return table[policy->kind].draws ? policy_drawn(view) : -1;
}

bool policy_activates(const struct pcoll_policy *policy)
{
    return table[policy->kind].activates;
}

int pcoll_policy_parse(const char *text, pcoll_policy *policy)
{
    for (int kind = 0; kind < POLICIES; kind++) {
        if (!strcmp(text, table[kind].name)) {
            policy->kind = kind;
            return PCOLL_OK;
        }
    }
    return fail(PCOLL_EINVAL,
                "quorum: expected \"solo\", \"majority\" or \"full\", got \"%.100s\"",
                text);
}

int pcoll_policy_format(const pcoll_policy *policy, char *text, uint64_t capacity)
{
    if (policy->kind < 0 || policy->kind >= POLICIES)
        return fail(PCOLL_EINVAL, "quorum: unknown policy kind %d", policy->kind);
    snprintf(text, capacity, "%s", table[policy->kind].name);
    return PCOLL_OK;
}

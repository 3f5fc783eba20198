/* SPDX-License-Identifier: Apache-2.0 */
/* The decision when a round starts; see round_trigger.h. */
#include "protocol/round_trigger.h"

#include "base/check.h"
#include "base/random.h"

void round_trigger_open(const struct pcoll_policy *policy,
                        const struct round_draw *draw, const uint32_t *absences,
                        struct policy_round *round)
{
    CHECK(draw->endpoints <= round->ranks);
    struct policy_draw drawn = {.stream = splitmix_mix(draw->seed) ^ draw->slot,
                                .round = draw->round,
                                .endpoints = draw->endpoints};
    policy_open(policy, &drawn, absences, round);
}

uint32_t round_trigger_starter(const struct pcoll_policy *policy,
                               const struct policy_round *round,
                               const uint64_t *arrived)
{
    CHECK(policy->kind >= 0);
    const uint64_t *among = policy_draws(policy) ? round->drawn : round->live;
    return bitset_first_common(arrived, among, bitset_words(round->ranks));
}

static int64_t after(int64_t since, double seconds)
{
    return since + (int64_t)(seconds * 1e9);
}

/* Starts at that time, begun by this rank. */
static struct round_trigger at(int64_t due, int64_t now, uint32_t initiator)
{
    bool over = now >= due;
    return (struct round_trigger){.start = over,
                                  .initiator = initiator,
                                  .met_since = ROUND_NEVER,
                                  .alarm = over ? ROUND_NEVER : due};
}

struct round_trigger round_trigger_evaluate(const struct pcoll_policy *policy,
                                            const struct policy_round *round,
                                            const struct round_state *state)
{
    CHECK(state->report);
    CHECK(state->met_since == ROUND_NEVER || policy->linger > 0);
    if (!policy_met(policy, round, state->report, state->members))
        return (struct round_trigger){.met_since = state->met_since,
                                      .alarm = ROUND_NEVER};
    bool lingers = policy->linger > 0 && !policy_starts_alone(policy);
    if (!lingers || policy_all_arrived(round, state->report))
        return at(state->now, state->now, state->starter);
    int64_t since = state->met_since == ROUND_NEVER ? state->now : state->met_since;
    struct round_trigger t =
        at(after(since, policy->linger), state->now, state->starter);
    t.met_since = since;
    return t;
}

struct round_trigger round_trigger_deadline(const struct pcoll_policy *policy,
                                            const struct round_state *state)
{
    CHECK(policy->deadline >= 0);
    if (!(policy->deadline > 0) || state->first_arrival == ROUND_NEVER)
        return (struct round_trigger){.alarm = ROUND_NEVER};
    return at(after(state->first_arrival, policy->deadline), state->now, state->first);
}

uint32_t round_absences(uint32_t before, bool active, bool live)
{
    CHECK(before < UINT32_MAX);
    return active || !live ? 0 : before + 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The leader's driver where there is a fabric, as in
 * csrc/allreduce/{endpoint,starting}.c: it starts the rounds, and carries the sum of
 * the domain into the result, as if the other domains had nothing to say. */
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "steps.h"

/* What the round asks for; its initiator, if it may start. */
static bool may_start(struct steps *s, uint32_t *initiator)
{
    struct steps_fabric *f = &s->fabric;
    struct domain *d = s->member[0].domain;
    size_t words = bitset_words(s->o.ranks);
    struct policy_draw draw = {
        .seed = s->options.seed, .slot = s->slot, .round = f->round, .endpoints = 2};
    struct policy_round asked = {
        .ranks = s->o.ranks, .live = f->live, .drawn = f->drawn, .overdue = f->overdue};
    policy_open(&s->policy, &draw, s->policy.max_staleness ? f->absences : NULL,
                &asked);
    bitset_clear(f->arrived, words);
    bitset_clear(f->deposited, words);
    d->ops->arrivals(d, 0, f->arrived, f->deposited);
    struct policy_report report = policy_count(&asked, f->arrived, f->deposited);
    *initiator = bitset_first_common(
        f->arrived, policy_draws(&s->policy) ? f->drawn : f->live, words);
    const struct placement *p = &s->member[0].placement;
    asked.own_count = 0;
    for (uint32_t i = 0; i < p->members; i++)
        asked.own_count += bitset_has(f->live, p->member[i]);
    return policy_met(&s->policy, &asked, &report);
}

static void count_absences(struct steps *s, const struct round_header *result)
{
    struct steps_fabric *f = &s->fabric;
    for (uint32_t i = 0; i < s->o.ranks; i++) {
        bool active = round_has(result, s->o.ranks, ROUND_ACTIVE, i);
        f->absences[i] = active || !bitset_has(f->live, i) ? 0 : f->absences[i] + 1;
    }
}

static void finish(struct steps *s, const struct round_header *contribution)
{
    struct steps_fabric *f = &s->fabric;
    struct domain *d = s->member[0].domain;
    struct round_header *result = d->ops->result(d, f->round);
    INTERLEAVE();
    round_header_copy(result, contribution, s->o.ranks);
    if (!round_is_null(contribution, s->o.ranks))
        memcpy(message_payload(result), message_payload(contribution),
               s->shape.payload.bytes);
    INTERLEAVE();
    count_absences(s, result);
    round_live(result, s->o.ranks, NULL, 0, bitset_words(s->o.ranks), f->live);
    d->ops->publish(d, f->round++);
    f->started = false;
}

/* In parts, from somewhere in the middle on, then everything. */
static bool gather(struct steps *s)
{
    struct domain *d = s->member[0].domain;
    size_t bytes = s->shape.payload.bytes, middle = bytes / 3;
    uint64_t round = s->fabric.round;
    return d->ops->gather(d, round, middle, 2 * middle) &&
           d->ops->gather(d, round, 2 * middle, bytes) &&
           d->ops->gather(d, round, 0, middle) && d->ops->gather(d, round, 0, bytes);
}

void steps_run_fabric(struct steps *s)
{
    struct steps_fabric *f = &s->fabric;
    struct domain *d = s->member[0].domain;
    for (;;) {
        uint32_t initiator;
        if (!f->started && d->ops->admits(d) && may_start(s, &initiator)) {
            f->started = true;
            f->initiator = initiator;
        }
        if (!f->started)
            return;
        if (!f->frozen) {
            f->frozen = d->ops->freeze(d, f->round);
            f->frozen->initiator = f->initiator;
        }
        if (!gather(s))
            return;
        finish(s, f->frozen);
        f->frozen = NULL;
    }
}

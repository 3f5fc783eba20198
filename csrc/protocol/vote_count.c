/* SPDX-License-Identifier: Apache-2.0 */
/* The counts of a coordinator; see vote_count.h. */
#include "protocol/vote_count.h"

#include <string.h>
#include "base/check.h"

void vote_count_init(struct vote_count *count, struct policy_report *of_endpoint,
                     uint32_t endpoints)
{
    CHECK(endpoints || !of_endpoint);
    *count = (struct vote_count){.of_endpoint = of_endpoint, .endpoints = endpoints};
    vote_count_clear(count);
}

bool vote_count_grown(const struct policy_report *now,
                      const struct policy_report *before)
{
    CHECK(now->arrived >= now->drawn || now->arrived == 0);
    return now->arrived > before->arrived || now->drawn > before->drawn ||
           now->overdue > before->overdue;
}

static uint32_t grow(uint32_t *mine, uint32_t value)
{
    uint32_t more = value > *mine ? value - *mine : 0;
    *mine += more;
    return more;
}

void vote_count_add(struct vote_count *count, uint32_t endpoint,
                    const struct policy_report *report, uint32_t rank)
{
    CHECK(count->of_endpoint);
    CHECK(endpoint < count->endpoints);
    struct policy_report *of = &count->of_endpoint[endpoint];
    if (vote_count_grown(report, of) && rank != ROUND_NOBODY)
        count->last = rank;
    count->total.arrived += grow(&of->arrived, report->arrived);
    count->total.drawn += grow(&of->drawn, report->drawn);
    count->total.overdue += grow(&of->overdue, report->overdue);
    CHECK(count->total.arrived >= of->arrived && count->total.drawn >= of->drawn);
}

void vote_count_clear(struct vote_count *count)
{
    CHECK(count->of_endpoint || !count->total.arrived);
    if (count->of_endpoint)
        memset(count->of_endpoint, 0, count->endpoints * sizeof *count->of_endpoint);
    count->total = (struct policy_report){0};
    count->last = ROUND_NOBODY;
}

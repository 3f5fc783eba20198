/* SPDX-License-Identifier: Apache-2.0 */
/* See commit.h. */
#include "user_schedule/commit.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/agreement.h"
#include "base/error.h"
#include "user_schedule/matching.h"

/* Everybody's messages on every rank; only when they are known not to match. */
static int report_mismatch(struct communicator *c, const struct builder *d)
{
    uint64_t *counts, total, before;
    int rc = agree_gather(c, messages_count(d), &counts);
    if (rc == PCOLL_OK)
        rc = messages_place(d, counts, &before, &total);
    free(counts);
    if (rc != PCOLL_OK)
        return rc;
    bool fits = total <= INT_MAX / MESSAGE_WORDS;
    uint64_t *words = fits ? calloc(total * MESSAGE_WORDS + 1, sizeof *words) : NULL,
             none = !words;
    rc = agree_max(c, &none, 1);
    if (rc == PCOLL_OK && none)
        rc = fail(PCOLL_EMISMATCH, "the schedules do not match: %llu messages in all",
                  (unsigned long long)total);
    if (rc == PCOLL_OK) {
        messages_write(d, words + before * MESSAGE_WORDS);
        rc = agree_max(c, words, (int)(total * MESSAGE_WORDS));
    }
    if (rc == PCOLL_OK)
        rc = messages_compare(words, total);
    free(words);
    return rc == PCOLL_OK ? fail(PCOLL_EMISMATCH, "the schedules do not match") : rc;
}

/* Is everybody's part valid, and does every send have its receive? */
static int compare(struct communicator *c, int local, struct builder *d)
{
    enum { INVALID = DIGEST_WORDS, WORDS };
    uint64_t sum[WORDS] = {0}, tags = d->tags;
    struct reason reason;
    fail_reason(&reason);
    if (local == PCOLL_OK)
        messages_digest(d, sum);
    sum[INVALID] = local != PCOLL_OK;
    int rc = agree_sum(c, sum, WORDS);
    if (rc == PCOLL_OK && sum[INVALID])
        rc = agree_refusals(c, local != PCOLL_OK, &reason, PCOLL_EMISMATCH,
                            "the schedule of rank", "is not valid");
    else if (rc == PCOLL_OK && (sum[0] || sum[1]))
        rc = report_mismatch(c, d);
    else if (rc == PCOLL_OK)
        rc = agree_max(c, &tags, 1);
    if (rc == PCOLL_OK && (tags < d->tags || tags > UINT32_MAX))
        rc = fail(PCOLL_EPROTOCOL,
                  "the ranks agreed on %llu tags, and this one needs %u",
                  (unsigned long long)tags, d->tags);
    if (rc == PCOLL_OK)
        d->tags = (uint32_t)tags;
    return local == PCOLL_OK ? rc : fail(local, "%s", reason.text);
}

int schedule_run_commit(struct communicator *c, int local, struct builder *d,
                        struct schedule_run **out)
{
    struct sched *s = NULL;
    struct schedule_run *p = NULL;
    if (local == PCOLL_OK)
        local = builder_commit(d, &s);
    agree_settle(c);
    int rc = compare(c, local, d);
    if (rc != PCOLL_OK) {
        sched_free(&s);
        return rc;
    }
    struct builder taken = *d;
    local = schedule_run_create(c, &taken, s, &p);
    if ((rc = agree_outcome(c, local)) == PCOLL_OK)
        rc = agree_enter(c, &p->base);
    if (rc == PCOLL_OK) {
        *d = taken;
        *out = p;
    } else if (p) {
        p->builder = (struct builder){0}; /* goes on being the caller's */
        schedule_run_destroy(&p);
    } else
        sched_free(&s);
    return rc;
}

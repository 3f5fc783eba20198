/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/mpi_shaped/quorum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/random.h"

enum { TEXT_LENGTH = 200, MOST_HISTORY = 1 << 20 };

static int quorum_parse_history(const char *value, uint32_t *history)
{
    char *end;
    long rounds = strtol(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || rounds < 1 || rounds > MOST_HISTORY)
        return fail(
            PCOLL_EINVAL,
            "quorum: expected history= and a number of rounds from 1 to %d, got "
            "\"%.100s\"",
            MOST_HISTORY, value);
    *history = (uint32_t)rounds;
    return PCOLL_OK;
}

static int quorum_parse_deliver(const char *value, int32_t *deliver)
{
    bool all = !strcmp(value, "all");
    if (!all && strcmp(value, "one"))
        return fail(PCOLL_EINVAL,
                    "quorum: expected deliver=one or deliver=all, got \"%.100s\"",
                    value);
    *deliver = all ? PCOLL_DELIVER_ALL : PCOLL_DELIVER_ONE;
    return PCOLL_OK;
}

/* Take the two modifiers out of the text; what is left is a policy's. */
int quorum_parse(const char *text, struct quorum *quorum)
{
    char copy[TEXT_LENGTH], policy[TEXT_LENGTH] = "", *rest;
    struct quorum parsed = {.history = 0};
    int rc = PCOLL_OK, histories = 0, delivers = 0;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy)
        return fail(PCOLL_EINVAL, "quorum: expected a shorter text, got \"%.100s\"",
                    text);
    if (*text == ',' || strstr(text, ",,") || (*text && text[strlen(text) - 1] == ','))
        return pcoll_policy_parse(text, &parsed.policy);
    for (char *word = strtok_r(copy, ",", &rest); word && rc == PCOLL_OK;
         word = strtok_r(NULL, ",", &rest)) {
        if (*policy && !strncmp(word, "history=", 8) && !histories++)
            rc = quorum_parse_history(word + 8, &parsed.history);
        else if (*policy && !strncmp(word, "deliver=", 8) && !delivers++)
            rc = quorum_parse_deliver(word + 8, &parsed.deliver);
        else
            sprintf(policy + strlen(policy), "%s%s", *policy ? "," : "", word);
    }
    if (rc == PCOLL_OK)
        rc = pcoll_policy_parse(policy, &parsed.policy);
    if (rc == PCOLL_OK)
        *quorum = parsed;
    return rc;
}

bool quorum_same(const struct quorum *a, const struct quorum *b)
{
    const pcoll_policy *p = &a->policy, *q = &b->policy;
    return p->kind == q->kind && p->count == q->count && p->fraction == q->fraction &&
           p->linger == q->linger && p->deadline == q->deadline &&
           p->max_staleness == q->max_staleness && a->history == b->history &&
           a->deliver == b->deliver;
}

uint64_t quorum_hash(const struct quorum *quorum)
{
    char text[TEXT_LENGTH] = "";
    pcoll_policy_format(&quorum->policy, text, sizeof text);
    return splitmix_text((uint64_t)quorum->history << 1 | (uint64_t)quorum->deliver,
                         text);
}

bool quorum_is_partial(const struct quorum *quorum)
{
    const pcoll_policy *policy = &quorum->policy;
    return policy->kind != PCOLL_FULL || policy->linger > 0 || policy->deadline > 0;
}

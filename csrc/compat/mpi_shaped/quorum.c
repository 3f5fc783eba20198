/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/mpi_shaped/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/error.h"
#include "base/random.h"

enum { MOST_HISTORY = 1 << 20 };

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

/* Take the two modifiers out of the text. The rest is a policy. */
int quorum_parse(const char *text, struct quorum *quorum)
{
    char copy[QUORUM_TEXT], policy[QUORUM_TEXT] = "", *rest;
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
        else if (*policy && !strncmp(word, "deliver=", 8) && !delivers++) {
            if (!strcmp(word + 8, "all"))
                parsed.deliver = PCOLL_DELIVER_ALL;
            else if (strcmp(word + 8, "one"))
                rc = fail(PCOLL_EINVAL,
                          "quorum: expected deliver=one or deliver=all, got \"%.100s\"",
                          word + 8);
        } else
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
    char text[QUORUM_TEXT] = "";
    pcoll_policy_format(&quorum->policy, text, sizeof text);
    return splitmix_text((uint64_t)quorum->history << 1 | (uint64_t)quorum->deliver,
                         text);
}

bool quorum_is_partial(const struct quorum *quorum)
{
    const pcoll_policy *policy = &quorum->policy;
    return policy->kind != PCOLL_FULL || policy->linger > 0 || policy->deadline > 0;
}

const char *const choice_names[CHOICE_VARIABLES] = {
    [CHOICE_QUORUM] = "PARTIALCOLL_QUORUM",
    [CHOICE_ALGORITHM] = "PARTIALCOLL_ALGORITHM",
    [CHOICE_DOMAIN] = "PARTIALCOLL_DOMAIN",
    [CHOICE_PROGRESS] = "PARTIALCOLL_PROGRESS",
};

static int choice_parse_progress(const char *text, int32_t *progress)
{
    static const char *const modes[] = {[PCOLL_PROGRESS_AGENT] = "agent",
                                        [PCOLL_PROGRESS_MANUAL] = "manual",
                                        [PCOLL_PROGRESS_SPIN] = "spin"};
    for (int32_t i = 0; i < 3; i++)
        if (!strcmp(text, modes[i])) {
            *progress = i;
            return PCOLL_OK;
        }
    return fail(PCOLL_EINVAL,
                "PARTIALCOLL_PROGRESS: expected agent, manual or spin, got \"%.50s\"",
                text);
}

int choice_read(struct choice *choice, enum choice_variable variable)
{
    const char *text = environment_get(choice_names[variable]);
    int rc = PCOLL_EINVAL;
    if (!text)
        return PCOLL_OK;
    switch (variable) {
    case CHOICE_QUORUM:
        return quorum_parse(text, &choice->quorum);
    case CHOICE_ALGORITHM:
        rc = pcoll_algorithm_parse(text, &choice->algorithm);
        break;
    case CHOICE_DOMAIN:
        rc = pcoll_domain_parse(text, &choice->domain, &choice->domain_ranks);
        break;
    case CHOICE_PROGRESS:
        return choice_parse_progress(text, &choice->progress);
    case CHOICE_VARIABLES:
        break;
    }
    choice->asked |= rc == PCOLL_OK;
    return rc;
}

uint64_t choice_hash(const struct choice *choice)
{
    uint64_t hash =
        splitmix_mix((uint64_t)choice->algorithm << 32 | (uint64_t)choice->domain);
    return splitmix_mix(hash ^ ((uint64_t)choice->domain_ranks << 1 | choice->asked));
}

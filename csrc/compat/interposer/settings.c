/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of the interposer. */
#include "compat/interposer/settings.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"

static struct settings the_settings;

/* A value that means nothing is as good as none. */
static void settings_complain(struct settings *s, const char *name)
{
    size_t used = strlen(s->complaint);
    snprintf(s->complaint + used, sizeof s->complaint - used, "%s%s is ignored: %s",
             used ? "; " : "", name, pcoll_last_error());
}

static bool settings_is_on(struct settings *s, const char *name)
{
    const char *text = environment_get(name);
    if (!text || !strcmp(text, "0"))
        return false;
    if (!strcmp(text, "1"))
        return true;
    fail(PCOLL_EINVAL, "expected 0 or 1, got \"%.50s\"", text);
    settings_complain(s, name);
    return false;
}

static void settings_read_environment(void)
{
    struct settings *s = &the_settings;
    const char *quorum = environment_get("PARTIALCOLL_QUORUM");
    const char *algorithm = environment_get("PARTIALCOLL_ALGORITHM");
    const char *domain = environment_get("PARTIALCOLL_DOMAIN");
    s->all = settings_is_on(s, "PARTIALCOLL_ALL");
    s->report = settings_is_on(s, "PARTIALCOLL_REPORT");
    s->algorithm = PCOLL_ALGORITHM_AUTO;
    s->domain = PCOLL_DOMAIN_NODE;
    s->quorum = (struct quorum){.policy.kind = PCOLL_FULL};
    if (algorithm) {
        s->asked |= pcoll_algorithm_parse(algorithm, &s->algorithm) == PCOLL_OK;
        if (!s->asked)
            settings_complain(s, "PARTIALCOLL_ALGORITHM");
    }
    if (domain) {
        int rc = pcoll_domain_parse(domain, &s->domain, &s->domain_ranks);
        s->asked |= rc == PCOLL_OK;
        if (rc != PCOLL_OK)
            settings_complain(s, "PARTIALCOLL_DOMAIN");
    }
    if (quorum && quorum_parse(quorum, &s->quorum) != PCOLL_OK)
        settings_complain(s, "PARTIALCOLL_QUORUM");
}

const struct settings *settings(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, settings_read_environment);
    return &the_settings;
}

void report_warn(const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "partialcoll: %s\n", line);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* See error.h: the last failure of each thread. */
#include "base/error.h"

#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static _Thread_local char last_message[512];
static _Thread_local char refusal[sizeof last_message];
static _Thread_local int last_mpi_error;
static _Thread_local struct failed_ranks last_ranks;

int fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_message, sizeof last_message, format, args);
    va_end(args);
    return code;
}

void fail_set_mpi_error(int mpi_error)
{
    last_mpi_error = mpi_error;
}

int fail_null(const char *names, size_t index)
{
    for (; index; index--)
        names = strchr(names, ',') + 2;
    return fail(PCOLL_EINVAL, "%.*s: expected an address, got NULL",
                (int)strcspn(names, ","), names);
}

const char *pcoll_last_error(void)
{
    return last_message;
}

void pcoll_refuse(const char *why)
{
    if (why)
        snprintf(refusal, sizeof refusal, "%s", why);
}

void fail_reason(struct reason *reason)
{
    snprintf(reason->text, sizeof reason->text, "%s",
             refusal[0] ? refusal : last_message);
    refusal[0] = '\0';
}

int fail_ranks(const struct failed_ranks *who)
{
    char ranks[400] = "";
    struct text text = {.at = ranks, .left = sizeof ranks};
    for (int i = 0; i < who->count; i++)
        text_add(&text, "%s%d", i ? ", " : "", who->rank[i]);
    last_ranks = *who;
    last_mpi_error = who->mpi_error;
    if (!who->count)
        return fail(PCOLL_EFAILED, "a rank has died, and MPI does not say which");
    return fail(PCOLL_EFAILED, "rank%s %s ha%s died%s%s", who->count > 1 ? "s" : "",
                ranks, who->count > 1 ? "ve" : "s",
                who->host[0] ? ": nothing is heard any more of host " : "", who->host);
}

const struct failed_ranks *fail_last_ranks(void)
{
    return &last_ranks;
}

struct failure fail_keep(int code)
{
    struct failure f = {.code = code, .mpi_error = last_mpi_error, .who = last_ranks};
    memcpy(f.reason.text, last_message, sizeof last_message);
    return f;
}

int fail_again(const struct failure *f)
{
    if (f->code == PCOLL_EFAILED)
        return fail_ranks(&f->who);
    last_mpi_error = f->mpi_error;
    return f->code == PCOLL_OK ? PCOLL_OK : fail(f->code, "%s", f->reason.text);
}

int pcoll_failed_ranks(int32_t *ranks, int capacity)
{
    for (int i = 0; ranks && i < last_ranks.count && i < capacity; i++)
        ranks[i] = last_ranks.rank[i];
    return last_ranks.count;
}

int pcoll_last_mpi_error(void)
{
    return last_mpi_error;
}

void text_add(struct text *text, const char *format, ...)
{
    CHECK(text->left);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text->at, text->left, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < text->left ? (size_t)n : text->left - 1;
    text->at += used;
    text->left -= used;
}

/* Numbers. */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* 0 if there is none: the thread keeps its locale */

static void decimal_make_locale(void)
{
    plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

static locale_t decimal_enter_locale(void)
{
    pthread_once(&once, decimal_make_locale);
    return uselocale(plain);
}

double decimal_parse(const char *text, char **end)
{
    locale_t before = decimal_enter_locale();
    double value = strtod(text, end);
    uselocale(before);
    return value;
}

void decimal_print(char *text, size_t capacity, int digits, double value)
{
    locale_t before = decimal_enter_locale();
    snprintf(text, capacity, "%.*g", digits, value);
    uselocale(before);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text form of a policy, used everywhere:
 *
 *   policy    = name [":" number] {"," modifier}
 *   name      = "solo" | "majority" | "full" | "quorum" | "first_of" | "last_of"
 *   modifier  = "linger=" time | "deadline=" time | "max_staleness=" rounds
 *   time      = number ("ns" | "us" | "ms" | "s"), seconds without a unit
 *
 * quorum takes a number of ranks (6) or a fraction (0.75, 1.0); first_of and last_of a
 * number of ranks.
 */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/error.h"
#include "include/partialcoll.h"

enum argument { NO_ARGUMENT, A_COUNT, A_COUNT_OR_FRACTION };

static const struct {
    const char *name;
    enum argument argument;
} kinds[] = {
    [PCOLL_SOLO] = {"solo", NO_ARGUMENT},
    [PCOLL_MAJORITY] = {"majority", NO_ARGUMENT},
    [PCOLL_FULL] = {"full", NO_ARGUMENT},
    [PCOLL_QUORUM] = {"quorum", A_COUNT_OR_FRACTION},
    [PCOLL_FIRST_OF] = {"first_of", A_COUNT},
    [PCOLL_LAST_OF] = {"last_of", A_COUNT},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const struct {
    const char *unit;
    double
        per_second; /* The quotient is exact; a product would not be: 50us is 5e-5 s. */
} units[] = {{"ns", 1e9}, {"us", 1e6}, {"ms", 1e3}, {"s", 1}, {"", 1}};
enum { UNITS = sizeof units / sizeof *units };

/* The whole text, and the place where it is read. */
struct parser {
    const char *text, *at;
};

static int policy_text_fail(const struct parser *p, const char *expected)
{
    return fail(PCOLL_EINVAL, "quorum: expected %s%s, got \"%.100s\"", expected,
                p->at == p->text ? "" : " in the text of a policy", p->at);
}

/* Return the length of the word at the place. */
static size_t policy_text_word(const struct parser *p, const char *ends)
{
    return strcspn(p->at, ends);
}

static bool policy_text_is(const struct parser *p, size_t length, const char *name)
{
    return strlen(name) == length && !strncmp(p->at, name, length);
}

/* Read a decimal number. Return its length; 0: there is none. */
static size_t policy_text_number(const struct parser *p, double *value)
{
    char *end;
    if (!isdigit((unsigned char)*p->at) && *p->at != '.')
        return 0; /* strtod accepts signs, blanks, "nan" and more. */
    if (p->at[0] == '0' && (p->at[1] | 0x20) == 'x')
        return 0;
    *value = decimal_parse(p->at, &end);
    return isfinite(*value) ? (size_t)(end - p->at) : 0;
}

static int policy_text_parse_count(struct parser *p, const char *expected,
                                   uint32_t *count)
{
    double value;
    size_t length = policy_text_number(p, &value);
    if (!length || length != strspn(p->at, "0123456789") || value < 1 ||
        value > UINT32_MAX)
        return policy_text_fail(p, expected);
    *count = (uint32_t)value;
    p->at += length;
    return PCOLL_OK;
}

static int policy_text_parse_quorum(struct parser *p, pcoll_policy *policy)
{
    double value;
    size_t length = policy_text_number(p, &value);
    bool fraction = length > strspn(p->at, "0123456789");
    if (!fraction)
        return policy_text_parse_count(
            p, "a number of ranks (from 1) or a fraction (0.75)", &policy->count);
    if (!(value > 0 && value <= 1))
        return policy_text_fail(p, "a fraction above 0, at most 1");
    policy->fraction = value;
    p->at += length;
    return PCOLL_OK;
}

static int policy_text_parse_time(struct parser *p, double *seconds)
{
    char expected[100];
    double value;
    size_t length = policy_text_number(p, &value);
    snprintf(expected, sizeof expected,
             "a time above 0 and up to %g s, in ns, us, ms or s", PCOLL_LONGEST_TIME);
    if (!length)
        return policy_text_fail(p, expected);
    struct parser unit = {p->text, p->at + length};
    size_t end = policy_text_word(&unit, ",");
    for (int i = 0; i < UNITS; i++) {
        if (!policy_text_is(&unit, end, units[i].unit))
            continue;
        *seconds = value / units[i].per_second;
        if (!(*seconds > 0 && *seconds <= PCOLL_LONGEST_TIME))
            break;
        p->at = unit.at + end;
        return PCOLL_OK;
    }
    return policy_text_fail(p, expected);
}

static int policy_text_parse_modifier(struct parser *p, pcoll_policy *policy)
{
    size_t length = policy_text_word(p, "=,");
    bool value = p->at[length] == '=';
    const char *begin = p->at;
    p->at += value ? length + 1 : 0;
    if (value && length == 6 && !strncmp(begin, "linger", length) && !policy->linger)
        return policy_text_parse_time(p, &policy->linger);
    if (value && length == 8 && !strncmp(begin, "deadline", length) &&
        !policy->deadline)
        return policy_text_parse_time(p, &policy->deadline);
    if (value && length == 13 && !strncmp(begin, "max_staleness", length) &&
        !policy->max_staleness)
        return policy_text_parse_count(p, "a number of rounds (from 1)",
                                       &policy->max_staleness);
    p->at = begin;
    return policy_text_fail(p,
                            "linger=, deadline= or max_staleness=, each at most once");
}

static int policy_text_parse_argument(struct parser *p, enum argument argument,
                                      pcoll_policy *policy)
{
    bool given = *p->at == ':';
    p->at += given;
    if (given != (argument != NO_ARGUMENT))
        return policy_text_fail(p, given ? "no number after this name"
                                         : "\":\" and a number after this name");
    if (argument == A_COUNT)
        return policy_text_parse_count(p, "a number of ranks (from 1)", &policy->count);
    return argument == A_COUNT_OR_FRACTION ? policy_text_parse_quorum(p, policy)
                                           : PCOLL_OK;
}

static int policy_text_parse_kind(struct parser *p, pcoll_policy *policy)
{
    size_t length = policy_text_word(p, ":,");
    for (int kind = 0; kind < KINDS; kind++) {
        if (!policy_text_is(p, length, kinds[kind].name))
            continue;
        policy->kind = kind;
        p->at += length;
        return policy_text_parse_argument(p, kinds[kind].argument, policy);
    }
    return policy_text_fail(p, "\"solo\", \"majority\", \"quorum:Q\", \"first_of:m\", "
                               "\"last_of:m\" or \"full\"");
}

int pcoll_policy_parse(const char *text, pcoll_policy *policy)
{
    pcoll_policy parsed = {0};
    struct parser p = {text, text};
    int rc = fail_if_null(text, policy) ?: policy_text_parse_kind(&p, &parsed);
    while (rc == PCOLL_OK && *p.at == ',') {
        p.at++;
        rc = policy_text_parse_modifier(&p, &parsed);
    }
    if (rc == PCOLL_OK && *p.at)
        rc = policy_text_fail(&p, "\",\" or the end");
    if (rc == PCOLL_OK)
        *policy = parsed;
    return rc;
}

/* Write the shortest text that means exactly this number. */
static void policy_text_shortest(double value, char *text, size_t capacity)
{
    if (value == floor(value) && value < 1e9) {
        snprintf(text, capacity, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        decimal_print(text, capacity, digits, value);
        if (decimal_parse(text, NULL) == value)
            return;
    }
}

struct printer {
    char *text;
    size_t used, capacity;
};

static void __attribute__((format(printf, 2, 3)))
policy_text_print(struct printer *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t left = out->used < out->capacity ? out->capacity - out->used : 0;
    int n = vsnprintf(left ? out->text + out->used : NULL, left, format, args);
    va_end(args);
    out->used += n > 0 ? (size_t)n : 0;
}

static void policy_text_print_fraction(struct printer *out, double fraction)
{
    char text[32];
    policy_text_shortest(fraction, text, sizeof text);
    policy_text_print(out, ":%s%s", text, strpbrk(text, ".e") ? "" : ".0");
}

/* Write a time in the unit in which it is shortest and exact. */
static void policy_text_print_time(struct printer *out, const char *name,
                                   double seconds)
{
    char best[40] = "", text[32], whole[40];
    for (int i = UNITS - 2; i >= 0; i--) {
        policy_text_shortest(seconds * units[i].per_second, text, sizeof text);
        if (decimal_parse(text, NULL) / units[i].per_second != seconds)
            continue;
        snprintf(whole, sizeof whole, "%s%s", text, units[i].unit);
        if (!*best || strlen(whole) < strlen(best))
            memcpy(best, whole, sizeof best);
    }
    if (seconds > 0)
        policy_text_print(out, ",%s=%s", name, best);
}

int pcoll_policy_format(const pcoll_policy *policy, char *text, uint64_t capacity)
{
    int rc = fail_if_null(policy, text);
    if (rc != PCOLL_OK)
        return rc;
    if (policy->kind < 0 || policy->kind >= KINDS)
        return fail(PCOLL_EINVAL, "quorum: unknown policy kind %d", policy->kind);
    struct printer out = {text, 0, capacity};
    policy_text_print(&out, "%s", kinds[policy->kind].name);
    if (kinds[policy->kind].argument != NO_ARGUMENT) {
        if (policy->count)
            policy_text_print(&out, ":%u", policy->count);
        else
            policy_text_print_fraction(&out, policy->fraction);
    }
    policy_text_print_time(&out, "linger", policy->linger);
    policy_text_print_time(&out, "deadline", policy->deadline);
    if (policy->max_staleness)
        policy_text_print(&out, ",max_staleness=%u", policy->max_staleness);
    return out.used < capacity ? PCOLL_OK
                               : fail(PCOLL_EINVAL, "no room for the text of a policy");
}

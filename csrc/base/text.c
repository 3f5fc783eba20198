/* SPDX-License-Identifier: Apache-2.0 */
/* See text.h. */
#include "base/text.h"

#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"

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

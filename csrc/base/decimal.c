/* SPDX-License-Identifier: Apache-2.0 */
#include "base/decimal.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* the calling thread's stays what it is if there is none */

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

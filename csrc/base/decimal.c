/* SPDX-License-Identifier: Apache-2.0 */
#include "base/decimal.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* the calling thread's stays what it is if there is none */

static void make(void)
{
    plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

static locale_t enter(void)
{
    pthread_once(&once, make);
    return uselocale(plain);
}

double decimal_parse(const char *text, char **end)
{
    locale_t before = enter();
    double value = strtod(text, end);
    uselocale(before);
    return value;
}

void decimal_print(char *text, size_t capacity, int digits, double value)
{
    locale_t before = enter();
    snprintf(text, capacity, "%.*g", digits, value);
    uselocale(before);
}

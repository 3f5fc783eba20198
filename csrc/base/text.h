/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts that are written piece by piece, and numbers as texts.
 */
#ifndef PCOLL_BASE_TEXT_H
#define PCOLL_BASE_TEXT_H

#include <stddef.h>

struct text {
    char *at;    /* the next character to write */
    size_t left; /* bytes left, including the 0 at the end */
    int items;   /* written so far; used by callers for separators */
};

/* Append. Cuts off what does not fit. */
void text_add(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Numbers with a decimal point, whichever locale the program has chosen. */

/* As strtod. */
double decimal_parse(const char *text, char **end);
/* As "%.*g". */
void decimal_print(char *text, size_t capacity, int digits, double value);

#endif
